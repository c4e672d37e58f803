"""Print what the tensorflow role needs to know of a node, as JSON.

Arguments: directory and wanted stamp of uv's environment, the same of TensorFlow's. Each environment is reported
as "" when it is complete and of that stamp, else as the reason why it is not. It is run, and every file that its
packages list is looked at.
"""

import csv
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

STAMP = "complete"


def lacking(site: Path) -> str:
    """Return the first file of an installed package that is missing or of another size, "" if none is."""
    for record in sorted(site.glob("*.dist-info/RECORD")):
        with record.open(newline="", encoding="utf-8") as rows:
            for name, _, size in csv.reader(rows):
                if not size or name.endswith(".pyc"):
                    continue
                try:
                    found = (site / name).stat().st_size
                except OSError:
                    return name
                if found != int(size):
                    return name
    return ""


def environment_state(venv: Path, stamp: str) -> str:
    """Return "" for a complete environment with that stamp, else what is wrong with it."""
    if not venv.exists():
        return "absent"
    try:
        run = subprocess.run(
            [str(venv / "bin/python"), "-I", "-c", "import site; print(site.getsitepackages()[0])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "its Python does not run"
    stamped = venv / STAMP
    if not stamped.is_file():
        return "its installation did not end"
    if stamped.read_text(encoding="utf-8").strip() != stamp:
        return "made from other requirements"
    name = lacking(Path(run.stdout.strip()))
    return f"{name} is missing or damaged" if name else ""


def free_mb(path: str) -> int:
    """Return the free space, in MB, of the file system that a path is or would be on."""
    here = Path(path)
    while not here.exists():
        here = here.parent
    return shutil.disk_usage(here).free // 1_000_000


def cpu_flags() -> list[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return line.split(":", 1)[1].split()
    return []


def main() -> None:
    uv, uv_stamp, venv, venv_stamp = sys.argv[1:]
    print(
        json.dumps(
            {
                "python": "{}.{}".format(*sys.version_info[:2]),
                "glibc": platform.libc_ver()[1],
                "machine": platform.machine(),
                "cpu_flags": cpu_flags(),
                "free_mb": free_mb("/opt/labctl"),
                "uv": environment_state(Path(uv), uv_stamp),
                "venv": environment_state(Path(venv), venv_stamp),
            }
        )
    )


main()
