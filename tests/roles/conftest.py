from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab


@pytest.fixture(scope="session")
def lab(bare_lab: RehearsalLab) -> RehearsalLab:
    """The two machines as they were made; the roles' tests provision them themselves."""
    return bare_lab
