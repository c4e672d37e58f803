"""Ansible module: a directory that holds exactly these files."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from ansible.module_utils.basic import AnsibleModule  # type: ignore[import-untyped]

DOCUMENTATION = r"""
module: file_tree
short_description: Make a directory hold exactly these files
description:
  - Writes all files in one call, and removes whatever else the directory holds. Files are replaced by renaming.
options:
  path:
    description: The directory; missing parents are made too.
    type: path
    required: true
  files:
    description: Text of each file by its path below the directory.
    type: dict
    required: true
author: the labctl authors
"""

EXAMPLES = r"""
- name: Install the payload
  file_tree:
    path: /opt/example
    files:
      main.py: "print(1)\n"
      package/__init__.py: ""
"""

RETURN = r"""
written:
  description: Files that were made or replaced.
  type: list
  returned: always
removed:
  description: Files and directories that were removed.
  type: list
  returned: always
"""


def plain_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def is_right(path: Path, text: str) -> bool:
    """Return whether a file has this text, belongs to whom this runs as, and can be read by all."""
    if path.is_symlink() or not path.is_file():
        return False
    found = path.stat()
    if (found.st_uid, found.st_gid, found.st_mode & 0o7777) != (os.geteuid(), os.getegid(), 0o644):
        return False
    return path.read_bytes() == text.encode()


def strays(root: Path, wanted: set[str]) -> list[str]:
    """Return what a directory holds beyond the wanted files and their directories, as paths below it."""
    folders = {str(parent) for name in wanted for parent in PurePosixPath(name).parents}
    found = []

    def look(folder: Path) -> None:
        for entry in folder.iterdir():
            name = entry.relative_to(root).as_posix()
            if plain_directory(entry) and name in folders:
                look(entry)
            elif name not in wanted:
                found.append(name)

    if plain_directory(root):
        look(root)
    return sorted(found)


def remove(path: Path) -> None:
    if plain_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    if not plain_directory(path.parent):
        remove(path.parent)
        path.parent.mkdir(parents=True)
    if plain_directory(path):
        remove(path)
    handle, fresh = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as stream:
        stream.write(text.encode())
        os.fchmod(stream.fileno(), 0o644)
    Path(fresh).replace(path)


def main() -> None:
    """Answer to Ansible."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "files": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    root, files = Path(module.params["path"]), module.params["files"]
    if any(PurePosixPath(name).is_absolute() or ".." in name.split("/") for name in files):
        module.fail_json(msg=f"paths below {root} are needed, found: {', '.join(sorted(files))}")
    written = [name for name, text in sorted(files.items()) if not is_right(root / name, text)]
    removed = strays(root, set(files))
    if not module.check_mode:
        os.umask(0o022)
        for name in removed:
            remove(root / name)
        for name in written:
            write(root / name, files[name])
    module.exit_json(changed=bool(written or removed), written=written, removed=removed)


if __name__ == "__main__":
    main()
