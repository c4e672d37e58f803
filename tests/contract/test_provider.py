"""What every provider promises: machines on this host (needs root) and machines in a cloud, here one in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from labctl.errors import LabBusyError
from labctl.lab.home import Home
from labctl.providers.base import MachineOptions, Provider
from labctl.providers.identity import LabIdentity
from labctl.providers.lock import hold
from labctl.providers.rehearsal import RehearsalProvider
from tests.conftest import machines_refused
from tests.unit.cloud_worlds import Worlds, options

LAB = "contract"


@dataclass
class Subject:
    """A provider, and what a test needs to know of it.

    Attributes:
        provider: It.
        home: Whose labs.
        options: One machine.
        lock: The file that a command on the lab holds.
        said: What it told.
    """

    provider: Provider
    home: Home
    options: MachineOptions
    lock: Path
    said: list[str] = field(default_factory=list)


def _rehearsal(tmp_path: Path) -> Subject:
    refused = machines_refused()
    if refused is not None:
        pytest.skip(refused)
    home = Home(tmp_path / "home")
    lock = LabIdentity.of(home.root, LAB).lock_file
    return Subject(RehearsalProvider(home), home, MachineOptions(nodes=1), lock)


def _cloud(name: str) -> Callable[[Path], Subject]:
    def make(tmp_path: Path) -> Subject:
        worlds = Worlds(Home(tmp_path / "home"), name)
        lock = worlds.home.local_dir(LAB) / ".cloud.lock"
        return Subject(worlds.labs, worlds.home, options(nodes=1), lock)

    return make


SUBJECTS = {"rehearsal": _rehearsal, "aws": _cloud("aws"), "gcp": _cloud("gcp")}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    made = SUBJECTS[request.param](tmp_path)
    yield made
    with contextlib.suppress(Exception):
        made.provider.down(LAB, force=True, report=lambda _: None)


def test_a_lab_comes_stands_and_goes(subject: Subject) -> None:
    provider, home, said = subject.provider, subject.home, subject.said
    assert not provider.owns(LAB)
    assert provider.status(LAB).machines == ()

    made = provider.up(LAB, subject.options, said.append)
    assert made.state == "up"
    assert [each.name for each in made.machines] == ["tf0"]
    assert made.phases
    assert said
    assert provider.owns(LAB)
    assert provider.status(LAB).state == "up"
    assert home.labs() == [LAB]
    assert home.active() == LAB
    hosts = (home.inventory(LAB) / "hosts.yml").read_text()
    assert made.machines[0].address in hosts
    assert home.local_dir(LAB).stat().st_mode & 0o077 == 0

    again = provider.up(LAB, subject.options, said.append)
    assert again.machines == made.machines
    assert "make" not in {each.phase for each in again.phases}
    assert (home.inventory(LAB) / "hosts.yml").read_text() == hosts

    with hold(subject.lock, "another command"):
        with pytest.raises(LabBusyError, match="another command"):
            provider.down(LAB, force=False, report=said.append)
        with pytest.raises(LabBusyError, match="another command"):
            provider.up(LAB, subject.options, said.append)

    receipt = provider.down(LAB, force=False, report=said.append)
    assert any("machine tf0" in each for each in receipt.removed)
    assert (receipt.left, receipt.forgotten, receipt.kept) == ((), (), ())
    assert not provider.owns(LAB)
    assert (home.labs(), home.active()) == ([], None)
    assert not home.local_dir(LAB).exists()

    nothing = provider.down(LAB, force=False, report=said.append)
    assert (nothing.removed, nothing.left, nothing.forgotten) == ((), (), ())


def test_files_of_the_user_stay(subject: Subject) -> None:
    own = subject.home.inventory(LAB) / "group_vars/all/mine.yml"
    own.parent.mkdir(parents=True)
    own.write_text("mine: 1\n")
    subject.provider.up(LAB, subject.options, subject.said.append)
    receipt = subject.provider.down(LAB, force=False, report=subject.said.append)
    assert receipt.kept == (str(own),)
    assert own.read_text() == "mine: 1\n"
