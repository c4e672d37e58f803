"""systemd's readiness protocol (`Type=notify`)."""

from __future__ import annotations

import os
import socket


def notify_ready(status: str) -> bool:
    """Tell systemd that this service is ready; return False where nobody listens.

    Args:
        status: One line that `systemctl status` shows.

    Raises:
        OSError: `NOTIFY_SOCKET` is set but cannot be written to.
    """
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return False
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.connect(address)
        channel.sendall(f"READY=1\nSTATUS={status}".encode())
    return True
