"""Unit tests start no process and open no socket: both raise here."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest


@pytest.fixture(autouse=True)
def _no_process_no_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        pytest.fail(f"a unit test may not start a process or open a socket: {args!r}")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("LABCTL_HOME", str(home))
    monkeypatch.delenv("LABCTL_LAB", raising=False)
