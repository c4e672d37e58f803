"""What must be right before anything is started on a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from labctl.checks.doctor import GPU_NAMES, Checked, preflight_names, run_checked, to_error
from labctl.checks.gpu_facts import GpuNeed
from labctl.checks.model import CheckResult
from labctl.drive import baseline, start
from labctl.drive.clock import clock_sample
from labctl.drive.facts import read_facts
from labctl.drive.links import Links, Machine, Opener, gather
from labctl.drive.places import JOIN_SERVICE, require_local_tensorflow
from labctl.drive.plan import Request
from labctl.drive.servers import read_server_and_start
from labctl.drive.session import Session
from labctl.lab.model import Lab
from labctl.remote.base import Executor
from labctl.runs.baseline import Baseline
from labctl.runs.record import ClockSample, FailedCheck, NodeFacts, ServerState

RESTART_S = 120.0
# Checks of what a run without join servers does not use.
PEER_CHECKS = frozenset({"spec", "unit", "running-spec", "port", "addresses", "proxies"})

Gate = Callable[[Lab, Mapping[str, Executor], GpuNeed | None, frozenset[str]], Checked]


@dataclass(frozen=True, slots=True)
class Ready:
    """A lab on which a run may start.

    Attributes:
        nodes: What each node is, in task order.
        clock: One measurement of each node's clock.
        servers: Join servers that take part.
        checks: How many checks said `ok` and how many were `skipped`.
        failed_checks: Those that failed and do not stop the run.
        baseline: What machines and network can do, None if it was not measured.
        warnings: What a reader of the run should know.
        notes: Those of them that the user should see before the run starts.
    """

    nodes: tuple[NodeFacts, ...]
    clock: tuple[ClockSample, ...]
    servers: tuple[ServerState, ...]
    checks: dict[str, int]
    failed_checks: tuple[FailedCheck, ...] = ()
    baseline: Baseline | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def doctor_gate(
    lab: Lab, executors: Mapping[str, Executor], gpu: GpuNeed | None, names: frozenset[str]
) -> Checked:
    """Run the checks of `labctl check` that a run needs."""
    return run_checked(lab, executors, gpu=gpu, only=names)


def prepare(session: Session, request: Request, opener: Opener, gate: Gate = doctor_gate) -> Ready:
    """Connect, refuse what cannot work, and return what the lab is.

    Args:
        session: The command.
        request: What is to run.
        opener: Makes the executors of the checks, which have connections of their own.
        gate: Runs the checks.

    Raises:
        LabBusyError: Another run is active.
        LabctlError: A check failed; the error is that of the most telling one. With `skip_checks` only for a
            node that cannot be reached.
    """
    links, timeline, where = session.links, session.timeline, session.where
    if where.loopback:
        require_local_tensorflow()
    with timeline.span("connect"):
        session.observer.stage("connecting")
        links.client.call(start.refuse_if_busy)
    if request.parameters.fresh and not where.loopback:
        with timeline.span("restart_servers"):
            session.observer.stage("restarting join servers")
            restart_servers(links)
    looks = [
        link.submit(lambda machine: (read_facts(machine, where), clock_sample(machine, timeline)))
        for link in links.all
    ]
    take_part = () if where.loopback or not request.peers else links.workers
    servers_read = [link.submit(read_server_and_start) for link in take_part]
    with timeline.span("checks"):
        session.observer.stage("checking")
        checked = _checked(session, request, opener, gate)
        looked = gather(looks)
        servers = gather(servers_read)
    results = checked.results
    nodes = tuple(_with_gpus(facts, checked) for facts, _ in looked)
    measured, problems = _baseline(session, request, nodes)
    failed = tuple(_failed(each) for each in results if each.status == "fail" and not each.warns)
    told = [f"{each.name}: {each.found}; {each.do}" for each in results if each.warns]
    skipped = [f"started although check {each.name} failed on {each.node}" for each in failed]
    counts = {
        status: sum(result.status == status for result in results) for status in ("ok", "skipped")
    }
    return Ready(
        nodes=nodes,
        clock=tuple(sample for _, sample in looked),
        servers=tuple(servers),
        checks=counts,
        failed_checks=failed,
        baseline=measured,
        warnings=(*skipped, *told, *problems),
        notes=tuple(told),
    )


def restart_servers(links: Links) -> None:
    """Restart the join servers of all workers at once, so that their first step is a cold one.

    Raises:
        RemoteCommandError: One failed; the message ends with its last journal line.
    """

    def restart(machine: Machine) -> None:
        machine.units.restart(JOIN_SERVICE, timeout_s=RESTART_S)

    gather([link.submit(restart) for link in links.workers])


def _failed(result: CheckResult) -> FailedCheck:
    return FailedCheck(
        result.name, result.node, result.found, result.expected or "", result.do or ""
    )


def _baseline(
    session: Session, request: Request, nodes: Sequence[NodeFacts]
) -> tuple[Baseline | None, tuple[str, ...]]:
    """Return the lab's baseline, measured now if the run needs one, and what could not be measured just now."""
    known = baseline.stored(session.lab, {each.name: each.boot_id for each in nodes})
    needs_one = request.trace and request.peers and request.matpow is not None
    if not needs_one or baseline.is_complete(known):
        return known, ()
    with session.timeline.span("baseline"):
        try:
            found = baseline.measure(
                session.lab,
                session.links,
                session.clock,
                again=False,
                progress=session.observer.stage,
            )
        except OSError as error:
            return known, (f"the baseline cannot be kept: {error}",)
    return found, tuple(f"baseline of the {each}" for each in found.missing)


def _with_gpus(facts: NodeFacts, checked: Checked) -> NodeFacts:
    """Return a node with what the checks saw of its GPUs."""
    gpus, cuda = checked.gpus.get(facts.name, ()), checked.cuda.get(facts.name)
    return facts if not gpus and cuda is None else replace(facts, gpus=gpus, cuda=cuda)


def _checked(session: Session, request: Request, opener: Opener, gate: Gate) -> Checked:
    names = preflight_names(request.gpu)
    if not request.peers:
        names -= PEER_CHECKS
    need = GpuNeed(request.parameters.size) if request.gpu else None
    executors = {node.name: opener.executor(node, session.lab) for node in session.lab.nodes}
    try:
        checked = gate(session.lab, executors, need, names)
    finally:
        for executor in executors.values():
            executor.close()
    if not request.peers:  # no other node's GPU is used
        client = session.lab.client.name
        used = [
            each for each in checked.results if each.node == client or each.name not in GPU_NAMES
        ]
        checked = replace(checked, results=tuple(used))
    failed = [each for each in checked.results if each.status == "fail" and not each.warns]
    out_of_reach = any(result.name == "ssh" for result in failed)
    if failed and (out_of_reach or not request.parameters.skip_checks):
        raise to_error(failed)
    return checked
