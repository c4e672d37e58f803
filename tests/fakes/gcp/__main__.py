"""Runs the stand-in: `python -m tests.fakes.gcp FOLDER ADDRESS [--token T] [--project P]`.

Writes the certificates and, once it answers, `ready` into the folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from tests.fakes.gcp import tls
from tests.fakes.gcp.cloud import Cloud
from tests.fakes.gcp.server import StandIn, serve

NAMES = ("compute.googleapis.com", "www.googleapis.com")


def main() -> None:
    """Serve until a signal ends it, or until its parent is gone."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.gcp", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("address")
    parser.add_argument("--port", type=int, default=443)
    parser.add_argument("--project", default="labctl-test")
    parser.add_argument("--operation-s", type=float, default=0.2)
    given = parser.parse_args()
    tls.make(given.folder, NAMES)
    token = os.environ["STAND_IN_TOKEN"]
    stand_in = StandIn(Cloud(given.project, operation_s=given.operation_s), token)
    server = serve(
        stand_in,
        given.address,
        given.port,
        given.folder / "server.pem",
        given.folder / "server.key",
    )
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ended.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (given.folder / "ready").write_text(f"{server.server_address[1]}\n", encoding="utf-8")
    parent = os.getppid()
    while not ended.wait(0.5) and os.getppid() == parent:
        pass
    stand_in.closing.set()
    server.shutdown()


if __name__ == "__main__":
    main()
