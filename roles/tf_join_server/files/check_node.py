"""Print what is wrong with this node's part of the cluster: found, expected, do; nothing when all is well.

Arguments: sha256 that the cluster spec should have, then host:port of each peer.
"""

import hashlib
import socket
import sys
import time
from pathlib import Path

SPEC = "/etc/tf-join-server/cluster.json"
WITHIN_S = 10
EACH_S = 3


def connect(address: str) -> str:
    """Return "" when the port answers, else how it does not."""
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=EACH_S).close()
        except TimeoutError:
            answer = "timed out"
        except socket.gaierror:
            return "not resolvable"
        except OSError as error:
            answer = (error.strerror or str(error)).lower()
        else:
            return ""
        if time.monotonic() > deadline:
            return answer
        time.sleep(0.5)


def problem(found: str, expected: str, do: str) -> None:
    print(f"{found}\n  expected  {expected}\n  do        {do}")


def main() -> None:
    wanted, *peers = sys.argv[1:]
    try:
        found = hashlib.sha256(Path(SPEC).read_bytes()).hexdigest()
    except OSError as error:
        found = str(error)
    if found != wanted:
        problem(
            f"{SPEC}: {found}",
            f"sha256 {wanted}, as on the other nodes",
            "ansible-playbook provision.yml",
        )
    for address in peers:
        answer = connect(address)
        if answer:
            problem(
                f"{address}: {answer}",
                "an answer",
                "look at the packet filters between the nodes (a cloud's too) and at tf-join-server.service there",
            )


main()
