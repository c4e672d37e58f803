"""Commands on this machine, and what it must have before labctl makes machines on it."""

from __future__ import annotations

import os
import shutil

from labctl.errors import ConfigError, MissingHostPackagesError
from labctl.lab.model import LOOPBACK
from labctl.remote.base import Result
from labctl.remote.local import LocalExecutor

HERE = "this machine"

# Program: Debian and Ubuntu package. scripts/host_packages.sh installs the same ones.
PROGRAMS = {
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "systemd-nspawn": "systemd-container",
    "taskset": "util-linux",
}

# A user's PATH often lacks the directories of ip and nft.
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def try_run(argv: list[str], *, timeout_s: float = 30, stdin: str = "") -> Result:
    """Run a command on this machine; how it ended is the caller's to judge.

    Raises:
        DeadlineError: It did not end in time.
    """
    return LocalExecutor(HERE).run(
        argv, timeout_s=timeout_s, input=stdin.encode(), env={"PATH": PATH, "LC_ALL": "C.UTF-8"}
    )


def run(argv: list[str], what: str, *, timeout_s: float = 30, stdin: str = "") -> Result:
    """Run a command on this machine that has to succeed; `what` names it in the error.

    Raises:
        DeadlineError: It did not end in time.
        RemoteCommandError: It failed.
    """
    return try_run(argv, timeout_s=timeout_s, stdin=stdin).check(HERE, what)


def require_root() -> None:
    """Check that this process may make machines.

    Raises:
        ConfigError: It is not root.
    """
    if os.geteuid() != 0:
        raise ConfigError(
            "rehearsal machines need root, this is uid " + str(os.geteuid()),
            expected="root: bridges, mounts and systemd-nspawn are root's",
            do=f"sudo labctl …, or --lab {LOOPBACK} for two processes without machines",
        )


def require_programs() -> None:
    """Check that all programs are installed.

    Raises:
        MissingHostPackagesError: Some are not; the message has the command that installs them.
    """
    missing = sorted(program for program in PROGRAMS if shutil.which(program, path=PATH) is None)
    if missing:
        packages = " ".join(sorted({PROGRAMS[program] for program in missing}))
        raise MissingHostPackagesError(
            f"missing on this host: {', '.join(missing)}",
            expected=f"the packages {packages}",
            do=f"apt-get install {packages} (as root), or make demo, which does it",
        )
