"""The only place that prints an error and exits."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback

from labctl.console import say
from labctl.errors import ConfigError, LabctlError

EXIT_BUG = 70
EXIT_INTERRUPTED = 130
_MACHINE_SAYS_NO = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


def main(argv: list[str] | None = None) -> None:
    """Run labctl and exit with the code of `labctl.errors`."""
    sys.exit(run(argv))


def run(argv: list[str] | None = None) -> int:
    """Run one labctl command line and return its exit code; messages go to stderr."""
    import typer.exceptions

    from labctl.cli import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no bug

    try:
        value = typer.main.get_command(app).main(
            args=argv, prog_name="labctl", standalone_mode=False
        )
    except (typer.exceptions.Abort, KeyboardInterrupt):
        say("labctl: interrupted")
        return EXIT_INTERRUPTED
    except typer.exceptions.TyperException as error:
        say(
            f"labctl: {error.format_message()}\n  do        labctl --help, or labctl COMMAND --help"
        )
        return error.exit_code
    except BrokenPipeError:
        # The reader of a pipe went away (`labctl runs list | head`): nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except LabctlError as error:
        _print_traceback_on_debug()
        say(f"labctl: {error}")
        return error.exit_code
    except OSError as error:
        if error.errno not in _MACHINE_SAYS_NO:
            return _bug(error)
        _print_traceback_on_debug()
        where = error.filename or "where labctl writes: LABCTL_HOME, or standard output"
        say(
            f"labctl: {error.strerror}: {where}\n"
            "  do        make room, or give this user the right to it; then labctl attach last goes on with a run"
        )
        return ConfigError.exit_code
    except Exception as error:  # noqa: BLE001 the last resort: a bug is said, not thrown at the user
        return _bug(error)
    return value if isinstance(value, int) else 0


def _bug(error: Exception) -> int:
    _print_traceback_on_debug()
    say(
        f"labctl: a bug in labctl: {type(error).__name__}: {error}\n"
        "  do        run it again with --debug and report what it prints"
    )
    return EXIT_BUG


def _print_traceback_on_debug() -> None:
    if os.environ.get("LABCTL_DEBUG") == "1":
        traceback.print_exc()


if __name__ == "__main__":
    main()
