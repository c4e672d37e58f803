"""Tell what a node has of NVIDIA: devices on the PCI bus, driver, kernel, Secure Boot, packages. Changes nothing.

Prints one JSON object. Standard library only; tools are called by their bare names, since some machines keep theirs
below /usr/local.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

VENDOR = "10de"
PCI = Path("/sys/bus/pci/devices")
SECURE_BOOT = Path("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
SHOW = ("systemctl", "show", "--value", "--property")
PERSISTENCED = "nvidia-persistenced.service"
# One row of `lspci -Dnmm`: address "class" "vendor" "device" ...
ROW = re.compile(r'^(\S+) "([0-9a-f]{4})" "([0-9a-f]{4})" "([0-9a-f]{4})"', re.MULTILINE)
OWN_PACKAGES = re.compile(r"^(.*nvidia.*|libcuda1|cuda-drivers.*|cuda-compat-.*|libcudadebugger1)$")
# Made for containers; no part of the driver.
OTHERS = re.compile(r"^(nvidia-container-.*|libnvidia-container.*|nvidia-cuda-.*|nvidia-cudnn.*)$")


def output(*argv: str) -> tuple[int | None, str]:
    """Return a program's status and what it printed; None where it cannot be run."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


def devices() -> list[dict[str, str]]:
    """Return display controllers of NVIDIA (classes 03xx) with their address and device id, hex."""
    if shutil.which("lspci"):
        status, text = output("lspci", "-Dnmm", "-d", f"{VENDOR}:")
        if status == 0:
            rows = [match.groups() for match in ROW.finditer(text)]
            return [
                {"address": address, "class": kind, "id": device}
                for address, kind, vendor, device in rows
                if vendor == VENDOR and kind.startswith("03")
            ]
    found = []
    for folder in sorted(PCI.glob("*")):
        try:
            kind, vendor, device = (
                (folder / name).read_text().strip()[2:] for name in ("class", "vendor", "device")
            )
        except OSError:
            continue
        if vendor == VENDOR and kind.startswith("03"):
            found.append({"address": folder.name, "class": kind[:4], "id": device})
    return found


def secure_boot() -> str:
    """Return `enabled`, `disabled`, or `none` for a machine without UEFI."""
    status, text = output("mokutil", "--sb-state")
    if status is not None:
        found = re.search(r"SecureBoot (enabled|disabled)", text)
        return found[1] if found else "none"
    try:
        return "enabled" if SECURE_BOOT.read_bytes()[4:5] == b"\x01" else "disabled"
    except OSError:
        return "none"


def modules() -> list[str]:
    """Return the loaded kernel modules that may hold the device."""
    status, text = output("lsmod")
    if status != 0:
        try:
            text = Path("/proc/modules").read_text()
        except OSError:
            text = ""
    names = {row.split()[0] for row in text.splitlines() if row.split()}
    return sorted(names & {"nouveau", "nova_core", "nova_drm", "nvidia"})


def driver() -> dict[str, Any]:
    """Return whether the driver answers, its version, and what nvidia-smi said otherwise."""
    status, text = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    version = re.match(r"[0-9]+(\.[0-9]+)+", text)
    if status == 0 and version:
        return {"answers": True, "version": version[0], "said": ""}
    said = text.splitlines()[0] if status is not None and text else ""
    return {"answers": False, "version": "", "said": said, "tool": status is not None}


def packages() -> dict[str, dict[str, Any]]:
    """Return the installed packages of the driver: version, and whether they are held."""
    _, text = output(
        "dpkg-query",
        "--show",
        "--showformat=${db:Status-Abbrev}\t${Package}\t${Version}\t${db:Status-Want}\n",
    )
    found = {}
    for row in text.splitlines():
        state, _, rest = row.partition("\t")
        name, _, rest = rest.partition("\t")
        version, _, want = rest.partition("\t")
        if state[1:2] == "i" and OWN_PACKAGES.match(name) and not OTHERS.match(name):
            found[name] = {"version": version, "held": want == "hold"}
    return found


def kernels() -> list[str]:
    """Return the kernels that are installed, as packages."""
    _, text = output(
        "dpkg-query",
        "--show",
        "--showformat=${db:Status-Abbrev}\t${Package}\n",
        "linux-image-[0-9]*",
    )
    return sorted(row.split("\t")[1] for row in text.splitlines() if row[1:2] == "i")


def main() -> None:
    """Print the node's state."""
    _, release = output("uname", "-r")
    status, container = output("systemd-detect-virt", "--container")
    _, architecture = output("dpkg", "--print-architecture")
    print(
        json.dumps(
            {
                "devices": devices(),
                "kernel": release,
                "kernels": kernels(),
                "container": container if status == 0 else "",
                "architecture": architecture,
                "secure_boot": secure_boot(),
                "modules": modules(),
                "driver": driver(),
                "packages": packages(),
                "persistenced": output(*SHOW, "FragmentPath", PERSISTENCED)[1],
                "run": output(*SHOW, "ActiveState", "labctl-run.service")[1],
                "reboot_asked": Path("/run/reboot-required").exists(),
                "blacklisted": Path("/etc/modprobe.d/lab-nvidia-driver.conf").exists(),
            }
        )
    )


if __name__ == "__main__":
    main()
