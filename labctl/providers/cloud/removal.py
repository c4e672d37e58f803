"""Removing a lab from a cloud: it counts as gone when the cloud, asked by label, has nothing of it any more."""

from __future__ import annotations

from dataclasses import replace

from labctl.errors import LabctlError, UserInterruptError
from labctl.providers.base import MachineCost, Receipt, Report
from labctl.providers.cloud import tell, usage
from labctl.providers.cloud.books import Books, State
from labctl.providers.cloud.model import Found, Resource
from labctl.providers.cloud.plays import Plays
from labctl.providers.cloud.world import World

WAITS_S = (
    0.0,
    5.0,
    10.0,
    20.0,
    40.0,
    60.0,
    60.0,
    60.0,
)  # between two questions whether all is gone
RETRY_S = 15.0
_TRIES = 3


def remove(
    books: Books, state: State, plays: Plays, world: World, *, force: bool, report: Report
) -> Receipt:
    """Remove a lab, its lock held.

    Args:
        books: Its files.
        state: What is known of it.
        plays: Its playbooks.
        world: Clocks and prices.
        force: Where something cannot be removed, or the cloud cannot be asked, give it up and say so.
        report: Progress.

    Raises:
        LabctlError: The cloud could not be asked; nothing is forgotten.
    """
    cloud = state.wish.provider
    report(f"asking {cloud} for all with the label of lab {state.wish.lab}")
    try:
        before = plays.found()
    except UserInterruptError:
        raise
    except LabctlError as error:
        if not force:
            raise
        return _give_up(books, state, world, error, report)
    if not usage.remaining(before) and not books.state_file.exists() and not state.usage:
        kept = books.remove()
        return Receipt(kept=tuple(map(str, kept)), asked=_asked(before))
    state = books.save(state.after(before))
    problem: LabctlError | None = None
    found = before
    for number in range(_TRIES):
        if not usage.remaining(found):
            break
        report(f"removing {tell.counted(usage.remaining(found))}")
        problem = _destroy(plays)
        answer, unasked = _until_gone(plays, world, report)
        if answer is None:
            assert unasked is not None  # noqa: S101 one of the two
            if not force:
                raise unasked
            return _give_up(books, state, world, unasked, report)
        found = answer
        state = books.save(state.after(found))
        if problem is None or number == _TRIES - 1:
            break
        report(f"{problem.found}: trying again")
        world.sleep(RETRY_S)
    rest = usage.remaining(found)
    if rest:
        return _left(books, state, world, before, rest, problem, force=force, report=report)
    receipt = _receipt(state, world, _removed(before, rest), _asked(found))
    kept = books.remove()
    return replace(receipt, kept=tuple(map(str, kept)))


def _destroy(plays: Plays) -> LabctlError | None:
    """Run the playbook; returns how it failed: whether all is gone, the cloud is asked."""
    try:
        plays.found("destroy")
    except UserInterruptError:
        raise
    except LabctlError as error:
        return error
    return None


def _until_gone(
    plays: Plays, world: World, report: Report
) -> tuple[Found | None, LabctlError | None]:
    """Ask the cloud until nothing is left, as long as that makes sense.

    Returns:
        Its last answer, or why it gave none at all.
    """
    last: Found | None = None
    problem: LabctlError | None = None
    for wait_s in WAITS_S:
        world.sleep(wait_s)
        try:
            last = plays.found()
        except UserInterruptError:
            raise
        except LabctlError as error:
            problem = error
            report(f"the cloud cannot be asked: {error.found}")
            continue
        rest = usage.remaining(last)
        leaving = [each for each in rest if usage.is_leaving(each)]
        if not rest or not leaving:
            break
        report(f"waiting for {tell.counted(leaving)} to leave")
    return last, problem


def _left(
    books: Books,
    state: State,
    world: World,
    before: Found,
    rest: list[Resource],
    problem: LabctlError | None,
    *,
    force: bool,
    report: Report,
) -> Receipt:
    """Return the receipt of a lab of which something stays; it stays on the books, whatever `force` says."""
    why = f": {problem.found}" if problem is not None else ""
    phrases = tuple(f"{_phrase(each, state, world)}{why}" for each in rest)
    receipt = _receipt(state, world, _removed(before, rest), _asked(state.found))
    if not force:
        return replace(receipt, left=phrases)
    books.save(replace(state, forgotten=True))
    _warn(books, state, f"{state.wish.provider} still has {tell.counted(rest)}", report)
    return replace(receipt, forgotten=phrases)


def _give_up(
    books: Books, state: State, world: World, error: LabctlError, report: Report
) -> Receipt:
    """Forget a lab that the cloud cannot be asked about; unreachable is not gone, so it stays in the list."""
    books.save(replace(state, forgotten=True))
    _warn(books, state, f"{state.wish.provider} could not be asked ({error.found})", report)
    known = usage.remaining(state.found) if state.found is not None else []
    phrases = tuple(_phrase(each, state, world) for each in known)
    receipt = _receipt(state, world, (), "not asked")
    return replace(receipt, forgotten=phrases or ("whatever the cloud has of it",))


def _warn(books: Books, state: State, what: str, report: Report) -> None:
    lab = state.wish.lab
    report(
        f"WARNING: {what}: it may be BILLED until it is gone. labctl labs lists lab {lab} until the cloud says "
        f"that nothing is left; labctl down --lab {lab} tries again, and the cloud's console shows label "
        f"labctl-lab={lab}, labctl-id={state.wish.lab_id} in {state.wish.region}"
    )
    books.give_to_owner()


def _receipt(state: State, world: World, removed: tuple[str, ...], asked: str) -> Receipt:
    now_s = world.unix_s()
    rows = usage.spent(state.usage, now_s, lambda each: world.prices.of_usage(state.wish, each))
    return Receipt(
        removed=removed,
        cost=usage.total(rows),
        machines=tuple(
            MachineCost(each.node, each.machine_type, each.running_h, each.stopped_h, each.usd)
            for each in rows
        ),
        hours=usage.lab_hours(state.usage, now_s),
        asked=asked,
        created_unix_s=min((each.created_unix_s for each in state.usage), default=None),
    )


def _removed(before: Found, rest: list[Resource]) -> tuple[str, ...]:
    stays = {(each.kind, each.id) for each in rest}
    return tuple(
        tell.named(each) for each in usage.remaining(before) if (each.kind, each.id) not in stays
    )


def _phrase(resource: Resource, state: State, world: World) -> str:
    """Return a thing that stays: what, in which state, and what it costs."""
    cost = ""
    if resource.kind == "machine":
        used = [each for each in state.usage if each.id == resource.id]
        if used:
            running, stopped = world.prices.of_usage(state.wish, used[0])
            price = stopped if used[0].doing == "stopped" else running
            cost = f", {price.usd_per_hour:.3f} USD/h" if price else ", price unknown"
    elif resource.billable:
        cost = ", billed"
    return f"{tell.named(resource)}, {resource.state or 'state unknown'}{cost}"


def _asked(found: Found | None) -> str:
    assert found is not None  # noqa: S101 asked before
    return f"{found.provider} at {tell.clock(found.asked_unix_s)}"
