"""A run as one file to hand on: the same record gives the same bytes."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

from labctl.errors import UsageError
from labctl.runs.atomic import check_output


def export(folder: Path, target: Path) -> int:
    """Write a record's directory to a .tar.gz and return its size in bytes.

    Names are sorted, owners and times left out, so that the digest depends on the content alone.

    Raises:
        UsageError: The target exists, has another ending, or cannot be written.
    """
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise UsageError(
            f"cannot export to {target}",
            expected="a name that ends in .tar.gz",
            do=f"{target}.tar.gz",
        )
    check_output(target)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with fresh.open("xb") as raw:
            # gzip's own header holds a name and a time: both fixed.
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                _pack(folder, packed)
            raw.flush()
            os.fsync(raw.fileno())
        os.link(fresh, target)  # unlike a rename it never replaces
    except FileExistsError as error:
        raise UsageError(
            f"{target} exists", expected="a new file", do="choose another name"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    finally:
        fresh.unlink(missing_ok=True)
    return target.stat().st_size


def _pack(folder: Path, packed: gzip.GzipFile) -> None:
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in (folder, *sorted(folder.rglob("*"))):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                continue
            name = (Path(folder.name) / path.relative_to(folder)).as_posix()
            member = tarfile.TarInfo(name)
            if path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
                continue
            with path.open("rb") as file:
                member.size, member.mode = os.fstat(file.fileno()).st_size, 0o644
                archive.addfile(member, file)
