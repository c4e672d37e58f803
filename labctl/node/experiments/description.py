"""What a graph is made of: counted from its `GraphDef`, so that two ways to build one can be compared."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any


def describe(graph_def: Any) -> dict[str, Any]:
    """Return the fields of the `graph` event.

    Args:
        graph_def: As the program built it; what TensorFlow makes of it is not told.
    """
    serialised = graph_def.SerializeToString(deterministic=True)
    constants = [node for node in graph_def.node if node.op == "Const"]
    return {
        "nodes": len(graph_def.node),
        "ops": dict(sorted(Counter(node.op for node in graph_def.node).items())),
        "bytes": len(serialised),
        "constant_bytes": sum(node.attr["value"].tensor.ByteSize() for node in constants),
        "sha256": hashlib.sha256(serialised).hexdigest(),
    }
