"""`labctl why --prove`: run the controlled pairs of a run's causes, weigh them, keep what they said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.analysis.causes.model import Proof, Verdict
from labctl.analysis.compare import Measured, facts_of
from labctl.analysis.pairs import Changes, Pair, Tried, pair_for, setting_text, weigh
from labctl.drive.batch import Variant, run_batch
from labctl.drive.compare import measured
from labctl.drive.plan import RunOptions
from labctl.errors import ConfigError, RefusedError, UsageError
from labctl.lab.cluster import cluster_addresses
from labctl.lab.home import Home
from labctl.lab.model import LOOPBACK, Lab
from labctl.node import wire
from labctl.playbook import load_lab
from labctl.runs import atomic
from labctl.runs.codec import decode, encode
from labctl.runs.observer import Observer
from labctl.runs.record import Parameters, RunRecord
from labctl.runs.store import Entry, RunStore

PROOFS_DIR = "proofs"
PROOFS_FORMAT = 1
LEAST_REPEATS = 3
TAG = "proves"
_STEPS_S = 1.5  # seconds of warm steps in each run of a pair
_LEAST_STEPS = 5
_MOST_STEPS = 100
_TIMEOUT_S = 120.0
# Facts that make the lab another one than the run's; a boot or labctl's own version do not.
_OF_MACHINE = ("tensorflow on", "python on", "numpy on", "kernel on", "CPU")


@dataclass(frozen=True, slots=True)
class _Planned:
    verdict: Verdict
    pair: Pair
    sides: tuple[Changes, ...]


def prove(
    home: Home,
    lab_name: str,
    entry: Entry,
    verdicts: Sequence[Verdict],
    *,
    causes: Sequence[str] = (),
    repeats: int = LEAST_REPEATS,
    observer: Observer | None = None,
) -> tuple[Tried, ...]:
    """Run the pairs of a run's causes on its lab and keep what they say.

    Pairs that share a setting share its runs; all settings are interleaved.

    Args:
        home: Where the lab is.
        lab_name: Its name.
        entry: The run that is explained.
        verdicts: What the rules say of it.
        causes: Ids of those to try, whatever their verdict; none for all that were found.
        repeats: Runs of each setting, `LEAST_REPEATS` or more.
        observer: Is told of each run's begin.

    Returns:
        One for each cause asked about, in the order of the verdicts.

    Raises:
        UsageError: No rule has that cause, or there are too few repeats.
        RefusedError: The lab is not the run's any more.
        ConfigError: The lab is gone.
        LabctlError: A run could not be started, or was cancelled.
    """
    record = entry.readable()
    local_dir = home.local_dir(lab_name)
    if entry.path.parent != RunStore(local_dir).root:
        raise RefusedError(
            f"{entry.path} is not in the store of lab {lab_name}",
            expected="a run of this lab: its pairs are run on the machines that it ran on",
            do="labctl run, then labctl why last --prove",
        )
    chosen = _chosen(verdicts, causes)
    if repeats < LEAST_REPEATS:
        raise UsageError(
            f"--repeat {repeats}", expected=f"{LEAST_REPEATS} or more runs of each setting"
        )
    reasons: dict[str, str] = {}
    planned: list[_Planned] = []
    for verdict in chosen:
        pair = _pair(verdict.cause, record)
        if isinstance(pair, str):
            reasons[verdict.cause] = pair
        else:
            sides = [pair.first] if pair.second is None else [pair.first, pair.second]
            planned.append(
                _Planned(verdict, pair, tuple(_apart(each, record.parameters) for each in sides))
            )
    own = measured(entry)
    runs: dict[Changes, list[Measured]] = {}
    if planned:
        lab = same_lab(home, lab_name, record)
        runs = _run_all(home, lab, record, own, planned, repeats, observer)
    proofs: dict[str, Proof] = {}
    for each in planned:
        first, *second = ([m for m in runs[side] if m.outcome == "ok"] for side in each.sides)
        proof = weigh(
            each.pair,
            first,
            second[0] if second else [],
            own=own,
            claimed_s=each.verdict.seconds,
        )
        if proof is None:
            failed = next((m for side in each.sides for m in runs[side] if m.outcome != "ok"), None)
            reasons[each.verdict.cause] = (
                "its runs measured nothing to weigh"
                if failed is None
                else f"run {failed.run_id} of its pair ended {failed.outcome}"
            )
        else:
            proofs[each.verdict.cause] = proof
    if proofs:
        write_proofs(local_dir, record.run_id, proofs)
    return tuple(
        Tried(each.cause, each.seconds, proofs.get(each.cause), reasons.get(each.cause, ""))
        for each in chosen
    )


def _chosen(verdicts: Sequence[Verdict], causes: Sequence[str]) -> list[Verdict]:
    known = {each.cause for each in verdicts}
    for cause in causes:
        if cause not in known:
            raise UsageError(
                f"--cause {cause} is no cause",
                expected=f"one of {', '.join(sorted(known))}",
                do="labctl why lists the causes of a run",
            )
    if causes:
        return [each for each in verdicts if each.cause in causes]
    return [each for each in verdicts if each.status == "found"]


def _pair(cause: str, record: RunRecord) -> Pair | str:
    if record.outcome != "ok":
        return f"the run ended {record.outcome}: a pair needs a run that ends; remove the cause and run again"
    if record.parameters.environment:
        names = ", ".join(record.parameters.environment)
        return f"the run was made with --env {names}, whose values are not kept"
    return pair_for(cause, record.parameters)


def _apart(changes: Changes, own: Parameters) -> Changes:
    """Return changes without those that the run has already, so that equal settings share their runs."""
    different = []
    for name, value in changes:
        has = getattr(own, name)
        if (("default" if name == "inter_op" else None) if has is None else str(has)) != str(value):
            different.append((name, value))
    return tuple(sorted(different))


def base_options(record: RunRecord) -> RunOptions:
    """Return the settings of a run as options, without traced steps and with as many warm ones as are needed."""
    own = record.parameters
    return RunOptions(
        gpu=own.device == "gpu",
        size=own.size,
        power=own.power,
        algorithm=own.algorithm,
        feed=own.feed,
        placement=own.placement,
        api=own.api,
        inter_op="default" if own.inter_op is None else str(own.inter_op),
        fetch=own.fetch,
        sum_task=own.sum_task,
        soft_placement=bool(own.soft_placement),
        skip_checks=own.skip_checks,
        fresh=own.fresh,
        trace=False,
        timeout_s=max(_TIMEOUT_S, own.timeout_s),
    )


def _steps(step_s: float | None) -> int:
    """Return how many warm steps a run of a pair takes."""
    if not step_s:
        return _LEAST_STEPS
    return min(max(_LEAST_STEPS, round(_STEPS_S / step_s)), _MOST_STEPS)


def _options(base: RunOptions, changes: Changes) -> RunOptions:
    values: dict[str, object] = {
        name: str(value) if name == "inter_op" else value for name, value in changes
    }
    if "environment" in values:
        values["environment"] = (str(values["environment"]),)
    if values.get("placement") == "one-process":
        values["sum_task"] = 0
    fresh = base.fresh and values.get("placement", base.placement) == "lab"
    return replace(base, fresh=fresh, **values)  # type: ignore[arg-type]


def _run_all(
    home: Home,
    lab: Lab,
    record: RunRecord,
    own: Measured,
    planned: Sequence[_Planned],
    repeats: int,
    observer: Observer | None,
) -> dict[Changes, list[Measured]]:
    """Run all settings that the pairs need, each `repeats` times, and return what each run measured."""
    warm = [value for key, row in own.rows.items() if key.name == "warm step" for value in row]
    steps = _steps(sum(warm) / len(warm) if warm else None)
    base = replace(base_options(record), repeat=steps)
    settings = list(dict.fromkeys(side for each in planned for side in each.sides))
    labels = {setting_text(changes): changes for changes in settings}
    variants = [Variant(label, _options(base, changes)) for label, changes in labels.items()]
    found: dict[Changes, list[Measured]] = {changes: [] for changes in settings}

    def keep(label: str, done: Entry) -> None:
        _require_same_machines(own, done.readable(), record.run_id)
        found[labels[label]].append(measured(done))

    run_batch(
        home,
        lab.name,
        variants,
        repeats,
        {TAG: record.run_id},
        observer=observer,
        on_run=keep,
        lab=lab,
    )
    return found


def same_lab(home: Home, lab_name: str, record: RunRecord) -> Lab:
    """Return the lab of a run.

    Raises:
        ConfigError: It is gone.
        RefusedError: It has other nodes or addresses than the run had.
    """
    if record.lab != lab_name:
        raise RefusedError(
            f"run {record.run_id} is of lab {record.lab}, not of {lab_name}",
            do=f"--lab {record.lab}",
        )
    if lab_name != LOOPBACK and lab_name not in home.labs():
        raise ConfigError(
            f"lab {lab_name} of run {record.run_id} is gone: {home.inventory(lab_name)} does not exist",
            expected="the lab that the run ran on: its pairs are run there",
            do=f"labctl up --lab {lab_name}, then a new labctl run; labctl why needs no lab",
        )
    lab = load_lab(home, lab_name)
    names, had = [node.name for node in lab.nodes], [node.name for node in record.nodes]
    same_spec = wire.spec_hash(cluster_addresses(lab)) == record.spec_sha256
    if names != had or not same_spec:
        now = ", ".join(f"{node.name} at {node.tf_address}" for node in lab.nodes)
        then = ", ".join(f"{node.name} at {node.tf_address}" for node in record.nodes)
        raise RefusedError(
            f"lab {lab_name} has now {now}",
            expected=f"{then}, as when run {record.run_id} was made",
            do="labctl run, then labctl why last --prove",
        )
    return lab


def _require_same_machines(own: Measured, new: RunRecord, run_id: str) -> None:
    """Check that the machines are what they were.

    Raises:
        RefusedError: A version, or a CPU, is another one.
    """
    facts = facts_of(new)
    for name, then in own.facts.items():
        now = facts.get(name, "none")
        if name.startswith(_OF_MACHINE) and now != then:
            raise RefusedError(
                f"{name} is {now} now",
                expected=f"{then}, as when run {run_id} was made",
                do="labctl run, then labctl why last --prove",
            )


def proofs_file(local_dir: Path, run_id: str) -> Path:
    """Return where the proofs of a run are kept."""
    return local_dir / PROOFS_DIR / f"{run_id}.json"


def write_proofs(local_dir: Path, run_id: str, proofs: Mapping[str, Proof]) -> None:
    """Keep proofs of a run, beside those of other causes that it has already."""
    before, _ = read_proofs(local_dir, run_id)
    document = {
        "format": PROOFS_FORMAT,
        "run_id": run_id,
        "proofs": {cause: encode(proof) for cause, proof in {**before, **proofs}.items()},
    }
    path = proofs_file(local_dir, run_id)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    atomic.write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n", mode=0o600)


def read_proofs(local_dir: Path, run_id: str) -> tuple[dict[str, Proof], str]:
    """Return the proofs of a run by cause, and what is wrong with their file ("" if nothing is)."""
    path = proofs_file(local_dir, run_id)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != PROOFS_FORMAT:
            return {}, f"{path} has format {data['format']}, this labctl knows {PROOFS_FORMAT}"
        told = data["proofs"].items()
        return {str(cause): decode(Proof, proof, cause) for cause, proof in told}, ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"{path} cannot be read: {error}"


def forget_proofs(local_dir: Path, run_id: str) -> None:
    """Remove what is kept of a run that is removed."""
    proofs_file(local_dir, run_id).unlink(missing_ok=True)


def with_proofs(verdicts: Sequence[Verdict], proofs: Mapping[str, Proof]) -> tuple[Verdict, ...]:
    """Return verdicts with what `--prove` said of them."""
    return tuple(
        replace(each, proved=proofs[each.cause]) if each.cause in proofs else each
        for each in verdicts
    )
