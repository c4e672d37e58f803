"""What the commands that explain a run share."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.runs.store import Entry


def explained_of(entry: Entry) -> Explained:
    """Return a stored run with its analysis.

    A large trace is hundreds of thousands of values that stay and hold no cycle: looking for some among them again
    and again would take a third of the time, so the collector waits and then leaves them alone.

    Raises:
        RecordError: The record cannot be read.
    """
    from labctl.analysis.explain import explain
    from labctl.runs.data import load

    gc.disable()
    try:
        return explain(load(entry.path, entry.readable()))
    finally:
        gc.freeze()
        gc.enable()
