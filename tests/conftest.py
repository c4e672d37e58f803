"""Order of the levels, and the rehearsal lab that the tests on machines share."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from labctl.lab.model import Lab
    from labctl.remote.base import Executor

CHECKOUT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
# One fixed place, so that a later run finds and clears what a broken-off one left.
LAB_ROOT = Path(os.environ.get("LABCTL_TEST_ROOT", "/var/tmp/labctl-tests"))  # noqa: S108 root-only, 0700
LAB_NAME = "pytest"
LEVELS = ("unit", "contract", "integration", "roles", "e2e")


# These machines are shared and noisy: how long an example takes says nothing of the code.
settings.register_profile("labctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("labctl")


def pytest_configure() -> None:
    """Take SIGINT back: started in the background of a script, it would be ignored here and in every child."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the levels from fast to slow, and mark the tests on machines."""

    def level(item: pytest.Item) -> int:
        folder = item.path.relative_to(CHECKOUT / "tests").parts[0]
        return LEVELS.index(folder) if folder in LEVELS else len(LEVELS)

    items.sort(key=level)
    for item in items:
        if level(item) == LEVELS.index("e2e"):
            item.add_marker(pytest.mark.e2e)
        elif level(item) == LEVELS.index("integration"):
            item.add_marker(pytest.mark.integration)


@dataclass(frozen=True)
class RehearsalLab:
    """The machines that tests may use, and the commands a user has.

    Attributes:
        root: LABCTL_HOME: a copy of the checkout's content with this lab's inventory.
        name: The lab's name.
    """

    root: Path
    name: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LABCTL_HOME": str(self.root),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def labctl(
        self,
        *args: str,
        timeout_s: float = 300,
        check: bool = False,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run labctl on this lab (name the lab yourself for another one)."""
        return self._run([str(BIN / "labctl"), *args], timeout_s=timeout_s, check=check, env=env)

    def labctl_json(self, *args: str, timeout_s: float = 300) -> Any:
        """Run labctl with --json and return the document; its exit code is not looked at."""
        done = self.labctl(*args, "--json", timeout_s=timeout_s)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def playbook(
        self, name: str, *args: str, timeout_s: float = 900, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run `ansible-playbook NAME ARGS` verbatim in the root."""
        return self._run(
            [str(BIN / "ansible-playbook"), name, *args], timeout_s=timeout_s, check=check
        )

    def ssh(
        self, node: str, argv: Sequence[str], *, timeout_s: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell-quoted command on a node with OpenSSH, as a user would."""
        target = self.lab.node(node).ssh
        assert target is not None
        import shlex

        return self._run(
            [
                "ssh",
                "-o",
                "BatchMode=yes",
                *target.options,
                "-i",
                str(target.key_file),
                f"{target.user}@{target.host}",
                shlex.join(argv),
            ],
            timeout_s=timeout_s,
            check=check,
        )

    def open(self, node: str) -> Executor:
        """Return a new executor for a node; close it yourself."""
        from labctl.remote.connect import open_executor

        return open_executor(self.lab.node(node), self.lab)

    @cached_property
    def lab(self) -> Lab:
        from labctl.lab.home import Home
        from labctl.playbook import load_lab

        return load_lab(Home(self.root), self.name)

    def _run(
        self,
        argv: list[str],
        *,
        timeout_s: float,
        check: bool,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            argv,
            cwd=self.root,
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(
                f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
            )
        return done


def machines_refused() -> str | None:
    """Return why no rehearsal machine can be made here, None when they can."""
    if os.geteuid() != 0:
        return "rehearsal machines need root"
    missing = [
        tool
        for tool in ("systemd-nspawn", "mmdebstrap", "nft", "ip", "ssh")
        if not shutil.which(tool)
    ]
    if missing:
        return f"not installed: {', '.join(missing)} (make host-packages)"
    return None


def copy_content(root: Path) -> None:
    """Copy what a user's checkout has into a root of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    ).stdout
    for name in listed.decode().split("\0"):
        source = CHECKOUT / name
        if not name or not (source.is_file() or source.is_symlink()):
            continue
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


@pytest.fixture(scope="session")
def bare_lab() -> Iterator[RehearsalLab]:
    """Two machines that nothing was provisioned on when the tests began; removed at its end."""
    refused = machines_refused()
    if refused is not None:
        pytest.skip(refused)
    LAB_ROOT.mkdir(mode=0o700, exist_ok=True)
    with (LAB_ROOT.parent / f"{LAB_ROOT.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.fail("another test run holds the test lab on this machine")
        lab = RehearsalLab(LAB_ROOT, LAB_NAME)
        clear_lab_root(lab)
        copy_content(LAB_ROOT)
        try:
            lab.labctl("up", "--lab", LAB_NAME, "--nodes", "2", timeout_s=900, check=True)
            lab.labctl("use", LAB_NAME, check=True)
            yield lab
        finally:
            clear_lab_root(lab)


def clear_lab_root(lab: RehearsalLab) -> None:
    """Take down every lab of the test root, also one that only an earlier, broken-off test run knew."""
    names = {lab.name}
    for folder in (lab.root / ".lab", lab.root / "inventory"):
        if folder.is_dir():
            names |= {
                each.name
                for each in folder.iterdir()
                if each.is_dir()
                and not each.is_symlink()
                and each.name not in {"example", "loopback"}
            }
    for name in sorted(names):
        done = lab.labctl("down", "--lab", name, "--force", timeout_s=300)
        # 3: an inventory that a test wrote by hand, with no machines of ours behind it.
        assert done.returncode in {0, 3}, done.stderr
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(lab.root)
    lab.root.mkdir(mode=0o700)
