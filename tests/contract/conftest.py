from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.sshd import Sshd, running_sshd


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One server for all tests that only need one."""
    with running_sshd(Path(tmp_path_factory.mktemp("sshd"))) as server:
        yield server
