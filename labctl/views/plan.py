"""What `labctl plan` shows: a prediction with what it rests on, the GPUs, and how good past predictions were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labctl.analysis import ptx
from labctl.analysis.constants import Figure, Range
from labctl.console import safe_text
from labctl.runs.codec import encode
from labctl.views.terminal import formula

if TYPE_CHECKING:
    from labctl.analysis.outlook import OnGpu, Outlook
    from labctl.analysis.predict import Prediction
    from labctl.analysis.score import Errors, Score, Scored
    from labctl.analysis.work import Work

_SHOWN_RUNS = 12
_NOISE_S = 1e-9


def plan_lines(found: Outlook) -> list[str]:
    """Return a prediction for a terminal."""
    work = found.work
    lines = [head_line(work)]
    if found.prediction is None:
        lines.append(f"  not foreseen  {found.why_not}")
    else:
        lines += _prediction_lines(found.prediction)
        lines += [*_one_node_lines(found), *_own_gpu_lines(found)]
    if found.on_gpu is not None:
        lines += ["", *_gpu_lines(found, found.on_gpu)]
    elif found.prediction is not None and work.device == "cpu":
        lines.append("  on a GPU     labctl plan --device NAME; --device list shows the names")
    if found.prediction is not None:
        lines += [
            "",
            "  rests on",
            *(f"    {figure_text(each)}" for each in found.prediction.constants),
        ]
        lines += [f"  note       {each}" for each in found.prediction.notes]
    gpu = " --gpu" if work.device == "gpu" else ""
    lines.append(f"next: labctl run{gpu} -L {work.size} -n {work.power} · labctl plan --score")
    return [safe_text(line) for line in lines]


def head_line(work: Work) -> str:
    """Return what is foreseen, in one line."""
    tasks = f"{work.tasks} task{'' if work.tasks == 1 else 's'}"
    parts = [
        formula(work.power, work.tasks), f"L {work.size}", work.algorithm, work.feed, work.placement, tasks,
        f"inter-op {'default' if work.inter_op is None else work.inter_op}",
        *(["GPU"] if work.device == "gpu" else []),
    ]  # fmt: skip
    return "plan  " + " · ".join(parts)


def figure_text(each: Figure) -> str:
    """Return a constant with its unit, spread, samples and source."""
    value = _amount(each.range.value, each.unit)
    low, high = (
        _amount(one, each.unit).removesuffix(f" {each.unit}")
        if "/" in each.unit
        else _amount(one, each.unit)
        for one in (each.range.low, each.range.high)
    )
    one = each.n == 1 and each.range.low == each.range.high
    spread = "" if one else f"{low} to {high}, "
    return f"{each.name}: {value} ({spread}n {each.n}, {each.source})"


def device_lines() -> list[str]:
    """Return the table of GPUs."""
    head = ("name", "product", "cc", "SMs", "lanes", "GHz", "TFLOP/s", "memory GB/s", "PCIe GB/s")
    wide = (7, 24, 5, 5, 7, 7, 9, 13, 11)
    rows: list[tuple[object, ...]] = [(*head, "note")]
    rows += [
        (
            each.name, each.title, each.compute_capability, each.sms, each.fp32_lanes, f"{each.clock_ghz:.2f}",
            f"{each.peak_tflops:.1f}", f"{each.memory_gb_per_s:.0f}", f"{each.host_gb_per_s:.1f}", each.note,
        )
        for each in ptx.gpus()
    ]  # fmt: skip
    lines = []
    for row in rows:
        left = "".join(f"{cell!s:<{width}}" for cell, width in zip(row[:2], wide[:2], strict=True))
        right = "".join(
            f"{cell!s:>{width}}" for cell, width in zip(row[2:-1], wide[2:], strict=True)
        )
        lines.append(f"{left}{right}  {row[-1]}".rstrip())
    return lines


def device_objects() -> list[dict[str, Any]]:
    """Return the GPUs as plain data, with the instruction table's own classes left to `plan --device NAME`."""
    return [{**encode(each), "peak_tflops": round(each.peak_tflops, 3)} for each in ptx.gpus()]


