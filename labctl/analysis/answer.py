"""The question answered: what the runs of its experiment say of each claim, and of its listing. Pure.

A label without a run that ended ok makes its claims `not-measured`; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis import ptx, stats
from labctl.analysis.claims import CLAIMS
from labctl.analysis.defects import defects_of
from labctl.analysis.evidence import CHAIN, Claim, Defect, warm_ms
from labctl.analysis.explained import Explained
from labctl.runs.record import RunRecord

QUESTION_SIZE = 1000
DISTURBED_PERCENT = 60.0  # from the 5th to the 95th percentile, of the median


@dataclass(frozen=True, slots=True)
class Place:
    """A node on which the runs were done.

    Attributes:
        node: Its name.
        task: Task index.
        cpus: CPUs, None if unknown.
        cpu_model: Model name.
        tensorflow: Version.
        kernel: Version.
    """

    node: str
    task: int
    cpus: int | None
    cpu_model: str
    tensorflow: str
    kernel: str


@dataclass(frozen=True, slots=True)
class Answer:
    """All claims of one round of runs.

    Attributes:
        tag: The round's id: the runs' tag `answer`.
        lab: Where it was done.
        provider: What made the machines.
        places: The nodes.
        claims: In the order of `claims.CLAIMS`.
        defects: Of the listing.
        gpus: Bounds of one product of L = 1000 by the answer's instruction table, by GPU.
        runs: Ids by label, in order of time.
        failed: Runs that did not end ok: label, id and outcome.
        notes: What a reader should know of the round as a whole.
    """

    tag: str
    lab: str
    provider: str
    places: tuple[Place, ...]
    claims: tuple[Claim, ...]
    defects: tuple[Defect, ...]
    gpus: dict[str, tuple[ptx.KernelBound, ...]]
    runs: dict[str, tuple[str, ...]]
    failed: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]


def answer_of(tag: str, runs: Mapping[str, Sequence[Explained]]) -> Answer:
    """Return what one round of runs says.

    Args:
        tag: The round's id.
        runs: By label; at least one run in all.
    """
    good = {label: _ended(side, ok=True) for label, side in sorted(runs.items())}
    every = [run.data.record for side in runs.values() for run in side]
    newest = max(every, key=lambda record: record.run_id)
    return Answer(
        tag=tag,
        lab=newest.lab,
        provider=newest.provider,
        places=_places(newest),
        claims=tuple(claim(good) for claim in CLAIMS),
        defects=defects_of(good),
        gpus={gpu.name: ptx.bounds(gpu, QUESTION_SIZE) for gpu in ptx.gpus()},
        runs={
            label: tuple(run.data.record.run_id for run in side)
            for label, side in good.items()
            if side
        },
        failed=tuple(
            (label, run.data.record.run_id, run.data.record.outcome)
            for label, side in sorted(runs.items())
            for run in _ended(side, ok=False)
        ),
        notes=tuple(_notes(good)),
    )


def _notes(runs: Mapping[str, Sequence[Explained]]) -> Iterator[str]:
    """Yield a note where steps of one kind differ so much that the machines must have had other work."""
    found = stats.summarize(warm_ms(runs.get(CHAIN, ())))
    if found is not None and (found.spread_percent or 0.0) > DISTURBED_PERCENT:
        yield (
            f"the machines had other work: one and the same warm step took {found.p5:.0f} to {found.p95:.0f} ms; "
            "what is undecided may be clear on quiet ones"
        )


def _ended(side: Sequence[Explained], *, ok: bool) -> list[Explained]:
    found = [run for run in side if (run.data.record.outcome == "ok") is ok]
    return sorted(found, key=lambda run: run.data.record.run_id)


def _places(record: RunRecord) -> tuple[Place, ...]:
    return tuple(
        Place(
            node=node.name,
            task=node.task,
            cpus=node.cpus,
            cpu_model=node.cpu_model,
            tensorflow=node.versions.get("tensorflow", ""),
            kernel=node.versions.get("kernel", ""),
        )
        for node in record.nodes
    )
