"""Runs the playbooks of a cloud for a lab, and turns how they ended into answers or errors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from labctl.errors import ConfigError, DeadlineError, LabctlError, PlaybookError, three_parts
from labctl.lab.home import Home
from labctl.playbook import PlaybookOutcome
from labctl.providers.base import Report
from labctl.providers.cloud import answers
from labctl.providers.cloud.books import Books
from labctl.providers.cloud.catalogue import cloud
from labctl.providers.cloud.model import Found, Validated
from labctl.providers.cloud.wish import Wish

Verb = Literal["validate", "create", "find", "stop", "start", "destroy"]

TIMEOUTS_S: dict[Verb, float] = {
    "validate": 300,
    "create": 1800,
    "find": 300,
    "stop": 900,
    "start": 900,
    "destroy": 1800,
}
_ANSWERS: dict[Verb, str] = {
    "validate": "validate",
    "create": "create",
    "find": "find",
    "stop": "find",
    "start": "find",
    "destroy": "destroy",
}
_TELLS = frozenset({"create", "stop", "start", "destroy"})  # worth a line for each task


class Runner(Protocol):
    """Runs a playbook: Ansible, or a scripted cloud in a test."""

    def run(
        self, lab: str, playbook: str, inventory: Path, report: Report, timeout_s: float
    ) -> PlaybookOutcome:
        """Run `playbooks/cloud/<playbook>` and return how it ended; its answer is a file.

        Raises:
            UserInterruptError: The user interrupted it; it has ended.
        """
        ...


class AnsibleRunner:
    """Runs the real playbooks.

    Args:
        home: Where things are.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def run(
        self, lab: str, playbook: str, inventory: Path, report: Report, timeout_s: float
    ) -> PlaybookOutcome:
        from labctl.playbook import run_playbook

        return run_playbook(
            self._home,
            lab,
            f"playbooks/cloud/{playbook}",
            inventory=inventory,
            on_event=_teller(report),
            timeout_s=timeout_s,
            hide=secrets(playbook.partition("_")[0]),
        )


class Plays:
    """The playbooks of one lab.

    Args:
        books: Its files.
        wish: What it shall be; every variable of the playbooks follows from it.
        runner: Runs them.
        report: Progress.
    """

    def __init__(self, books: Books, wish: Wish, runner: Runner, report: Report) -> None:
        self._books = books
        self._wish = wish
        self._runner = runner
        self._report = report

    def validated(self) -> Validated:
        """Return what the cloud says of the wish.

        Raises:
            LabctlError: It could not be asked.
        """
        return answers.read_validated(self._run("validate"), self._wish.provider)

    def found(self, verb: Verb = "find", *, timeout_s: float | None = None) -> Found:
        """Run any other playbook and return what the cloud has of the lab then.

        Raises:
            LabctlError: The play failed, or its answer cannot be believed.
        """
        file = self._run(verb, timeout_s)
        found = answers.read_found(file, self._wish.provider)
        mine = [each.node for each in found.resources if each.kind == "machine" and not each.node]
        if mine:
            raise PlaybookError(
                f"a machine with the label of lab {self._wish.lab} has no label labctl-node",
                expected="machines as labctl makes them",
                do="look at it in the cloud's console, and remove it there or give it the label",
            )
        return found

    def _run(self, verb: Verb, timeout_s: float | None = None) -> Path:
        wish, limit_s = self._wish, timeout_s or TIMEOUTS_S[verb]
        self._books.write_plays(wish)
        answer = self._books.answer(_ANSWERS[verb])
        answer.unlink(missing_ok=True)
        outcome = self._runner.run(
            wish.lab,
            f"{wish.provider}_{verb}.yml",
            self._books.plays,
            self._report if verb in _TELLS else _silent,
            limit_s,
        )
        if outcome.timed_out:
            raise DeadlineError(
                f"{outcome.playbook} had not ended after {limit_s:g} s and was ended",
                expected=f"{wish.provider} to answer",
                do=f"see {outcome.log}; the same command again goes on where it stopped",
            )
        if outcome.rc != 0:
            raise failure(wish.provider, outcome)
        return answer


def failure(provider: str, outcome: PlaybookOutcome) -> LabctlError:
    """Return the error for a playbook that failed: its own three parts, completed by what is known of the cloud."""
    again = f"see {outcome.log}; the same command again goes on where it stopped"
    if not outcome.failures:
        said = _last_error(outcome.log)
        return PlaybookError(f"{outcome.playbook} ended with {outcome.rc}{said}", do=again)
    last = outcome.failures[-1]  # a play says what a failed task means in a task after it
    found, expected, do = three_parts(last.message)
    if expected is None:
        found = f"{outcome.playbook}, '{last.task}': {found}"
    for hint in cloud(provider).hints:
        if re.search(hint.words, last.message, re.IGNORECASE):
            kind = ConfigError if hint.local else PlaybookError
            return kind(found, expected=expected or hint.expected, do=do or hint.do)
    return PlaybookError(found, expected=expected, do=do or again)


def secrets(provider: str) -> list[str]:
    """Return the values of credentials in the environment, which nothing may show."""
    values = (os.environ.get(name) or "" for name in cloud(provider).secrets)
    return sorted((each for each in values if len(each) >= 8), key=len, reverse=True)


def _teller(report: Report) -> Callable[[Mapping[str, Any]], None]:
    """Return what tells each task's name once, as it begins."""
    told = ""

    def tell(event: Mapping[str, Any]) -> None:
        nonlocal told
        data = event.get("event_data")
        if event.get("event") != "playbook_on_task_start" or not isinstance(data, dict):
            return
        task = str(data.get("task") or "")
        if task and task != told:
            told = task
            report(f"  {task}")

    return tell


def _silent(_: str) -> None:
    pass


def _last_error(log: Path) -> str:
    """Return the last error that Ansible printed before any task ran, with a colon before it."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in lines]
    found = [line for line in said if "ERROR" in line]
    return f": {found[-1]}" if found else ""