def plan_object(found: Outlook) -> dict[str, Any]:
    """Return a prediction as plain data, seconds; docs/plan.md describes each key."""
    prediction = found.prediction
    return {
        "work": encode(found.work),
        "why_not": found.why_not or None,
        "prediction": None
        if prediction is None
        else {
            "warm": encode(prediction.warm),
            "cold": encode(prediction.cold),
            "wall": encode(prediction.wall),
            "model_s": prediction.model_s,
            "parts": [encode(each) for each in prediction.parts],
            "constants": [encode(each) for each in prediction.constants],
            "notes": list(prediction.notes),
            "runs": list(prediction.runs),
            "cold_start": [encode(each) for each in prediction.cold_start],
        },
        "one_node": encode(found.one_node),
        "least_power": found.least_power,
        "least_size": found.least_size,
        "product_s": found.product_s,
        "on_gpu": None if found.on_gpu is None else _gpu_object(found.on_gpu),
        "on_cpu": encode(found.on_cpu),
        "gpu_least_power": found.gpu_least_power,
        "wire_bound": encode(found.wire_bound),
    }


def score_lines(found: Score) -> list[str]:
    """Return how good the predictions were."""
    lines = [
        f"{len(found.runs)} runs foreseen from those before each of them, on the same machines"
    ]
    if found.runs:
        lines += ["", f"  {'':<26}{'n':>4}{'median error':>14}{'bias':>9}{'in range':>10}"]
        lines += [_errors_line(each) for each in found.overall]
        lines += [
            "",
            "  warm step by parameter",
            *(_errors_line(each) for each in found.by_parameter),
        ]
        shown = found.runs[-_SHOWN_RUNS:]
        lines += ["", f"  {'run':<24}{'foreseen':>26}{'measured':>11}{'error':>8}  what"]
        lines += [_run_line(each) for each in shown]
        if len(shown) < len(found.runs):
            lines.append(f"  the newest {len(shown)} of {len(found.runs)}; --json has all")
    lines += [f"  left out   {count} x {why}" for why, count in sorted(found.left_out.items())]
    return [safe_text(line) for line in lines]


def score_object(found: Score) -> dict[str, Any]:
    """Return the score as plain data; times in seconds."""
    return {
        "runs": [
            {**encode(each), "error_percent": 100 * (each.warm.value - each.warm_s) / each.warm_s}
            for each in found.runs
        ],
        "overall": [encode(each) for each in found.overall],
        "by_parameter": [encode(each) for each in found.by_parameter],
        "left_out": dict(found.left_out),
    }


def _prediction_lines(prediction: Prediction) -> list[str]:
    work = prediction.work
    lines = [f"  warm step    {_span(prediction.warm)}"]
    if prediction.cold is not None:
        lines.append(f"  cold step    {_span(prediction.cold)}")
    if prediction.wall is not None:
        lines.append(f"  whole run    {_span(prediction.wall)}, with {work.repeat} warm steps")
    lines += ["", "  of the warm step"]
    lines += [
        f"    {part.what:<12}{part.where:<34}{time_text(part.seconds.value):>10}"
        for part in prediction.parts
    ]
    if prediction.cold_start:
        lines += ["", "  once, by the probe of the GPUs"]
        lines += [
            f"    {part.what:<12}{part.where:<40}{_span(part.seconds)}"
            for part in prediction.cold_start
        ]
    return [*lines, ""]


def _own_gpu_lines(found: Outlook) -> list[str]:
    lines = []
    if found.on_cpu is not None:
        power = found.gpu_least_power
        told = "for no n" if power is None else f"from n = {power} on"
        lines.append(f"  on its CPUs  {_span(found.on_cpu)}; GPUs are faster {told}")
    if (bound := found.wire_bound) is not None:
        lines.append(
            f"  wire         products outweigh it from n L = {bound.product:.0f} on "
            f"(4 P / B, P {bound.gflops / 1e3:.3g} TFLOP/s, B {_digits(bound.mb_per_s)} MB/s): "
            f"n = {bound.power} at L {found.work.size}"
        )
    return lines


def _one_node_lines(found: Outlook) -> list[str]:
    if found.one_node is None or found.prediction is None:
        return []
    nodes = found.work.tasks
    lines = [f"  on one node  {_span(found.one_node)}, all {nodes} tasks in one process"]
    ways = []
    if found.least_power is not None:
        ways.append(f"from n = {found.least_power} on at L {found.work.size}")
    if found.least_size is not None:
        ways.append(f"from L = {found.least_size} on at n {found.work.power}")
    told = ", ".join(ways) or "for no n and no L that this model knows"
    return [*lines, f"  {nodes} nodes are faster than one {told}"]


