"""The house: imports point one way, few rooms start processes, no module grows without end."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "labctl"
FLOORS = [
    {"__main__"},
    {"cli"},
    {"drive"},
    {"providers", "checks", "views"},
    {"playbook", "remote", "analysis"},
    {"lab", "runs"},
    {"errors", "console"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# The plan, the event vocabulary and the payload are stated in node/ once and used on this side.
NODE_FACADE = {"labctl.node.wire", "labctl.node.bundle"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "_share" not in path.parts)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        if not name.startswith("labctl."):
            continue
        there = name.split(".")[1]
        if here == "node":
            pytest.fail(f"labctl.node imports {name}: it runs on nodes, where labctl is not")
        if there == "node":
            assert (
                name in NODE_FACADE or name == "labctl.node" or name.startswith("labctl.node.wire.")
            ), name
        elif there in FLOOR and here in FLOOR and here != there:
            assert FLOOR[here] < FLOOR[there], f"{here} imports {name}"


def test_every_room_has_a_floor() -> None:
    rooms = {room(path) for path in MODULES} - {"__init__", "node", "_share"}
    assert rooms == set(FLOOR)


def test_processes_and_paramiko_have_their_rooms() -> None:
    for path in MODULES:
        used = {name.split(".")[0] for name in imports(path)}
        where = path.relative_to(PACKAGE)
        if "paramiko" in used:
            assert room(path) == "remote", where
        if "subprocess" in used:
            assert room(path) in {"remote", "playbook", "node"}, where


def test_modules_stay_readable() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    long = {path for path, count in lengths.items() if count > 500}
    # One file on purpose: it also runs by itself, on machines without labctl.
    assert long <= {PACKAGE / "checks/gpu_probe.py"}
    assert all(lengths[path] <= 700 for path in long)
