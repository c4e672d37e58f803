"""Every error that labctl expects, with its exit code.

LabctlError                  70  a bug in labctl, unless a class below says otherwise
├── RefusedError              1  a check or a comparison says no
│   └── WrongResultError      1  the experiment ran, its result is wrong
├── UsageError                2  options that cannot be meant
├── ConfigError               3  configuration, inventory or this machine's set-up
│   ├── InventoryError        3
│   └── MissingHostPackagesError 3
├── UnreachableError          4
│   ├── HostUnreachableError  4  no SSH connection
│   ├── HostKeyError          4  SSH host key unknown or changed
│   ├── AuthenticationError   4  SSH key or user refused
│   ├── ConnectionLostError   4  the link broke while a command ran; its end is unknown
│   └── PeerUnreachableError  4  a TensorFlow port does not answer a node
├── RemoteCommandError        5  a command or a run on a node failed
├── DeadlineError             6  a deadline passed
├── PlaybookError             7  ansible-playbook failed
├── RecordError               8  a run record is missing or damaged
│   └── RecordTooNewError     8  a newer labctl wrote it
├── LabBusyError              9  another run or command holds the lab
└── UserInterruptError       130  the user interrupted

A message has up to three parts: what was found, what was expected, what to do. `__main__` is the only
place that prints one and exits.
"""

from __future__ import annotations


class LabctlError(Exception):
    """An error with an exit code and a message in three parts.

    Args:
        found: What was found, one line, naming the host, file or option it is about.
        expected: What was expected instead.
        do: The command or change that helps.
    """

    exit_code = 70

    def __init__(self, found: str, *, expected: str | None = None, do: str | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected
        self.do = do

    def __str__(self) -> str:
        lines = [_one_line(self.found)]
        if self.expected is not None:
            lines.append(f"  expected  {_one_line(self.expected)}")
        if self.do is not None:
            lines.append(f"  do        {_one_line(self.do)}")
        return "\n".join(lines)


def three_parts(message: str) -> tuple[str, str | None, str | None]:
    """Return found, expected and do of a printed message; of several, the first."""
    found: list[str] = []
    expected = do = None
    for line in message.splitlines():
        head, _, rest = line.strip().partition("  ")
        if head == "expected" and expected is None:
            expected = rest.strip()
        elif head == "do" and do is None:
            do = rest.strip()
        elif expected is None and do is None:
            found.append(line.strip())
    return " ".join(found), expected, do


def _one_line(text: str) -> str:
    return " ".join(text.split())


class RefusedError(LabctlError):
    exit_code = 1


class WrongResultError(RefusedError):
    pass


class UsageError(LabctlError):
    exit_code = 2


class ConfigError(LabctlError):
    exit_code = 3


class InventoryError(ConfigError):
    pass


class MissingHostPackagesError(ConfigError):
    pass


class UnreachableError(LabctlError):
    exit_code = 4


class HostUnreachableError(UnreachableError):
    pass


class HostKeyError(UnreachableError):
    pass


class AuthenticationError(UnreachableError):
    pass


class ConnectionLostError(UnreachableError):
    pass


class PeerUnreachableError(UnreachableError):
    pass


class RemoteCommandError(LabctlError):
    exit_code = 5


class DeadlineError(LabctlError):
    exit_code = 6


class PlaybookError(LabctlError):
    exit_code = 7


class RecordError(LabctlError):
    exit_code = 8


class RecordTooNewError(RecordError):
    pass


class LabBusyError(LabctlError):
    exit_code = 9


class UserInterruptError(LabctlError):
    exit_code = 130
