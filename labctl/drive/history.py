"""What a lab's runs say of its speed, and the predictions that were asked for: `.lab/<lab>/plans.jsonl`."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from labctl.analysis.constants import RunFacts, facts_of
from labctl.analysis.explain import explain
from labctl.analysis.predict import Prediction
from labctl.analysis.score import Plan
from labctl.errors import ConfigError, RecordError
from labctl.runs.codec import decode, encode
from labctl.runs.data import load
from labctl.runs.store import RunStore

PLANS_FILE = "plans.jsonl"
PLANS_FORMAT = 1
NEWEST_RUNS = 100  # of those that ended ok: older ones are not read


def read_history(store: RunStore) -> list[RunFacts]:
    """Return what the lab's newest runs that ended ok measured, oldest first; damaged ones are passed over."""
    entries = [each for each in store.entries() if each.state == "ok"]
    found = []
    for entry in entries[-NEWEST_RUNS:]:
        with suppress(RecordError):
            facts = facts_of(explain(load(entry.path, entry.record)))
            found += [] if facts is None else [facts]
    return found


def read_plans(local_dir: Path) -> tuple[list[Plan], int]:
    """Return the predictions that were asked for, oldest first, and how many lines could not be read."""
    try:
        lines = (local_dir / PLANS_FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return [], 0
    plans, lost = [], 0
    for line in lines:
        try:
            data: Any = json.loads(line)
            plan = decode(Plan, data)
        except ValueError:
            lost += 1
        else:
            known = data.get("format") == PLANS_FORMAT
            plans += [plan] if known else []
            lost += not known
    return plans, lost


def keep_plan(local_dir: Path, prediction: Prediction, unix_s: float) -> None:
    """Append a prediction, so that later runs of the same work score it.

    Args:
        local_dir: `.lab/<lab>`; made if it is not there.
        prediction: What was foreseen.
        unix_s: Now, Unix time.

    Raises:
        ConfigError: The file cannot be written.
    """
    plan = Plan(unix_s, prediction.work, prediction.warm, prediction.wall)
    line = json.dumps({"format": PLANS_FORMAT, **encode(plan)}, sort_keys=True) + "\n"
    path = local_dir / PLANS_FILE
    try:
        local_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            expected="a file that labctl may append to",
            do="check its owner and mode",
        ) from error
