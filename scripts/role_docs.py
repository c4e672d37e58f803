#!/usr/bin/env python3
"""Write the variable table of every role's README from its argument spec; --check only says which are stale."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parent.parent / "roles"
BEGIN = "<!-- variables: written by scripts/role_docs.py -->\n"
END = "<!-- end of variables -->\n"


def rows(options: dict[str, Any], prefix: str = "") -> list[str]:
    """Return one table row for each option; those of a dictionary follow it as `name[].key`."""
    lines = []
    for name, option in options.items():
        kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
        if option.get("required"):
            default = "required"
        elif "default" not in option:
            default = ""
        else:
            value = option["default"]
            default = f"`{value if isinstance(value, str) and value else json.dumps(value)}`"
        choices = (
            f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}."
            if "choices" in option
            else ""
        )
        cells = (f"`{prefix}{name}`", kind, default, option["description"] + choices)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
        lines += rows(option.get("options", {}), f"{prefix}{name}[].")
    return lines


def table(role: Path) -> str:
    """Return a role's variable table, markers included."""
    spec = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    head = ["| variable | type | default | what it means |", "| --- | --- | --- | --- |"]
    return BEGIN + "\n" + "\n".join(head + rows(spec["options"])) + "\n\n" + END


def with_table(text: str, fresh: str) -> str:
    """Return a README's text with its table replaced.

    Raises:
        ValueError: It has no markers.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN.strip()} ... {END.strip()}")
    return before + fresh + after


def main() -> int:
    """Write or check all READMEs; return 1 if one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if a table is stale"
    )
    check = parser.parse_args().check
    stale = []
    for role in sorted(path.parent.parent for path in ROLES.glob("*/meta/argument_specs.yml")):
        readme = role / "README.md"
        text = readme.read_text()
        fresh = with_table(text, table(role))
        if fresh != text:
            stale.append(readme)
            if not check:
                readme.write_text(fresh)
    for readme in stale:
        sys.stderr.write(
            f"{readme.relative_to(ROLES.parent)}: {'stale, run scripts/role_docs.py' if check else 'written'}\n"
        )
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
