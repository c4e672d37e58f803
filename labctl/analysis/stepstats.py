"""The step stats of a traced step, as TensorFlow serialises them: rows of numbers and names. Pure.

Only the fields that are used are declared, with the field numbers of TensorFlow's `step_stats.proto`,
`tensor_description.proto` and `allocation_description.proto`; a reader skips all others.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_PACKAGE = "labctl.trace"
# Of each message its fields: name, number, type (`d` int64, `s` text, or a message of this table), repeated.
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "StepStats": (("dev_stats", 1, "DeviceStepStats", True),),
    "DeviceStepStats": (("device", 1, "s", False), ("node_stats", 2, "NodeExecStats", True)),
    "NodeExecStats": (
        ("node_name", 1, "s", False),
        ("all_start_micros", 2, "d", False),
        ("op_start_rel_micros", 3, "d", False),
        ("op_end_rel_micros", 4, "d", False),
        ("all_end_rel_micros", 5, "d", False),
        ("output", 7, "NodeOutput", True),
        ("timeline_label", 8, "s", False),
        ("scheduled_micros", 9, "d", False),
    ),
    "NodeOutput": (("tensor_description", 3, "TensorDescription", False),),
    "TensorDescription": (("allocation_description", 4, "AllocationDescription", False),),
    "AllocationDescription": (("requested_bytes", 1, "d", False),),
}


class NodeRow(NamedTuple):
    """What one op, transfer or kernel left in the step stats.

    Attributes:
        device: TensorFlow's full device name.
        name: Node name.
        label: TensorFlow's label: type and inputs of an op, or edge, source and destination of a transfer.
        start_us: When it began, Unix time on that device's clock, microseconds.
        end_us: When its kernel, or the transfer, ended.
        output_bytes: Bytes of its first output, None if it is not told.
        scheduled_us: Of what ran on a GPU's stream, when the host queued it; 0 if it is not told. Of other rows it
            is not to be believed: TensorFlow 2.16 has dates in the 22nd century there.
    """

    device: str
    name: str
    label: str
    start_us: int
    end_us: int
    output_bytes: int | None
    scheduled_us: int = 0


def decode(data: bytes) -> list[NodeRow]:
    """Return the rows of serialised step stats, in their order.

    Raises:
        ValueError: The bytes are no step stats.
    """
    from google.protobuf.message import DecodeError

    stats = _message_class()()
    try:
        stats.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no step stats: {str(error) or type(error).__name__}") from error
    rows = []
    for device_stats in stats.dev_stats:
        device = device_stats.device
        for node in device_stats.node_stats:
            start_us = node.all_start_micros
            rows.append(
                NodeRow(
                    device,
                    node.node_name,
                    node.timeline_label,
                    start_us + node.op_start_rel_micros,
                    start_us + (node.op_end_rel_micros or node.all_end_rel_micros),
                    _bytes_of(node.output),
                    node.scheduled_micros,
                )
            )
    return rows


def _bytes_of(outputs: Any) -> int | None:
    for output in outputs:
        size: int = output.tensor_description.allocation_description.requested_bytes
        return size if size > 0 else None
    return None


@cache
def _message_class() -> type[Any]:
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.StepStats"))


def _file() -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name="labctl/step_stats.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = (
                FieldDescriptorProto.LABEL_REPEATED
                if repeated
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            if kind in _MESSAGES:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = (
                    FieldDescriptorProto.TYPE_INT64
                    if kind == "d"
                    else FieldDescriptorProto.TYPE_STRING
                )
    return file
