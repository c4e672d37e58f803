"""What goes wrong on a node: one error class, and the kinds that TensorFlow's own errors fall into."""

from __future__ import annotations

import re
from typing import Any

from . import wire

# Kinds of the `error` event.
BAD_PLAN = "bad-plan"
BAD_SPEC = "bad-spec"
PEER_LOST = "peer-lost"  # its port does not answer
PEER_RESTARTED = "peer-restarted"  # it answers, but it is not the process that the session knew
PEER_UNAVAILABLE = "peer-unavailable"  # it answers, yet TensorFlow could not reach it
WRONG_CLUSTER = "wrong-cluster"  # a task is not who the spec says
NO_DEVICE = "no-device"
NO_GPU_DEVICE = "no-gpu-device"  # a task of a GPU run has none, found before its first step
OP_ON_CPU = "op-on-cpu"  # a product of a GPU run ran on a CPU
PORT_IN_USE = "port-in-use"
OUT_OF_MEMORY = "out-of-memory"
OUT_OF_RANGE = "out-of-range"  # float32 cannot hold the result
SCRIPT = "script"
UNEXPECTED = "unexpected"

# What was expected and what helps, for kinds that TensorFlow's own words leave open.
HINTS: dict[str, tuple[str, str]] = {
    PEER_RESTARTED: (
        "the same server process on every task for the whole run",
        "labctl logs last shows why it restarted; then run again",
    ),
    PEER_UNAVAILABLE: (
        "every task reaching every other, task 0's port included, with the same cluster spec",
        "labctl run --fresh restarts the servers first; labctl check looks for more",
    ),
    WRONG_CLUSTER: (
        "each address of the cluster spec leading to the task that it names",
        "labctl check compares the specs and what the names resolve to",
    ),
    NO_DEVICE: (
        "a GPU that TensorFlow can use on every task",
        "labctl run --cpu, or nodes with GPUs",
    ),
    OUT_OF_MEMORY: ("room for the matrices on every task", "a smaller --size, or fewer tasks here"),
}

PEER_KINDS = frozenset({PEER_LOST, PEER_RESTARTED, PEER_UNAVAILABLE})

_LONGEST_MESSAGE = 1500
_HEADING = re.compile(
    r"Graph execution error|=+$|([A-Z_]+: )?From /job|Detected at node|<stack traces|\d+ root error"
)


class NodeError(Exception):
    """An expected failure, with its exit status and a message in three parts.

    Args:
        found: What was found, one line.
        expected: What was expected instead.
        do: What helps.
        kind: One of the kinds above.
        status: Exit status of the process.
    """

    def __init__(
        self,
        found: str,
        *,
        expected: str | None = None,
        do: str | None = None,
        kind: str = UNEXPECTED,
        status: int = wire.EXIT_FAILED,
    ) -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected
        self.do = do
        self.kind = kind
        self.status = status

    def __str__(self) -> str:
        lines = [self.found]
        if self.expected is not None:
            lines.append(f"  expected  {self.expected}")
        if self.do is not None:
            lines.append(f"  do        {self.do}")
        return "\n".join(lines)

    def fields(self) -> dict[str, Any]:
        """Return the fields of its `error` event."""
        return {
            "kind": self.kind,
            "type": type(self).__name__,
            "message": self.found,
            "expected": self.expected,
            "do": self.do,
            "detail": None,
        }


def bad_plan(found: str, *, expected: str, do: str) -> NodeError:
    """Return the error for a plan that cannot be run."""
    return NodeError(found, expected=expected, do=do, kind=BAD_PLAN, status=wire.EXIT_BAD_PLAN)


def summarise(kind: str, type_name: str, message: str) -> str:
    """Return one line that says what a message is about; TensorFlow's own often begin with headings.

    Args:
        kind: Its kind.
        type_name: Name of the exception's class.
        message: Its text.
    """
    if kind == NO_DEVICE:
        asked = re.search(r"/job:\w+(?:/replica:0)?/task:(\d+)/device:(\w+):\d+", message)
        return f"task {asked[1]} has no {asked[2]} device" if asked else "a device is missing"
    lines = [line.strip() for line in message.splitlines()]
    telling = [line for line in lines if line and not _HEADING.match(line)] or ["no message"]
    return f"{type_name}: {telling[0][:300]}"


def shorten(text: str) -> str:
    """Return a message cut to what fits one screen; TensorFlow appends its recent log and whole graphs."""
    text = text.partition("\nRecent warning and error logs:")[0].strip()
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE].rstrip() + " …"


def classify(type_name: str, message: str) -> str:
    """Return the kind of an exception that TensorFlow raised.

    Args:
        type_name: Name of its class.
        message: Its text.
    """
    low = message.lower()
    kind = UNEXPECTED
    if "could not start grpc server" in low:
        kind = PORT_IN_USE
    elif "available devices are" in low or "could not satisfy device specification" in low:
        kind = NO_DEVICE
    elif "unknown device" in low:
        kind = WRONG_CLUSTER
    elif type_name in {"AbortedError", "CancelledError"} or "incarnation" in low:
        kind = PEER_RESTARTED
    elif type_name == "UnavailableError" or "failed to connect to all addresses" in low:
        kind = PEER_UNAVAILABLE
    elif type_name in {"ResourceExhaustedError", "MemoryError"}:
        kind = OUT_OF_MEMORY
    return kind
