"""`labctl run --gpu --cpu`: the same run on both devices, in interleaved pairs, and what distinguishes them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from labctl.analysis.devices import Devices, compare_devices
from labctl.analysis.explain import explain
from labctl.drive.batch import Variant, run_batch
from labctl.drive.links import Opener
from labctl.drive.plan import RunOptions
from labctl.drive.preflight import Gate, doctor_gate
from labctl.drive.timing import Clock, SystemClock
from labctl.errors import LabctlError, UsageError, UserInterruptError
from labctl.lab.home import Home
from labctl.lab.model import Lab
from labctl.runs.data import load
from labctl.runs.observer import Observer, Silent
from labctl.runs.record import RunRecord
from labctl.runs.store import Entry

PAIR_TAG = "pair"
DEVICE_TAG = "device"
GPU, CPU = "gpu", "cpu"
DEFAULT_PAIRS = 3  # what a verdict needs on each side
MAX_PAIRS = 100


@dataclass(frozen=True, slots=True)
class Paired:
    """What running pairs came to.

    Attributes:
        found: The comparison.
        failed: The first run that did not end ok, None if all did.
        error: What kept the rest of the runs from being started, None if all were.
    """

    found: Devices
    failed: RunRecord | None
    error: LabctlError | None


def run_pairs(
    home: Home,
    lab_name: str,
    options: RunOptions,
    pairs: int,
    *,
    observer: Observer | None = None,
    opener: Opener | None = None,
    gate: Gate = doctor_gate,
    clock: Clock | None = None,
    lab: Lab | None = None,
) -> Paired:
    """Run the experiment `pairs` times on each device, interleaved, and compare the sides.

    A side whose run does not end ok is not run again; the other goes on. What keeps a run from starting ends all,
    and the records so far are kept and compared.

    Args:
        home: Where the lab is.
        lab_name: Its name.
        options: What is run; its device does not matter.
        pairs: Runs on each device.
        observer: Is told of each run's begin and of warnings.
        opener: Makes executors.
        gate: Runs the checks.
        clock: Where time comes from.
        lab: The lab, if it has been read already.

    Raises:
        UsageError: The options do not fit two devices.
        UserInterruptError: Ctrl-C; the records so far are kept.
        LabctlError: The first run could not be started.
    """
    variants = _variants(options, pairs)
    clock, watcher = clock or SystemClock(), observer or Silent()
    stamp = datetime.fromtimestamp(clock.unix_s(), UTC).strftime("%Y%m%dT%H%M%SZ")
    pair = f"{stamp}-{secrets.token_hex(3)}"
    done: dict[str, list[Entry]] = {GPU: [], CPU: []}
    told: set[str] = set()

    def keep(label: str, entry: Entry) -> None:
        done[label].append(entry)
        for text in entry.readable().warnings:
            if text not in told:
                told.add(text)
                watcher.note(f"warning {text}")

    error = None
    try:
        run_batch(
            home,
            lab_name,
            variants,
            pairs,
            {PAIR_TAG: pair},
            observer=watcher,
            on_run=keep,
            opener=opener,
            gate=gate,
            clock=clock,
            lab=lab,
        )
    except UserInterruptError:
        raise
    except LabctlError as problem:
        if not any(done.values()):
            raise
        error = problem
    runs = {
        label: [explain(load(each.path, each.readable())) for each in entries]
        for label, entries in done.items()
    }
    records = [run.data.record for side in (GPU, CPU) for run in runs[side]]
    notes = [f"not all was run: {error.found}"] if error is not None else []
    return Paired(
        compare_devices(pair, runs[GPU], runs[CPU], notes),
        next((each for each in records if each.outcome != "ok"), None),
        error,
    )


def _variants(options: RunOptions, pairs: int) -> list[Variant]:
    if not 1 <= pairs <= MAX_PAIRS:
        raise UsageError(f"--pairs {pairs}", expected=f"1 to {MAX_PAIRS}")
    if options.script is not None:
        raise UsageError(
            f"--gpu --cpu is of the built-in experiment and does not fit the script {options.script}",
            expected="one of the two: a script chooses its devices itself",
            do="run it twice, with --tag, and compare: labctl runs compare",
        )
    if options.detach:
        raise UsageError(
            "--detach does not fit --gpu --cpu: the runs follow one another",
            do="leave it out",
        )
    return [
        Variant(GPU, replace(options, gpu=True, tags=(*options.tags, f"{DEVICE_TAG}={GPU}"))),
        Variant(
            CPU,
            replace(
                options,
                gpu=False,
                soft_placement=False,
                tags=(*options.tags, f"{DEVICE_TAG}={CPU}"),
            ),
        ),
    ]
