"""Ansible module: a directory that holds exactly these files."""

from __future__ import annotations

import os
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule

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


def plain_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def is_right(path: str, text: str) -> bool:
    """Return whether a file has this text, belongs to root and can be read by all."""
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    found = os.stat(path)
    if (found.st_uid, found.st_gid, found.st_mode & 0o7777) != (os.geteuid(), os.getegid(), 0o644):
        return False
    with open(path, "rb") as handle:
        return handle.read() == text.encode()


def strays(root: str, wanted: dict[str, str]) -> list[str]:
    """Return what a directory holds beyond the wanted files and their directories, as paths below it."""
    folders = {""}
    for name in wanted:
        folder = os.path.dirname(name)
        while folder:
            folders.add(folder)
            folder = os.path.dirname(folder)
    found = []
    for here, directories, files in os.walk(root):
        relative = os.path.relpath(here, root) if here != root else ""
        for name in list(directories):
            below = os.path.join(relative, name)
            if below not in folders or os.path.islink(os.path.join(here, name)):
                found.append(below)
                directories.remove(name)
        found += [os.path.join(relative, name) for name in files if os.path.join(relative, name) not in wanted]
    return sorted(found)


def write(path: str, text: str) -> None:
    folder = os.path.dirname(path)
    if os.path.lexists(folder) and not plain_directory(folder):
        os.unlink(folder)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    if plain_directory(path):
        shutil.rmtree(path)
    handle, fresh = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as stream:
        stream.write(text.encode())
        os.fchmod(stream.fileno(), 0o644)
    os.replace(fresh, path)


def remove(path: str) -> None:
    if plain_directory(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "files": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    root, files = module.params["path"], module.params["files"]
    if any(os.path.isabs(name) or ".." in name.split("/") for name in files):
        module.fail_json(msg=f"paths below {root} are needed, found: {', '.join(sorted(files))}")
    written = [name for name, text in sorted(files.items()) if not is_right(os.path.join(root, name), text)]
    removed = strays(root, files)
    if not module.check_mode:
        os.umask(0o022)
        for name in removed:
            remove(os.path.join(root, name))
        for name in written:
            write(os.path.join(root, name), files[name])
    module.exit_json(changed=bool(written or removed), written=written, removed=removed)


if __name__ == "__main__":
    main()
