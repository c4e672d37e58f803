"""`labctl answer`: the question's experiment once more, and what it says of each claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption


def answer(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repeats and a shorter sweep: about a minute.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write it as Markdown too."),
    ] = None,
    from_round: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TAG",
            help="Run nothing: the stored round of this tag, a unique beginning of it, or `last`.",
        ),
    ] = None,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Run the question's experiment and test each claim of its answer."""
    import time

    from labctl.console import out, out_json, say
    from labctl.drive.answer import find_round, read_answer, run_round
    from labctl.errors import RemoteCommandError, UsageError
    from labctl.lab.home import Home
    from labctl.runs.atomic import cannot_write, check_output, write_text
    from labctl.runs.store import RunStore
    from labctl.views.answer import answer_lines, answer_markdown, answer_object
    from labctl.views.progress import make_progress

    if write is not None:
        check_output(write)
        if not write.absolute().parent.is_dir():
            raise UsageError(
                f"--write {write}: there is no directory {write.absolute().parent}",
                expected="a file in a directory that exists",
                do="make it, or name another file",
            )
    if quick and from_round is not None:
        raise UsageError("--quick is given with --from, which runs nothing")
    home = Home.find()
    name = home.choose(lab)
    tag = from_round
    if tag is None:
        progress = make_progress(show_output=False)
        try:
            tag = run_round(home, name, quick=quick, unix_s=time.time(), observer=progress)
        finally:
            progress.close()
    tag, runs = find_round(RunStore(home.local_dir(name)), tag)
    found = read_answer(tag, runs)
    if write is not None:
        check_output(write)
        try:
            write_text(write, answer_markdown(found))
        except OSError as error:
            raise cannot_write(write, error) from error
        say(f"written {write}")
    if json:
        out_json(answer_object(found))
    else:
        out("\n".join(answer_lines(found)))
    without = [each for each in found.failed if each[0] not in found.runs]
    if without:
        label, run_id, outcome = without[0]
        raise RemoteCommandError(
            f"no run of {label} ended ok; {run_id} ended {outcome}",
            expected="at least one of each variant",
            do=f"labctl why {run_id}",
        )
    return 0
