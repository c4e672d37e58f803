"""Command line of the payload: `serve` a task, or be the `client` of a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(argv: Sequence[str], *, payload: str) -> int:
    """Run one of the two commands and return its exit status (see `wire`; 2 for a wrong command line).

    Args:
        argv: Arguments without the program's name.
        payload: Path of the directory or zip file that this package came in.
    """
    options = _parser().parse_args(argv)
    if options.command == "serve":
        from .server import serve

        return serve(options.spec, options.task, options.inter_op, options.parent)
    from .client import run_client

    return run_client(options.plan, payload)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labctl_node", description="What labctl runs on a node.")
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve", help="serve one task of a cluster until SIGTERM")
    server.add_argument("--spec", required=True, metavar="FILE", help="cluster spec, JSON")
    server.add_argument("--task", required=True, type=int, metavar="K", help="index of this task")
    server.add_argument(
        "--inter-op", type=_threads, metavar="N", help="inter-op threads, at least 1"
    )
    server.add_argument(
        "--parent", type=int, metavar="PID", help="end when this parent process ends"
    )
    client = commands.add_parser("client", help="drive a run from task 0; the cwd is its directory")
    client.add_argument("--plan", required=True, metavar="FILE", help="run plan, JSON")
    return parser


def _threads(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} threads; at least 1 is needed")
    return number
