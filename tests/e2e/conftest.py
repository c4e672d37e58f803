from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab


@pytest.fixture(scope="session")
def lab(bare_lab: RehearsalLab) -> RehearsalLab:
    """The two machines, provisioned."""
    bare_lab.labctl("provision", timeout_s=900, check=True)
    return bare_lab
