"""Put a scenario on a rehearsal machine, or into a directory of this one."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes import build
from tests.fakes.scenario import HOLDER, Scenario, load

if TYPE_CHECKING:
    from labctl.remote.base import Executor

TOOLS = Path(__file__).parent / "tools"
OF_DRIVER = ("nvidia-smi",)  # tools that come with the driver

# On a machine.
HOME = "/etc/labctl-fakes"
DRIVER_DIR = "/usr/local/lib/labctl-fakes"
TOOLKIT_DIR = "/usr/local/cuda/lib64"
HOLDER_UNIT = "labctl-fakes-holder.service"

_WITHIN_S = 60.0

# Arguments: mode of the device nodes, whether a holder is wanted, state of nvidia-persistenced, then the nodes.
_INSTALL = f"""
set -eu
mode=$1 holder=$2 persistenced=$3
shift 3
rm -rf {HOME} {DRIVER_DIR} {TOOLKIT_DIR} /run/labctl-fakes
find /usr/local/sbin /usr/local/bin -lname '{HOME}/*' -delete
rm -f /dev/nvidia*
systemctl stop {HOLDER_UNIT} 2>/dev/null || true
tar --extract --gzip --directory=/ --no-same-owner
install -d -m 1777 /run/labctl-fakes
for tool in {HOME}/tools/*; do
    ln -s "$tool" "/usr/local/sbin/${{tool##*/}}"
    ln -s "$tool" "/usr/local/bin/${{tool##*/}}"
done
ldconfig
for node in "$@"; do
    install -m "$mode" /dev/null "/dev/$node"
done
if [ "$holder" = yes ]; then
    systemd-run --quiet --collect --unit={HOLDER_UNIT} /usr/bin/python3 -c 'import time; time.sleep(86400)'
    pid=$(systemctl show --property=MainPID --value {HOLDER_UNIT})
    sed -i 's/"pid": "{HOLDER}"/"pid": '"$pid"'/' {HOME}/scenario.json
    sed -i 's/_pid={HOLDER}$/_pid='"$pid"'/' {HOME}/scenario.env
fi
unit=/etc/systemd/system/nvidia-persistenced.service
if [ "$persistenced" = absent ]; then
    if grep -q labctl-fakes "$unit" 2>/dev/null; then
        systemctl stop nvidia-persistenced.service
        rm -f "$unit"
        systemctl daemon-reload
    fi
else
    if ! [ -e "$unit" ]; then
        cp {HOME}/nvidia-persistenced.service "$unit"
        systemctl daemon-reload
    fi
    if [ "$persistenced" = active ]; then
        systemctl start nvidia-persistenced.service
    else
        systemctl stop nvidia-persistenced.service
    fi
fi
"""

_REMOVE = f"""
set -eu
systemctl stop {HOLDER_UNIT} 2>/dev/null || true
unit=/etc/systemd/system/nvidia-persistenced.service
if grep -q labctl-fakes "$unit" 2>/dev/null; then
    systemctl stop nvidia-persistenced.service
    rm -f "$unit"
    systemctl daemon-reload
