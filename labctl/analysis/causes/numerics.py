"""Rules on wrong results that are right arithmetic: overflow and reduced precision. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes.common import Cause, gpu_asked, has_words, is_matpow, last_event
from labctl.analysis.causes.model import Rule, Verdict
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

OVERFLOW = Cause("float32-overflow", "once", "float32 cannot hold the result", "A")
TF32 = Cause("tf32", "once", "The GPU multiplied in TF32, not in float32", "A")

# TF32 has 10 bits of mantissa: products are off by some 2^-11, chains of them by up to a few per cent.
_TF32_LEAST, _TF32_MOST = 1e-4, 5e-2
_OVERFLOW_WORDS = ("overflows float32",)


def _overflow(run: Explained) -> Verdict:
    cause = OVERFLOW
    remedy = "a smaller --power; inputs scaled by 2/L keep powers finite (only listing leaves them as they are)"
    for event in run.data.events:
        told = event.kind == wire.ERROR and event.text("message")
        if told and (event.text("kind") == "out-of-range" or has_words(told, *_OVERFLOW_WORDS)):
            return cause.found(None, [f"the client says: {told}"], remedy=remedy)
    result = last_event(run, wire.RESULT)
    if result is None:
        return cause.not_measured("the run has no result", "a run that ends")
    norm, error = result.number("norm"), result.number("relative_error")
    if norm is None and result.flag("ok") is not True:
        return cause.found(
            None,
            [
                f"the result of power {run.data.record.parameters.power} has entries that are not finite"
            ],
            remedy=remedy,
        )
    if norm is None:
        return cause.not_measured("the result's norm is not in the record", "a run that ends")
    told = "" if error is None else f", relative error {error:.1e}"
    return cause.ruled_out(f"the result's norm is {norm:.3g}{told}")


def _tf32(run: Explained) -> Verdict:
    cause = TF32
    result = last_event(run, wire.RESULT)
    error = result.number("relative_error") if result is not None else None
    if gpu_asked(run) is False:
        told = "0 products on a GPU" if error is None else f"relative error {error:.1e} on CPUs"
        return cause.ruled_out(told)
    if not is_matpow(run) or error is None or result is None:
        return cause.not_measured("the run has no result to compare", "a run that ends")
    if result.flag("ok") is not False or not _TF32_LEAST <= error <= _TF32_MOST:
        return cause.ruled_out(f"relative error {error:.1e}")
    return cause.found(
        None,
        [f"relative error {error:.1e}: that of TF32's 10 bits, where float32 leaves some 1e-6"],
        remedy="tf.config.experimental.enable_tensor_float_32_execution(False), or NVIDIA_TF32_OVERRIDE=0",
        confidence="medium",
    )


RULES: tuple[Rule, ...] = (OVERFLOW.rule(_overflow), TF32.rule(_tf32))
