"""Try a TCP port from a node: what the node sees, not what this machine sees."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from labctl.errors import RemoteCommandError

if TYPE_CHECKING:
    from labctl.remote.base import Executor

ProbeState = Literal["answers", "refused", "timed out", "not resolvable", "unreachable"]

_PROGRAM = """
import json, socket, sys, time
host, port, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end = time.monotonic() + limit
state, address, detail = "unreachable", "", ""
try:
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
except (OSError, UnicodeError) as error:
    state, detail, found = "not resolvable", str(error), []
for family, kind, protocol, _, place in found:
    address = place[0]
    link = socket.socket(family, kind, protocol)
    link.settimeout(max(0.05, end - time.monotonic()))
    try:
        link.connect(place)
        state, detail = "answers", ""
        break
    except ConnectionRefusedError as error:
        state, detail = "refused", str(error)
    except (TimeoutError, socket.timeout):
        state, detail = "timed out", "no answer for %g s" % limit
    except OSError as error:
        state, detail = "unreachable", str(error)
    finally:
        link.close()
print(json.dumps({"state": state, "address": address, "detail": detail}))
"""
_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Probe:
    """How a port answered.

    Attributes:
        state: What happened.
        address: Address that was tried last, "" if the name has none.
        detail: The system's words, "" if it answers.
    """

    state: ProbeState
    address: str
    detail: str


def probe_argv(host: str, port: int, timeout_s: float) -> tuple[str, ...]:
    """Return the command that tries a port."""
    return ("python3", "-c", _PROGRAM, host, str(port), f"{timeout_s:g}")


def tcp_probe(executor: Executor, host: str, port: int, timeout_s: float) -> Probe:
    """Connect from a node to a port and hang up.

    Args:
        executor: The node that connects; it has python3.
        host: Name or address, as it stands in the cluster spec.
        port: 1 to 65535.
        timeout_s: Seconds for all of its addresses.

    Raises:
        RemoteCommandError: The node could not try.
    """
    done = executor.run(probe_argv(host, port, timeout_s), timeout_s=timeout_s + _MARGIN_S)
    done.check(executor.name, f"trying {host}:{port}")
    answer = json.loads(done.stdout)
    if answer["state"] not in get_args(ProbeState):
        raise RemoteCommandError(f"trying {host}:{port} on {executor.name} gave {answer!r}")
    return Probe(answer["state"], answer["address"], answer["detail"])