fi
find /usr/local/sbin /usr/local/bin -lname '{HOME}/*' -delete
rm -rf {HOME} {DRIVER_DIR} /usr/local/cuda /run/labctl-fakes /etc/ld.so.conf.d/labctl-fakes.conf
rm -f /dev/nvidia*
ldconfig
"""

_PERSISTENCED = """\
# labctl-fakes
[Unit]
Description=Stands for nvidia-persistenced

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
"""


def on_machine(executor: Executor, scenario: Scenario | str) -> Scenario:
    """Make a rehearsal machine the one of a scenario; an earlier scenario on it is replaced.

    Takes about a second. The device nodes are files and go with a restart of the machine.

    Args:
        executor: The machine.
        scenario: A scenario, or the name of one.

    Returns:
        The scenario.
    """
    scenario = load(scenario) if isinstance(scenario, str) else scenario
    held = any(each.pid == HOLDER for gpu in scenario.gpus for each in gpu.processes)
    argv = ["sh", "-c", _INSTALL, "sh", scenario.device_nodes.mode, "yes" if held else "no"]
    argv += [scenario.driver.persistenced, *scenario.nodes]
    done = executor.run(argv, input=_archive(scenario), sudo=True, timeout_s=_WITHIN_S)
    done.check(executor.name, f"installing the fakes of {scenario.name}")
    return scenario


def remove(executor: Executor) -> None:
    """Remove all that `on_machine` has put on a machine."""
    done = executor.run(["sh", "-c", _REMOVE], sudo=True, timeout_s=_WITHIN_S)
    done.check(executor.name, "removing the fakes")


@dataclass(frozen=True)
class FakeDirectory:
    """Fakes in a directory of this machine.

    Attributes:
        root: The directory.
    """

    root: Path

    @property
    def toolkit_dir(self) -> Path:
        """Where the CUDA libraries are."""
        return self.root / "toolkit"

    def environment(self, base: dict[str, str] | None = None) -> dict[str, str]:
        """Return an environment whose programs and libraries are found here first.

        Args:
            base: What it is made from, this process's environment if None.
        """
        found = dict(os.environ if base is None else base)
        libraries = f"{self.root / 'driver'}{os.pathsep}{self.toolkit_dir}"
        return {
            **found,
            "LABCTL_FAKES_DIR": str(self.root),
            "PATH": f"{self.root / 'bin'}{os.pathsep}{found.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (libraries, found.get("LD_LIBRARY_PATH", "")))
            ),
        }


def in_directory(root: Path, scenario: Scenario | str, *, holder_pid: int = 4242) -> FakeDirectory:
    """Make a directory the machine of a scenario; an earlier scenario in it is replaced.

    Args:
        root: The directory; made if it does not exist.
        scenario: A scenario, or the name of one.
        holder_pid: Process id in the place of `holder`.
    """
    scenario = load(scenario) if isinstance(scenario, str) else scenario
    for name in ("bin", "driver", "toolkit", "dev", "state"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    (root / "scenario.json").write_text(
        _json(scenario).replace(f'"pid": "{HOLDER}"', f'"pid": {holder_pid}')
    )
    (root / "scenario.env").write_text(
        scenario.as_lines().replace(f"_pid={HOLDER}\n", f"_pid={holder_pid}\n")
    )
    for path in _tools(scenario):
        shutil.copy2(path, root / "bin" / path.name)
    for below, path in _libraries(scenario):
        shutil.copy2(path, root / below / path.name)
    for name in scenario.nodes:
        (root / "dev" / name).touch()
        (root / "dev" / name).chmod(int(scenario.device_nodes.mode, 8))
    return FakeDirectory(root)


def _json(scenario: Scenario) -> str:
    return json.dumps(scenario.as_data(), indent=2)


def _tools(scenario: Scenario) -> list[Path]:
    with_driver = bool(scenario.driver.version)
    return [
        path
        for path in sorted(TOOLS.iterdir())
        if path.is_file() and (with_driver or path.name not in OF_DRIVER)
    ]


def _libraries(scenario: Scenario) -> list[tuple[str, Path]]:
    folders = ("driver", "toolkit") if scenario.driver.version else ("toolkit",)
    return [
        (below, path)
        for below in folders
        for path in sorted((build.libraries() / below).iterdir())
        if path.name not in scenario.cuda.missing
    ]


def _archive(scenario: Scenario) -> bytes:
    places = {"driver": DRIVER_DIR, "toolkit": TOOLKIT_DIR}
    files = {
        f"{HOME}/scenario.json": (_json(scenario).encode(), 0o644),
        f"{HOME}/scenario.env": (scenario.as_lines().encode(), 0o644),
        f"{HOME}/nvidia-persistenced.service": (_PERSISTENCED.encode(), 0o644),
        "/etc/ld.so.conf.d/labctl-fakes.conf": (f"{DRIVER_DIR}\n{TOOLKIT_DIR}\n".encode(), 0o644),
    }
    files |= {f"{HOME}/tools/{path.name}": (path.read_bytes(), 0o755) for path in _tools(scenario)}
    files |= {
        f"{places[below]}/{path.name}": (path.read_bytes(), 0o755)
        for below, path in _libraries(scenario)
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
