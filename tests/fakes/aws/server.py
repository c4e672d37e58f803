"""A moto server that lives as long as its parent keeps its stdin open; says its port on stdout.

A test run that is broken off leaves none behind.
"""

from __future__ import annotations

import sys

from moto.moto_server.threaded_moto_server import ThreadedMotoServer


def main() -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    sys.stdout.write(f"{server.get_host_and_port()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
