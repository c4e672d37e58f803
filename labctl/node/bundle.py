"""The payload as one zip file. Runs on the operator's machine, not on a node."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

PACKAGE = "labctl_node"

_HERE = Path(__file__).resolve().parent
_LAUNCHER = "launch.py"
_NOT_ON_NODES = frozenset({_LAUNCHER, Path(__file__).name})


def payload_files() -> dict[str, bytes]:
    """Return the payload's files by their path in it, sorted: `__main__.py` and the package beside it."""
    files = {"__main__.py": (_HERE / _LAUNCHER).read_bytes()}
    for path in _HERE.rglob("*.py"):
        name = path.relative_to(_HERE).as_posix()
        if name not in _NOT_ON_NODES:
            files[f"{PACKAGE}/{name}"] = path.read_bytes()
    return dict(sorted(files.items()))


def payload_bytes() -> bytes:
    """Return the payload as a zip file that Python runs; the same sources give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in payload_files().items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix, on every platform
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()
