"""The machines behind a cloud's answers: rehearsal machines that become what the cloud was asked for.

moto keeps the books and starts nothing. Here a rehearsal machine takes the private address of a new instance, and
does with its user data what cloud-init does on a first boot.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import yaml

if TYPE_CHECKING:
    from labctl.remote.base import Executor


class Books(Protocol):
    """A cloud that keeps the books of machines and starts none."""

    def machines(self) -> dict[str, dict[str, Any]]:
        """Return the machines by node, each with State and PrivateIpAddress as EC2 has them."""
        ...

    def user_data(self, node: str) -> str:
        """Return what cloud-init of a node would read."""
        ...


_POLL_S = 1.0
_WITHIN_S = 60.0

# As root, with JSON on stdin. The address comes last and from a unit of its own: it cuts this very login.
_FIRST_BOOT = r"""
import glob, json, os, re, subprocess, sys
told = json.load(sys.stdin)
data = told["user_data"]
subprocess.run(["hostname", data["hostname"]], check=True)
with open("/etc/hostname", "w") as file:
    file.write(data["hostname"] + "\n")
if data.get("ssh_deletekeys"):
    for old in glob.glob("/etc/ssh/ssh_host_*key*"):
        os.unlink(old)
for name, text in data["ssh_keys"].items():
    kind, part = name.split("_")
    path = f"/etc/ssh/ssh_host_{kind}_key" + (".pub" if part == "public" else "")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600 if part == "private" else 0o644), "w") as file:
        file.write(text.rstrip() + "\n")
home = os.path.expanduser("~" + told["user"])
with open(home + "/.ssh/authorized_keys", "w") as file:
    file.write("\n".join(data["ssh_authorized_keys"]) + "\n")
network = "/etc/systemd/network/10-labctl.network"
with open(network) as file:
    text = re.sub(r"(?m)^Address=[0-9.]+/", "Address=" + told["address"] + "/", file.read())
with open(network, "w") as file:
    file.write(text)
for command in data.get("bootcmd", []) + data.get("runcmd", []):
    subprocess.run(command, check=True)
subprocess.run(["systemd-run", "--quiet", "--collect", "sh", "-c",
    "sleep 1; ip address flush dev host0; systemctl restart systemd-networkd ssh"], check=True)
"""


def first_boot(executor: Executor, user: str, user_data: Mapping[str, Any], address: str) -> None:
    """Make a rehearsal machine the instance that user data describes; it answers at another address then.

    Args:
        executor: The machine as it is.
        user: The image's login user.
        user_data: A cloud-config.
        address: The private address that the cloud gave it.
    """
    told = json.dumps({"user": user, "user_data": dict(user_data), "address": address})
    done = executor.run(
        ["python3", "-c", _FIRST_BOOT], sudo=True, input=told.encode(), timeout_s=_WITHIN_S
    )
    done.check(executor.name, f"the first boot of {shlex.quote(str(user_data['hostname']))}")


@contextmanager
def boots(cloud: Books, machines: Mapping[str, Executor], user: str) -> Iterator[list[str]]:
    """Boot each new instance on the rehearsal machine of its node, in the background.

    Args:
        cloud: Is asked for instances.
        machines: Rehearsal machines by node name.
        user: Login user.

    Yields:
        What was booted so far, and why something was not; ends with the context.
    """
    booted: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        waiting = dict(machines)
        while waiting and not ended.wait(_POLL_S):
            for node, machine in cloud.machines().items():
                if node not in waiting or machine["State"]["Name"] != "running":
                    continue
                executor = waiting.pop(node)
                try:
                    data = yaml.safe_load(cloud.user_data(node))
                    first_boot(executor, user, data, machine["PrivateIpAddress"])
                except Exception as error:  # noqa: BLE001 told to the test
                    booted.append(f"{node}: {error}")
                else:
                    booted.append(f"{node} at {machine['PrivateIpAddress']}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield booted
    finally:
        ended.set()
        thread.join(timeout=_WITHIN_S)
