"""What every Executor keeps to, whatever is behind it: in memory, this machine, or SSH."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from labctl.errors import DeadlineError, RemoteCommandError
from labctl.remote.base import Executor
from labctl.remote.fake import Call, FakeExecutor, Reply
from labctl.remote.follow import Follower
from labctl.remote.local import LocalExecutor
from labctl.remote.ssh import SshExecutor
from tests.contract.sshd import Sshd

MIB = 1024 * 1024


@dataclass
class Rig:
    """An executor and a folder on its machine; `script` says what a fake one answers."""

    executor: Executor
    folder: str

    @property
    def is_real(self) -> bool:
        return not isinstance(self.executor, FakeExecutor)

    def script(self, argv: list[str], reply: Reply | Callable[[Call], Reply]) -> list[str]:
        if isinstance(self.executor, FakeExecutor):
            self.executor.on(argv, reply)
        return argv


@pytest.fixture(params=["fake", "local", "ssh"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    executor: Executor
    if request.param == "fake":
        executor = FakeExecutor("node")
    elif request.param == "local":
        executor = LocalExecutor("node")
    else:
        server: Sshd = request.getfixturevalue("sshd")
        executor = SshExecutor("node", server.target())
    yield Rig(executor, str(tmp_path))
    executor.close()
    executor.close()


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-c", code, *args]


def running(pattern: str) -> list[str]:
    listed = subprocess.run(
        ["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True
    )
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [each[1] for each in lines if not each[0].startswith("Z") and each[1] == pattern]


def gone(pattern: str) -> bool:
    give_up = time.monotonic() + 10
    while running(pattern):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def test_streams_and_status_come_back(rig: Rig) -> None:
    argv = rig.script(
        ["sh", "-c", "printf out; printf err >&2; exit 3"], Reply(b"out", b"err", returncode=3)
    )
    result = rig.executor.run(argv, timeout_s=20)
    assert (result.stdout, result.stderr) == (b"out", b"err")
    assert (result.returncode, result.signal, result.truncated) == (3, None, False)
    assert result.argv == tuple(argv)
    assert 0 <= result.duration_s < 20
    with pytest.raises(RemoteCommandError, match=r"making it failed on node \(exit 3\): err"):
        result.check("node", "making it")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_signal_is_not_an_exit_status(rig: Rig, number: signal.Signals) -> None:
    argv = rig.script(
        ["sh", "-c", f"echo before; ulimit -c 0; kill -{number.value} $$"],
        Reply(b"before\n", signal=number.value),
    )
    result = rig.executor.run(argv, timeout_s=20)
    assert (result.returncode, result.signal) == (None, number.value)
    assert not result.ok
    assert result.stdout == b"before\n"


def test_exit_status_above_128_is_no_signal(rig: Rig) -> None:
    argv = rig.script(["sh", "-c", "exit 137"], Reply(returncode=137))
    result = rig.executor.run(argv, timeout_s=20)
    assert (result.returncode, result.signal) == (137, None)


def test_missing_program_is_status_127(rig: Rig) -> None:
    argv = rig.script(["labctl-no-such-program"], Reply(stderr=b"not found\n", returncode=127))
    result = rig.executor.run(argv, timeout_s=20)
    assert result.returncode == 127
    assert result.stderr


ODD = [
    "",
    "a b",
    "it's",
    'say "x"',
    "$HOME ${PATH} $(id) `id`",
    "back\\slash \\n",
    "two\nlines\n",
    "tab\there",
    "*",
    "~",
    "-n",
    "--",
    "Grüße ☃",
    "a;b|c&d>e<f#g!h",
    "%s %n",
]


def test_arguments_arrive_unchanged(rig: Rig) -> None:
    code = (
        "import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))"
    )
    argv = rig.script(python(code, *ODD), Reply("\0".join(ODD).encode()))
    result = rig.executor.run(argv, timeout_s=20)
    assert result.stdout.decode().split("\0") == ODD


def test_environment_arrives_unchanged(rig: Rig) -> None:
    env = {f"LABCTL_ODD_{index}": text for index, text in enumerate(ODD)}
    code = "import os, sys; sys.stdout.write('\\0'.join(os.environ[a] for a in sys.argv[1:]))"

    def reply(call: Call) -> Reply:
        return Reply("\0".join((call.env or {})[name] for name in call.argv[3:]).encode())

    result = rig.executor.run(
        rig.script(python(code, *env), reply), timeout_s=20, env={**env, "LC_ALL": "C.UTF-8"}
    )
    assert result.stdout.decode().split("\0") == list(env.values())


def test_bytes_are_not_touched(rig: Rig) -> None:
    data = bytes(range(256)) * 3 + b"\r\n\r\xff no newline at the end"
    code = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.stderr.buffer.write(d[::-1])"
    argv = rig.script(python(code), lambda call: Reply(call.input, call.input[::-1]))
    result = rig.executor.run(argv, timeout_s=20, input=data)
    assert result.stdout == data
    assert result.stderr == data[::-1]


def test_large_input_that_nobody_reads_does_not_block(rig: Rig) -> None:
    argv = rig.script(["sh", "-c", "exit 4"], Reply(returncode=4))
    assert rig.executor.run(argv, timeout_s=30, input=b"x" * 5 * MIB).returncode == 4


def test_20_mb_on_both_streams_at_once(rig: Rig) -> None:
    size = 20_000_000
    code = (
        "import os, sys, threading\n"
        "def pour(number, byte):\n"
        "    left = int(sys.argv[1])\n"
        "    while left: left -= os.write(number, byte * min(left, 65536))\n"
        "t = threading.Thread(target=pour, args=(2, b'e')); t.start(); pour(1, b'o'); t.join()\n"
        "os.write(1, b'last'); sys.exit(5)"
    )
    argv = rig.script(python(code, str(size)), Reply(b"o" * size + b"last", b"e" * size, 5))
    result = rig.executor.run(argv, timeout_s=120)
    assert result.returncode == 5
    assert result.stdout == b"o" * size + b"last"
    assert result.stderr == b"e" * size


def test_output_beyond_the_bound_is_dropped_and_said(rig: Rig) -> None:
    size, kept = 60 * MIB, 1000
    code = "import os, sys\nfor n in (1, 2):\n for _ in range(60): os.write(n, bytes([96 + n]) * 2**20)"
    argv = rig.script(python(code), Reply(b"a" * size, b"b" * size))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = rig.executor.run(argv, timeout_s=120, max_output=kept)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (result.stdout, result.stderr) == (b"a" * kept, b"b" * kept)
    assert result.truncated
    assert result.ok
    if rig.is_real:
        assert grown_kib < 30 * 1024


def test_deadline_kills_the_command_and_its_children(rig: Rig) -> None:
    mark = f"7{os.getpid()}{time.time_ns() % 100000}"
    argv = rig.script(["sh", "-c", f"sleep {mark} & exec sleep {mark}"], Reply(takes_s=float(mark)))
    with pytest.raises(DeadlineError, match=r"sh on node had not ended after 1 s and was killed"):
        rig.executor.run(argv, timeout_s=1)
    assert gone(f"sleep {mark}")
    argv = rig.script(["echo", "usable"], Reply(b"usable\n"))
    assert rig.executor.run(argv, timeout_s=20).text == "usable"


@pytest.mark.parametrize("rig", ["local", "ssh"], indirect=True)
def test_interrupt_kills_the_command(rig: Rig) -> None:
    mark = f"4{os.getpid()}{time.time_ns() % 100000}"
    timer = threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        rig.executor.run(["sh", "-c", f"sleep {mark} & exec sleep {mark}"], timeout_s=60)
    timer.join()
    assert gone(f"sleep {mark}")


def test_child_left_behind_does_not_hold_the_call(rig: Rig) -> None:
    argv = rig.script(["sh", "-c", "sleep 30 & echo done"], Reply(b"done\n"))
    result = rig.executor.run(argv, timeout_s=25)
    assert result.stdout == b"done\n"
    assert result.duration_s < 20


def test_command_that_closes_its_streams_is_waited_for(rig: Rig) -> None:
    argv = rig.script(["sh", "-c", "exec >&- 2>&-; sleep 1; exit 6"], Reply(returncode=6))
    assert rig.executor.run(argv, timeout_s=20).returncode == 6


def test_questions_are_answered_one_by_one(rig: Rig) -> None:
    code = "import sys\nfor line in iter(sys.stdin.readline, ''):\n print(line.strip()[::-1], flush=True)"
    argv = rig.script(python(code), lambda call: Reply(call.input.strip()[::-1] + b"\n"))
    answers = rig.executor.ask(argv, [b"abc\n", b"def\n"], timeout_s=20)
    assert [each.line for each in answers] == [b"cba", b"fed"]
    assert answers[0].sent_ns <= answers[0].received_ns <= answers[1].sent_ns


def test_question_to_a_program_that_ends_is_an_error(rig: Rig) -> None:
    argv = rig.script(["false"], Reply(returncode=1))
    with pytest.raises(RemoteCommandError, match="ended before it had answered"):
        rig.executor.ask(argv, [b"\n"], timeout_s=20)


def test_files_are_put_sized_and_read_at_any_offset(rig: Rig) -> None:
    path = f"{rig.folder}/a file with ' and ü"
    data = os.urandom(3 * MIB + 17)
    rig.executor.put(data, path, mode=0o640)
    assert rig.executor.size(path) == len(data)
    assert rig.executor.read(path, limit=len(data) + 10) == data
    assert rig.executor.read(path, offset=5, limit=7) == data[5:12]
    assert rig.executor.read(path, offset=len(data) - 3) == data[-3:]
    assert rig.executor.read(path, offset=len(data)) == b""
    assert rig.executor.read(path, offset=len(data) + 99) == b""
    rig.executor.put(b"", path)
    assert rig.executor.read(path) == b""
    if rig.is_real:
        assert Path(path).stat().st_mode & 0o777 == 0o600
        assert [each.name for each in Path(rig.folder).iterdir()] == [Path(path).name]


def test_missing_file_has_no_size_and_cannot_be_read(rig: Rig) -> None:
    assert rig.executor.size(f"{rig.folder}/none") is None
    with pytest.raises(FileNotFoundError):
        rig.executor.read(f"{rig.folder}/none")


def test_no_space_left_is_said_and_leaves_nothing(rig: Rig) -> None:
    path = f"{rig.folder}/full"
    if isinstance(rig.executor, FakeExecutor):
        rig.executor.disk_full = True
    else:
        if os.geteuid() != 0:
            pytest.skip("a small file system needs root")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", rig.folder], check=True)
    try:
        with pytest.raises(RemoteCommandError, match="full on node: No space left on device"):
            rig.executor.put(b"x" * MIB, path)
        assert rig.executor.size(path) is None
        if rig.is_real:
            assert list(Path(rig.folder).iterdir()) == []
    finally:
        if rig.is_real:
            subprocess.run(["umount", rig.folder], check=True)


@pytest.mark.parametrize("rig", ["local", "ssh"], indirect=True)
def test_put_without_its_folder_is_an_error(rig: Rig) -> None:
    with pytest.raises(RemoteCommandError, match="on node"):
        rig.executor.put(b"x", f"{rig.folder}/none/file")


def test_follower_copies_exactly_once_across_restarts(rig: Rig, tmp_path: Path) -> None:
    remote, local = f"{rig.folder}/log", tmp_path / "copy"
    first = Follower(rig.executor, remote, local)
    assert first.poll() == b""
    part, rest = os.urandom(MIB), os.urandom(2 * MIB)
    rig.executor.put(part, remote)
    assert first.poll(limit=1000) == part[:1000]
    rig.executor.put(part + rest, remote)
    second = Follower(rig.executor, remote, local)
    assert second.poll() == (part + rest)[1000:]
    copied = second.finish()
    assert local.read_bytes() == part + rest
    assert copied.size == len(part + rest)
    assert copied.sha256 == hashlib.sha256(part + rest).hexdigest()


def test_follower_copies_anew_what_was_replaced(rig: Rig, tmp_path: Path) -> None:
    remote, local = f"{rig.folder}/log", tmp_path / "copy"
    for before, after in (
        (b"long old text", b"short"),
        (b"same size", b"other one"),
        (b"x", b"y" * MIB),
    ):
        local.write_bytes(before)
        rig.executor.put(after, remote)
        assert Follower(rig.executor, remote, local).finish().size == len(after)
        assert local.read_bytes() == after
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".part")] == []