def _gpu_lines(found: Outlook, on: OnGpu) -> list[str]:
    gpu, own, both = on.gpu, ptx.LISTING_PRODUCTS, 2 * ptx.LISTING_PRODUCTS
    head = ("issue", "waiting", "at least", "resident", "1 warp/SM", f"x {own}", f"x {both}")
    lines = [f"  {gpu.title}, {gpu.architecture}, {gpu.sms} SMs, {gpu.peak_tflops:.1f} TFLOP/s"]
    lines.append(
        f"    bounds of one product of L {found.work.size} by the instruction table, none measured"
    )
    lines.append(f"    {'':<12}{''.join(f'{each:>11}' for each in head)}")
    for each in on.bounds:
        times = (
            each.issue_s, each.latency_s, each.lower_s, each.resident_s, each.alone_s,
            own * each.resident_s, both * each.resident_s,
        )  # fmt: skip
        lines.append(f"    {each.kernel.name:<12}{''.join(f'{time_text(s):>11}' for s in times)}")
    best, worst = on.library
    rows = [("library", f"{time_text(best)} to {time_text(worst)}, 80 to 20 % of the peak")]
    if found.product_s is not None:
        rows.append(
            (
                "CPU here",
                f"{time_text(found.product_s)}, {time_text(own * found.product_s)} for {own}",
            )
        )
    rows.append(
        ("question", f"about {ptx.QUESTION_S:g} s, with 2 x {own} products of L 1000 in it")
    )
    if on.step is not None:
        rows.append(("warm step", f"{_span(on.step)}, wires and overhead as measured here"))
        told = "for no n" if on.least_power is None else f"from n = {on.least_power} on"
        rows.append(("faster", f"{told} than the CPUs, at L {found.work.size}"))
    return [*lines, *(f"    {name:<12}{text}" for name, text in rows)]


def _gpu_object(on: OnGpu) -> dict[str, Any]:
    return {
        "gpu": {**encode(on.gpu), "peak_tflops": round(on.gpu.peak_tflops, 3)},
        "bounds": [encode(each) for each in on.bounds],
        "library": list(on.library),
        "step": encode(on.step),
        "least_power": on.least_power,
        "question_s": ptx.QUESTION_S,
        "instructions": [encode(each) for each in ptx.instruction_table()],
    }


def _errors_line(each: Errors) -> str:
    return (
        f"  {each.what:<26}{each.n:>4}{each.median_percent:>13.0f}%{each.bias_percent:>+8.0f}%"
        f"{each.inside_percent:>9.0f}%"
    )


def _run_line(each: Scored) -> str:
    work = each.work
    error = 100 * (each.warm.value - each.warm_s) / each.warm_s
    inter_op = "default" if work.inter_op is None else work.inter_op
    what = f"L {work.size} n {work.power} {work.algorithm} {work.feed} {work.placement} inter-op {inter_op}"
    planned = ("  gpu" if work.device == "gpu" else "") + ("  planned" if each.planned else "")
    return f"  {each.run_id:<24}{_span(each.warm):>26}{time_text(each.warm_s):>11}{error:>+7.0f}%  {what}{planned}"


def _span(range_: Range) -> str:
    return f"{time_text(range_.value)} ({time_text(range_.low)} to {time_text(range_.high)})"


def time_text(seconds: float) -> str:
    """Return a time with two digits or more, in the unit that suits it."""
    if abs(seconds) >= 1:
        return f"{seconds:.1f} s"
    for factor, unit in ((1e3, "ms"), (1e6, "µs"), (1e9, "ns")):
        if abs(seconds) * factor >= 1:
            value = seconds * factor
            return f"{value:.0f} {unit}" if abs(value) >= 10 else f"{value:.1f} {unit}"
    return "under 1 ns" if seconds else "0 s"


def _amount(value: float, unit: str) -> str:
    if unit in {"s", "s/MB"}:
        return "0, under the noise" if value < _NOISE_S else f"{time_text(value)}{unit[1:]}"
    return f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
