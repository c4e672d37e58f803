"""Print what stands between apt and an install, as JSON; with --wait SECONDS, first wait for its locks.

Keys: held_by (who holds a lock, "" for nobody), waited_s, interrupted (dpkg was stopped in mid-work), missing
(those of the named packages that are not installed), python_apt.
"""

import argparse
import fcntl
import importlib.util
import json
import os
import struct
import subprocess
import time
from pathlib import Path

# apt and dpkg take fcntl locks on these; `flock` does not see them.
LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
FLOCK = "@hhqqi4x"  # l_type, l_whence, l_start, l_len, l_pid


def holder(path: str) -> str:
    """Return who holds a lock file, "" for nobody."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return ""
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    if kind == fcntl.F_UNLCK:
        return ""
    try:
        command = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
        )
    except OSError:
        command = ""
    return f"{path} by process {pid} ({command.strip()[:120] or 'not visible'})"


def holders() -> str:
    return "; ".join(filter(None, map(holder, LOCKS)))


def interrupted() -> bool:
    """Return whether dpkg would refuse to work until it is configured."""
    updates = Path("/var/lib/dpkg/updates")
    return updates.is_dir() and any(entry.name.isdigit() for entry in updates.iterdir())


def missing(packages: list[str]) -> list[str]:
    """Return those packages that are not installed, in the given order."""
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *packages],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    installed = {
        line.split()[1] for line in shown.stdout.splitlines() if line.startswith("installed ")
    }
    return [package for package in packages if package not in installed]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", type=float, default=0)
    parser.add_argument("packages", nargs="*")
    args = parser.parse_args()
    began = time.monotonic()
    held_by = holders()
    while held_by and time.monotonic() - began < args.wait:
        time.sleep(1)
        held_by = holders()
    print(
        json.dumps(
            {
                "held_by": held_by,
                "waited_s": round(time.monotonic() - began),
                "interrupted": interrupted(),
                "missing": missing(args.packages),
                "python_apt": importlib.util.find_spec("apt") is not None,
            }
        )
    )


main()
