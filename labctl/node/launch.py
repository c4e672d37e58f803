"""Entry point on a node: stands as `__main__.py` beside the package `labctl_node` in a directory or zip file."""

from __future__ import annotations

import os
import sys

from labctl_node.main import main  # type: ignore[import-not-found]  # its name on the nodes

if __name__ == "__main__":
    # The path of the directory or zip file itself, so that a client can start servers of its own from it.
    sys.exit(main(sys.argv[1:], payload=os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100,PTH120 may be in a zip
