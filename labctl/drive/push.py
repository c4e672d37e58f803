"""A run directory on task 0's node, with all that the client needs in it."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Mapping

from labctl.drive.links import Machine
from labctl.drive.places import Places
from labctl.node import wire
from labctl.remote.base import Executor
from labctl.runs.store import is_run_id

KEPT_RUNS = 20
_FILE_MODE = 0o640
_DIR_MODE = (
    "2750"  # the group's files stay the group's, so that the login user reads them without sudo
)
_COMMAND_S = 30.0
_BYTES_PER_S = 100_000.0  # a slow link; only bounds the wait


def push(machine: Machine, where: Places, run_id: str, files: Mapping[str, bytes]) -> None:
    """Make the run's directory and write files into it, in one stream.

    Args:
        machine: The node of task 0.
        where: The lab's places.
        run_id: The run.
        files: Content by file name.

    Raises:
        RemoteCommandError: The node has no user `labctl` (not provisioned), no space, or sudo refuses.
    """
    executor = machine.executor
    directory = where.directory(run_id)
    sudo = where.user is not None
    owner, group = "", ""
    if where.user is not None:
        owner = where.user
        group = executor.run(["id", "-gn"], timeout_s=_COMMAND_S).check(executor.name, "id").text
        executor.run(
            ["install", "-d", "-o", owner, "-g", group, "-m", _DIR_MODE, directory],
            timeout_s=_COMMAND_S,
            sudo=True,
        ).check(executor.name, f"making {directory}", do="labctl provision, then labctl check")
    else:
        executor.run(["mkdir", "-p", "-m", "0700", directory], timeout_s=_COMMAND_S).check(
            executor.name, f"making {directory}"
        )
    # Its own log is the client's to read: there TensorFlow says why it made no GPU device.
    data = _archive({wire.STDERR_FILE: b"", **files}, owner, group)
    ownership = "--same-owner" if sudo else "--no-same-owner"
    executor.run(
        ["tar", "--extract", "--preserve-permissions", ownership, "--directory", directory],
        timeout_s=_COMMAND_S + len(data) / _BYTES_PER_S,
        input=data,
        sudo=sudo,
    ).check(executor.name, f"writing to {directory}", do="labctl check shows the node's free space")


def forget_old_runs(machine: Machine, where: Places, keep: int = KEPT_RUNS) -> list[str]:
    """Remove the oldest run directories of the node and return their names.

    Call it only while no run is active there. Whatever has no run id for a name is left alone.

    Args:
        machine: The node of task 0.
        where: The lab's places.
        keep: Newest directories that stay.

    Raises:
        RemoteCommandError: They cannot be removed.
    """
    executor = machine.executor
    listing = executor.run(["ls", "-1", "--", where.runs_dir], timeout_s=_COMMAND_S)
    if not listing.ok:
        return []  # no run yet
    runs = sorted(name for name in listing.text.splitlines() if is_run_id(name))
    doomed = runs[: max(0, len(runs) - keep)]
    if doomed:
        paths = [where.directory(name) for name in doomed]
        executor.run(
            ["rm", "-rf", "--", *paths], timeout_s=4 * _COMMAND_S, sudo=where.user is not None
        ).check(executor.name, "removing old run directories")
    return doomed


def remove(machine: Machine, where: Places, run_id: str) -> None:
    """Remove a run's directory on the node.

    Raises:
        RemoteCommandError: It cannot be removed.
    """
    directory = where.directory(run_id)
    argv = ["rm", "-rf", "--", directory]
    machine.executor.run(argv, timeout_s=_COMMAND_S, sudo=where.user is not None).check(
        machine.node.name, f"removing {directory}"
    )


def write_marker(executor: Executor, where: Places, run_id: str, name: str) -> None:
    """Write an empty-handed note, one line, into a run's directory."""
    path = f"{where.directory(run_id)}/{name}"
    executor.run(
        ["tee", "--", path], timeout_s=_COMMAND_S, input=b"by labctl\n", sudo=where.user is not None
    ).check(executor.name, f"writing {path}")


def _archive(files: Mapping[str, bytes], owner: str, group: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(data), _FILE_MODE, int(time.time())
            member.uname, member.gname = owner, group
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
