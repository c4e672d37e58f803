"""Labs of machines in a cloud: planned, made, healed, stopped and started. `removal` removes them.

What labctl knows of a lab is written before the cloud is asked to make anything, and the cloud is asked by label
for what there is: neither a Ctrl-C nor a lost file loses track of a machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from labctl.errors import ConfigError, LabBusyError, LabctlError, RemoteCommandError
from labctl.lab.home import Home, inventory_sources, remove_empty
from labctl.lab.model import DEFAULT_PORT, Lab, Node, SshTarget
from labctl.providers import inventory, keys
from labctl.providers.base import LabStatus, MachineOptions, Receipt, Report
from labctl.providers.cloud import decide, demands, reach, removal, tell, usage
from labctl.providers.cloud.books import (
    Books,
    State,
    cloud_of,
    lab_id,
    owner_name,
    ssh_address,
)
from labctl.providers.cloud.catalogue import cloud
from labctl.providers.cloud.model import CloudOptions, Found
from labctl.providers.cloud.plan import CloudPlan, make_plan
from labctl.providers.cloud.plays import Plays
from labctl.providers.cloud.wish import Wish, checked
from labctl.providers.cloud.world import World, real_world
from labctl.providers.identity import node_index, node_name
from labctl.providers.lock import hold
from labctl.providers.phases import PhaseLog

ASK_S = 90.0  # for the state of a lab in a list
_LOCK = ".cloud.lock"


class CloudProvider:
    """Makes labs in a cloud.

    Args:
        home: Whose labs.
        name: `aws` or `gcp`.
        world: The outside; default the real one.
    """

    def __init__(self, home: Home, name: str, world: World | None = None) -> None:
        self.name = name
        self._home = home
        self._cloud = cloud(name)
        self._world = world or real_world(home)

    def owns(self, lab: str) -> bool:
        return cloud_of(self._home, lab) == self.name

    def up(self, lab: str, options: MachineOptions, report: Report) -> LabStatus:
        return self.carry_out(self.plan(lab, options, report), report)

    def plan(self, lab: str, options: MachineOptions, report: Report) -> CloudPlan:
        """Return what `up` would do, and leave all as it is.

        Raises:
            ConfigError: The options cannot be, contradict the standing lab, or the cloud would refuse them.
            LabctlError: The cloud could not be asked.
        """
        self._check_name(lab)
        self._world.require(self._cloud)
        with self._locked(lab, "up") as books:
            try:
                return self._planned(books, options, report)
            except BaseException:
                books.drop_answers()
                raise

    def _planned(self, books: Books, options: MachineOptions, report: Report) -> CloudPlan:
        """Return the plan, the lab's lock held."""
        lab, state = books.lab, books.state()
        wish = self._decide(books, state, options)
        report(f"asking {self.name} for what there is of lab {lab}")
        found = self._plays(books, state.wish if state else wish, report).found()
        if state is not None:
            books.save(state.after(found))
        if usage.remaining(found):
            demands.check_fixed(state.wish if state is not None else wish, wish)
        new, starting = demands.missing(wish, found, reuse=options.reuse)
        validated = None
        if new:
            report(f"asking {self.name} whether it would make {', '.join(new)}")
            validated = self._plays(books, wish, report).validated()
            demands.refuse(validated, report)
        return make_plan(
            wish,
            validated,
            new=new,
            starting=starting,
            is_known=state is not None or bool(usage.remaining(found)),
            changes=demands.changes(state.wish, wish) if state is not None else (),
            prices=self._world.prices,
        )

    def drop_plan(self, lab: str) -> None:
        """Take back what a plan that is not carried out left on this machine."""
        books = Books(self._home, lab)
        books.drop_answers()
        if not books.state_file.exists():
            logs = books.local / "logs"
            for file in logs.glob(f"{self.name}_*.log"):
                file.unlink()
            remove_empty([logs, books.local, self._home.root / ".lab"])

    def carry_out(self, plan: CloudPlan, report: Report) -> LabStatus:
        """Do what a plan says; returns when every machine takes SSH logins.

        Raises:
            LabctlError: It could not be done; `up` again completes it, `down` removes what there is.
        """
        wish, lab, log = plan.wish, plan.wish.lab, PhaseLog()
        with self._locked(lab, "up") as books:
            known = books.state()
            is_new = known is None and not books.hosts_text()
            state = known or State(wish, self._world.unix_s())
            state = books.save(replace(state, wish=wish, forgotten=False))
            before = self._home.active()
            if is_new:
                books.publish(wish, Found(self.name, self._world.unix_s()))
            if inventory_sources(books.inventory) and (is_new or before is None):
                self._home.activate(lab)  # so that a plain `labctl down` means what is half made
            plays = self._plays(books, wish, report)
            try:
                if plan.starting:
                    with log.timed("start"):
                        state = books.save(state.after(plays.found("start")))
                report(f"{self.name}: making what is missing")
                with log.timed("make", counts=bool(plan.new)):
                    found = plays.found("create")
            except (LabctlError, KeyboardInterrupt):
                self._say_what_there_is(books, plan, before, report)
                raise
            state = self._settled(books, state, found)
            for note in books.publish(wish, found):
                report(note)
            self._wait(state, found, report, log)
            return tell.status_of(
                state, self._world.prices, self._world.unix_s(), phases=log.phases()
            )

    def status(self, lab: str) -> LabStatus:
        """Return the machines as the cloud says; where it cannot be asked in time, as it said last."""
        books = Books(self._home, lab)
        state, unknown = books.state(), ""
        notes: tuple[str, ...] = ()
        try:
            with self._locked(lab, "labs") as books:
                state = books.state()
                wish = state.wish if state is not None else self._decide(books, None, None)
                self._world.require(self._cloud)
                found = self._plays(books, wish, _silent).found(timeout_s=ASK_S)
                state = (state or State(wish, self._world.unix_s())).after(found)
                if books.state_file.exists():
                    books.save(state)
                    if state.forgotten and not usage.remaining(found):
                        books.remove()
        except LabBusyError as error:
            notes = (error.found,)
        except LabctlError as error:
            unknown = error.found
        if state is None:
            return LabStatus((), cost=None, usd_per_hour=None, unknown=unknown or "never asked")
        return tell.status_of(
            state, self._world.prices, self._world.unix_s(), unknown=unknown, notes=notes
        )

    def stop(self, lab: str, report: Report) -> LabStatus:
        """Power all machines off; disks stay, and are billed.

        Raises:
            ConfigError: There is no such lab.
            LabctlError: It could not be done.
        """
        self._world.require(self._cloud)
        with self._locked(lab, "stop") as books:
            state = self._known(books)
            found = self._plays(books, state.wish, report).found()
            state = books.save(state.after(found))
            if any(each.doing == "running" for each in state.usage):
                found = self._plays(books, state.wish, report).found("stop")
                state = books.save(replace(state.after(found), paused=True))
            return tell.status_of(state, self._world.prices, self._world.unix_s())

    def start(self, lab: str, report: Report) -> LabStatus:
        """Power the machines on that were stopped; inventory and known host keys follow their addresses.

        Raises:
            ConfigError: There is no such lab, or no machine of it is left.
            LabctlError: It could not be done.
        """
        self._world.require(self._cloud)
        log = PhaseLog()
        with self._locked(lab, "start") as books:
            state = self._known(books)
            plays = self._plays(books, state.wish, report)
            found = plays.found()
            state = books.save(state.after(found))
            if not usage.machines(found):
                raise ConfigError(
                    f"lab {lab} has no machine that could be started",
                    expected="machines that labctl stop stopped",
                    do=f"labctl up --lab {lab} makes new ones",
                )
            before = {each.node: each.private_address for each in usage.machines(found)}
            with log.timed("start"):
                found = plays.found("start")
            state = self._settled(books, state, found)
            for note in books.publish(state.wish, found):
                report(note)
            self._wait(state, found, report, log)
            now_s = self._world.unix_s()
            after = {each.node: each.private_address for each in usage.machines(found)}
            notes = tuple(demands.after_start(state, before, after, now_s))
            return tell.status_of(
                state, self._world.prices, now_s, phases=log.phases(), notes=notes
            )

    def extended(self, lab: str, deadline_unix_s: float) -> tuple[str, ...]:
        """Note that the nodes' timers were put off; returns what the user should know of that."""
        with self._locked(lab, "extend") as books:
            state = books.state()
            if state is None:
                return ()
            later_s = max(deadline_unix_s, state.deadline_unix_s or 0.0)
            return tell.limits(books.save(replace(state, deadline_unix_s=later_s)))

    def down(self, lab: str, *, force: bool, report: Report) -> Receipt:
        return self.remove(lab, CloudOptions(), force=force, report=report)

    def remove(self, lab: str, options: CloudOptions, *, force: bool, report: Report) -> Receipt:
        """Remove all that the cloud has of a lab, as `down` does.

        Args:
            lab: Its name.
            options: Where to ask, for a lab of which all files are lost.
            force: Give up what cannot be removed.
            report: Progress.

        Raises:
            LabctlError: The cloud could not be asked: nothing is forgotten then.
        """
        if not force:
            self._world.require(self._cloud)
        with self._locked(lab, "down") as books:
            state = books.state()
            if state is None:
                wish = self._decide(books, None, MachineOptions(cloud=options), asks=False)
                state = State(wish, self._world.unix_s())
            plays = self._plays(books, state.wish, report)
            return removal.remove(books, state, plays, self._world, force=force, report=report)

    @contextmanager
    def _locked(self, lab: str, command: str) -> Iterator[Books]:
        """Hold the lab for this process; others are told who does."""
        books = Books(self._home, lab)
        books.make()
        try:
            with hold(books.local / _LOCK, f"labctl {command} for lab {lab}"):
                yield books
        finally:
            remove_empty([books.folder, books.local])

    def _plays(self, books: Books, wish: Wish, report: Report) -> Plays:
        return Plays(books, wish, self._world.runner, report)

    def _check_name(self, lab: str) -> None:
        """Check that the name is free for a lab of this cloud.

        Raises:
            ConfigError: It is another lab's.
        """
        folder = self._home.inventory(lab)
        other = cloud_of(self._home, lab)
        if other is not None and other != self.name:
            raise demands.taken(lab, f"machines in {other}")
        if inventory.is_ours(folder):
            raise demands.taken(lab, "rehearsal machines on this host")
        foreign = Books(self._home, lab).foreign()
        if foreign and other is None:
            raise ConfigError(
                f"{folder / foreign[0]} was not written by labctl",
                expected="a lab's name that no inventory of yours has, or one with a group_vars/all/cloud.yml",
                do="labctl up --lab NAME with another name",
            )

    def _decide(
        self,
        books: Books,
        state: State | None,
        options: MachineOptions | None,
        *,
        asks: bool = True,
    ) -> Wish:
        """Return the wish; `asks` finds this machine's address out where no network is named for SSH."""
        options = options or MachineOptions()
        own = {
            "lab": books.lab,
            "lab_id": lab_id(self._home, books.lab),
            "owner": owner_name(),
            "project": self._world.project(self._cloud),
            "region": self._world.region(self._cloud) or self._cloud.region,
        }
        given = books.values()
        known: dict[str, Any] = {}
        if state is not None:
            known = {each.name: getattr(state.wish, each.name) for each in fields(Wish)}
        known |= given
        for name, expected in (("lab", books.lab), ("provider", self.name)):
            if known.get(name, expected) != expected:
                raise ConfigError(
                    f"{books.variables_file}: it is of {known[name]}",
                    expected=str(expected),
                    do="correct it, or choose another name for the lab",
                )
        wish = decide.decide(
            self._cloud, known, options.cloud or CloudOptions(), options.nodes, own
        )
        if books.is_edited():
            demands.check_edited(wish, given, books.variables_file)
        if not wish.admin_cidrs and asks and options.cloud is not None:
            if wish.ssh_by == "private":
                raise ConfigError(
                    "SSH goes to private addresses, and nothing says from where",
                    expected="the network that this machine has inside",
                    do="--admin-cidr NETWORK",
                )
            wish = checked(replace(wish, admin_cidrs=(self._world.own_cidr(),)), "the own address")
        return wish

    def _known(self, books: Books) -> State:
        state = books.state()
        if state is None and not books.values():
            raise ConfigError(
                f"no lab {books.lab!r} of {self.name} is known here",
                expected="one that labctl up made",
                do=f"labctl up --lab {books.lab} --provider {self.name} finds its machines again",
            )
        return state or State(self._decide(books, None, None), self._world.unix_s())

    def _settled(self, books: Books, state: State, found: Found) -> State:
        """Keep an answer after which all machines shall run.

        Raises:
            RemoteCommandError: One does not.
        """
        state = replace(state.after(found), paused=False)
        state = replace(state, deadline_unix_s=tell.deadline(state, self._world.unix_s()))
        books.save(state)
        running = {
            each.node
            for each in usage.serving(found)
            if usage.doing_of(each, self.name) == "running"
        }
        lacking = [
            name for index in range(state.wish.nodes) if (name := node_name(index)) not in running
        ]
        if lacking:
            raise RemoteCommandError(
                f"{self.name} says that all is made, but {', '.join(lacking)} does not run",
                expected=f"{state.wish.nodes} machines that run",
                do=f"labctl up --lab {state.wish.lab} again, or labctl down --lab {state.wish.lab}",
            )
        return state

    def _wait(self, state: State, found: Found, report: Report, log: PhaseLog) -> None:
        lab = _lab(state.wish, found, self._home)
        reach.wait_for_logins(lab, self._world.opener, report, log, self._world.patience)

    def _say_what_there_is(
        self, books: Books, plan: CloudPlan, active: str | None, report: Report
    ) -> None:
        """After a failure, ask the cloud and tell; of a new lab of which nothing was made, nothing stays here."""
        lab = plan.wish.lab
        way = f"labctl up --lab {lab} completes it, labctl down --lab {lab} removes it"
        try:
            found = self._plays(books, plan.wish, report).found()
        except (LabctlError, KeyboardInterrupt) as error:
            why = error.found if isinstance(error, LabctlError) else "interrupted"
            report(f"what {self.name} has of lab {lab} now is not known ({why}): {way}")
            return
        rest = usage.remaining(found)
        if not rest and not plan.is_known:
            books.remove()
            if active is not None:
                self._home.activate(active)
            report(f"{self.name} has nothing of lab {lab}: nothing was made")
            return
        state = books.state()
        if state is not None:
            books.save(state.after(found))
        report(f"{self.name} has now of lab {lab}: {tell.counted(rest) or 'nothing'}; {way}")


def _silent(_: str) -> None:
    pass


def _lab(wish: Wish, found: Found, home: Home) -> Lab:
    """Return the lab as SSH sees it, without asking Ansible."""
    folder = home.local_dir(wish.lab)
    nodes = tuple(
        Node(
            name=each.node,
            task_index=node_index(each.node),
            data_address=each.private_address,
            tf_port=DEFAULT_PORT,
            ssh=SshTarget(
                host=ssh_address(wish, each),
                user=wish.user,
                key_file=folder / keys.KEY,
                options=keys.ssh_options(folder),
            ),
        )
        for each in usage.serving(found)
    )
    return Lab(wish.lab, nodes, home.inventory(wish.lab), wish.provider, folder)
