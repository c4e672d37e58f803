"""`labctl why`: the causes of a run's time or of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption, RecordArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labctl.analysis.causes.model import Verdict
    from labctl.runs.store import Entry


def why(
    *,
    run: RecordArgument = "last",
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Run the pairs of settings that confirm or refute each found cause, and keep what they say.",
        ),
    ] = False,
    causes: Annotated[
        list[str] | None,
        typer.Option(
            "--cause",
            metavar="ID",
            help="With --prove: this cause, whatever its verdict; may be repeated.",
        ),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --prove: runs of each setting. [default: 3]"),
    ] = None,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Say why a run was slow, failed or hung: each cause with its evidence, its price and its remedy."""
    from labctl.analysis.causes.rules import judge_all
    from labctl.cli.explaining import explained_of
    from labctl.console import out, out_json, say
    from labctl.drive.prove import read_proofs, with_proofs
    from labctl.errors import UsageError
    from labctl.views.why import why_lines, why_object

    if not prove and (causes or repeat is not None):
        raise UsageError(f"{'--cause' if causes else '--repeat'} is given without --prove")
    entry = find_record(lab, run)
    explained = explained_of(entry)
    verdicts = judge_all(explained)
    if prove:
        _prove(entry, verdicts, causes or (), repeat)
    proofs, problem = read_proofs(entry.path.parent.parent, entry.run_id)
    if problem:
        say(problem)
    verdicts = with_proofs(verdicts, proofs)
    if json:
        out_json(why_object(verdicts))
    else:
        out("\n".join(why_lines(explained, verdicts, state=entry.state, name=run)))
    return 0


def _prove(
    entry: Entry, verdicts: Sequence[Verdict], causes: Sequence[str], repeat: int | None
) -> None:
    """Run the pairs of a run on its own lab and say what came of each."""
    from labctl.console import say
    from labctl.drive.prove import LEAST_REPEATS
    from labctl.drive.prove import prove as do_prove
    from labctl.lab.home import Home
    from labctl.views.progress import make_progress
    from labctl.views.prove import prove_lines

    progress = make_progress(show_output=False)
    try:
        tried = do_prove(
            Home.find(),
            entry.readable().lab,
            entry,
            verdicts,
            causes=causes,
            repeats=LEAST_REPEATS if repeat is None else repeat,
            observer=progress,
        )
    finally:
        progress.close()
    say("\n".join(prove_lines(tried)))


def find_record(lab: str | None, run: str) -> Entry:
    """Return a run of the store, or the record in a directory that is given by its path.

    Args:
        lab: The lab, None for the active one; a path needs none.
        run: Id, unique prefix, `last`, or a path: a text with a slash, `.` or `..`.

    Raises:
        ConfigError: There is no such lab.
        RecordError: There is no such run, or it cannot be read.
    """
    from labctl.cli.runs import store_of

    is_path = "/" in run or run in {".", ".."}
    return _record_at(run) if is_path else store_of(lab).find(run)


def _record_at(place: str) -> Entry:
    """Return the record in a directory.

    Raises:
        RecordError: There is none, or it cannot be read.
    """
    from pathlib import Path

    from labctl.errors import RecordError
    from labctl.runs.record import RUN_FILE, read_record
    from labctl.runs.store import Entry

    try:
        path = Path(place).resolve(strict=True)
        names = {each.name for each in path.iterdir()}
    except (OSError, RuntimeError) as error:  # a ring of links is a RuntimeError
        why = error.strerror if isinstance(error, OSError) else "a ring of symbolic links"
        raise RecordError(
            f"{place} cannot be read: {why}",
            expected=f"a record's directory, which holds {RUN_FILE}",
            do="check the path; of an exported run, unpack the file first: tar xzf FILE",
        ) from error
    if RUN_FILE not in names:
        raise RecordError(
            f"{place} holds no {RUN_FILE}",
            expected="a record's directory",
            do="name the directory whose name is the run's id",
        )
    record = read_record(path, do="copy it once more from where it was made")
    return Entry(path.name, path, record)
