"""The commands that do a run again, from what its record says was asked."""

from __future__ import annotations

import shlex

from labctl.runs.record import Parameters, RunRecord


def commands(record: RunRecord) -> list[tuple[str, str]]:
    """Return command lines with what each is for."""
    lab = ["--lab", record.lab]
    return [
        (shlex.join(run_command(record.parameters, record.lab)), "the run itself"),
        (shlex.join(["labctl", "check", *lab]), "is the lab as it was?"),
        (shlex.join(["labctl", "why", record.run_id, "--prove", *lab]), "the pairs that decide"),
        (shlex.join(["labctl", "trace", record.run_id, *lab]), "a trace for Perfetto"),
        (shlex.join(["labctl", "logs", record.run_id, *lab]), "what the nodes wrote"),
    ]


def run_command(parameters: Parameters, lab: str) -> list[str]:
    """Return the arguments of the `labctl run` that asks for the same."""
    argv = ["labctl", "run", "--lab", lab]
    if parameters.experiment == "matpow":
        argv += _matpow(parameters)
    elif parameters.device is not None:
        argv.append(f"--{parameters.device}")
    argv += ["--fresh"] if parameters.fresh else []
    argv += ["--skip-checks"] if parameters.skip_checks else []
    for name in parameters.environment:
        argv += ["--env", name]
    argv += ["--timeout", f"{parameters.timeout_s:g}"]
    for name in parameters.companions:
        argv += ["--with", name]
    if parameters.experiment == "script":
        argv += [parameters.script or "SCRIPT"]
        argv += ["--", *parameters.args] if parameters.args else []
    return argv


def _matpow(parameters: Parameters) -> list[str]:
    argv = []
    for flag, value in (
        ("-L", parameters.size),
        ("-n", parameters.power),
        ("--algorithm", parameters.algorithm),
        ("--feed", parameters.feed),
        ("--placement", parameters.placement),
        ("--api", parameters.api),
        ("--fetch", parameters.fetch),
        ("--sum-on", parameters.sum_task),
        ("--repeat", parameters.repeat),
    ):
        argv += [] if value is None else [flag, str(value)]
    argv += [f"--{parameters.device}"] if parameters.device is not None else []
    inter_op = "default" if parameters.inter_op is None else str(parameters.inter_op)
    argv += ["--inter-op", inter_op, "--trace" if parameters.trace else "--no-trace"]
    argv += ["--soft-placement"] if parameters.soft_placement else []
    return argv
