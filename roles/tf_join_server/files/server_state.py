"""Print the state of the join server and who holds a port, as JSON. Argument: the port.

Keys: unit_exists, active (systemd's ActiveState), fingerprint (in the running server's environment, "" when none
runs), older_than_files (the running server began before one of `READ_AT_START` was written), holder (a process
outside the lab that listens on the port, "" for none).
"""

import json
import subprocess
import sys
import time
from pathlib import Path

# What a running server has read once.
READ_AT_START = ("/opt/labctl/venv/complete", "/etc/labctl/cuda.env")
UNIT = "tf-join-server.service"
LAB_UNITS = (UNIT, "labctl-run.service", "labctl-check-listener.service")
LISTEN = "0A"


def unit_properties() -> dict[str, str]:
    shown = subprocess.run(
        [
            "systemctl",
            "show",
            UNIT,
            "--property=LoadState,ActiveState,MainPID,ExecMainStartTimestampMonotonic",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in shown.stdout.splitlines())


def fingerprint(pid: str) -> str:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    mark = b"TF_JOIN_SERVER_FINGERPRINT="
    return next(
        (entry[len(mark) :].decode() for entry in environment if entry.startswith(mark)), ""
    )


def older_than_files(started_us: int) -> bool:
    """Return whether a moment on the monotonic clock lies before one of `READ_AT_START` was written."""
    started = time.time() - (time.monotonic() - started_us / 1e6)
    for path in READ_AT_START:
        try:
            if started < Path(path).stat().st_mtime:
                return True
        except OSError:
            continue
    return False


def listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(fields[9])
    return inodes


def listeners(port: int) -> list[int]:
    """Return the ids of the processes that listen on a TCP port."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted and any(str(fd.readlink()) in wanted for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:
            continue
    return sorted(found)


def stranger(pid: int) -> str:
    """Return what a process is, "" for one of the lab's own units."""
    try:
        cgroup = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
        command = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
            .strip()
        )
    except OSError:
        return ""
    return "" if any(unit in cgroup for unit in LAB_UNITS) else f"process {pid} ({command[:120]})"


def main() -> None:
    port = int(sys.argv[1])
    unit = unit_properties()
    print(
        json.dumps(
            {
                "unit_exists": unit["LoadState"] != "not-found",
                "active": unit["ActiveState"],
                "fingerprint": fingerprint(unit["MainPID"]),
                "older_than_files": older_than_files(
                    int(unit.get("ExecMainStartTimestampMonotonic") or 0)
                ),
                "holder": ", ".join(filter(None, map(stranger, listeners(port)))),
            }
        )
    )


main()
