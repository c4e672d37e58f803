"""Write docs/cli.md from the commands' own help; with --check say whether it is fresh."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from labctl.cli import app

TARGET = Path(__file__).resolve().parent.parent / "docs/cli.md"
HEAD = """# Commands

Generated from `labctl --help` by `make docs`. What each command promises (files, JSON, exit codes) is in
[results-format.md](results-format.md).

| exit code | meaning |
| --- | --- |
| 0 | ok |
| 1 | a check or comparison says no, or the result is wrong |
| 2 | usage |
| 3 | configuration or inventory |
| 4 | host unreachable, host key, or a TensorFlow port that does not answer |
| 5 | remote command or run failed |
| 6 | deadline passed |
| 7 | playbook failed |
| 8 | run record missing, damaged or too new |
| 9 | the lab is busy |
| 70 | bug in labctl |
| 130 | interrupted |
"""


def sections(command: Any, name: str, parent: Any = None) -> list[str]:
    """Return the help of a command and of all below it, as Markdown sections."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    context.info_name = name
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines()).strip()
    found = [f"## {name}\n\n```text\n{text}\n```\n"]
    for child_name, child in getattr(command, "commands", {}).items():
        found += sections(child, f"{name} {child_name}")
    return found


def render() -> str:
    """Return the whole page."""
    return HEAD + "\n" + "\n".join(sections(typer.main.get_command(app), "labctl"))


def main() -> int:
    """Write the page, or compare it when asked to."""
    text = render()
    if "--check" not in sys.argv:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{TARGET.name} is stale: make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
