from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from labctl import __main__, errors
from labctl.cli import app


@pytest.fixture
def raising() -> Iterator[list[BaseException]]:
    """A command `boom` that raises what the test puts into the list."""
    box: list[BaseException] = []

    @app.command("boom")
    def boom() -> None:
        raise box[0]

    yield box
    app.registered_commands = [each for each in app.registered_commands if each.name != "boom"]


def all_errors() -> list[type[errors.LabctlError]]:
    def below(cls: type[errors.LabctlError]) -> list[type[errors.LabctlError]]:
        return [cls, *(each for child in cls.__subclasses__() for each in below(child))]

    return [cls for cls in below(errors.LabctlError) if cls.__module__.startswith("labctl.")]


@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.__name__)
def test_each_error_has_its_exit_code_and_no_traceback(
    cls: type[errors.LabctlError],
    raising: list[BaseException],
    capsys: pytest.CaptureFixture[str],
) -> None:
    raising.append(cls("found it", expected="that", do="this"))
    assert __main__.run(["boom"]) == cls.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "labctl: found it\n  expected  that\n  do        this\n"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    text = errors.__doc__ or ""
    for cls in all_errors():
        line = next(line for line in text.splitlines() if cls.__name__ in line.split())
        assert str(cls.exit_code) in line.split(), line


def test_a_bug_is_said_with_70(
    raising: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    raising.append(ZeroDivisionError("x"))
    assert __main__.run(["boom"]) == 70
    assert "Traceback" not in capsys.readouterr().err


def test_debug_adds_the_traceback(
    raising: list[BaseException],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LABCTL_DEBUG", "1")
    raising.append(errors.ConfigError("x"))
    assert __main__.run(["boom"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_is_130(raising: list[BaseException]) -> None:
    raising.append(KeyboardInterrupt())
    assert __main__.run(["boom"]) == 130


@pytest.mark.parametrize("argv", [["nosuch"], ["run", "--nosuch"], ["use"]])
def test_usage_errors_are_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.run(argv) == 2
    assert capsys.readouterr().err.startswith("labctl: ")


def test_an_unknown_lab_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.run(["use", "nosuch"]) == 3
    assert "no lab 'nosuch'" in capsys.readouterr().err


def test_a_message_is_three_lines_and_drives_no_terminal(
    raising: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    raising.append(errors.RemoteCommandError("boom \x1b[31m red\nand\r\nmore", do="a\nb"))
    assert __main__.run(["boom"]) == 5
    assert capsys.readouterr().err == "labctl: boom \\x1b[31m red and more\n  do        a b\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_full_or_closed_disk_is_no_bug(
    number: int, raising: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    raising.append(OSError(number, os.strerror(number), "/labs/x"))
    assert __main__.run(["boom"]) == 3
    assert f"{os.strerror(number)}: /labs/x" in capsys.readouterr().err


def commands() -> list[tuple[str, typer.core.TyperCommand]]:
    def below(name: str, command: Any) -> list[tuple[str, Any]]:
        children = getattr(command, "commands", {})
        if not children:
            return [(name, command)]
        return [each for key, child in children.items() for each in below(f"{name} {key}", child)]

    return below("labctl", typer.main.get_command(app))


@pytest.mark.parametrize(("name", "command"), commands(), ids=str)
def test_every_command_has_help_and_the_common_options(name: str, command: Any) -> None:
    assert command.help
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--debug"} <= options
    if name not in {"labctl labs", "labctl use"}:
        assert "--lab" in options
