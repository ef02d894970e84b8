"""Inputs to start from: messages as clients and servers write them, and as they might."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from softmaxd_proto.v1 import softmax_pb2 as pb

from fuzz.checks import FILLER_ELEMENTS, FILLERS, KINDS

_VALUES = bytes(range(24))
_SLICE = pb.MemorySlice(region=bytes(16), offset=4096, byte_size=24)
# Fields of every kind.
_TENSORS: tuple[dict[str, Any], ...] = (
    {"data_type": pb.DATA_TYPE_FLOAT32, "shape": [2, 3], "payload": _VALUES},
    {"data_type": pb.DATA_TYPE_FLOAT16, "shape": [1, 3, 4], "payload": _VALUES, "id": "request 1"},
    {"data_type": pb.DATA_TYPE_BFLOAT16, "shape": [300], "payload": bytes(600), "id": "grüße"},
    {"data_type": pb.DATA_TYPE_FLOAT32, "shape": [2, 0], "id": "x" * 130},
    {"data_type": pb.DATA_TYPE_FLOAT32, "shape": [], "payload": bytes(4)},
    {"data_type": pb.DATA_TYPE_FLOAT32, "shape": [FILLER_ELEMENTS]},  # the filler is its payload
    {"data_type": 7, "shape": [-1, 2**62], "payload": b"abc"},
    {},
)
_REQUEST_FIELDS: tuple[dict[str, Any], ...] = (
    {"options": pb.SoftmaxOptions(zero_masked_rows=True)},
    {"source": _SLICE, "destination": _SLICE},
)
_EXECUTION = {"execution": pb.Execution(variant="row_block", tile_columns=3, tile_count=1)}
_FIELDS = {
    pb.SoftmaxRequest: _REQUEST_FIELDS,
    pb.SoftmaxStreamRequest: _REQUEST_FIELDS,
    pb.SoftmaxResponse: (_EXECUTION,),
    pb.SoftmaxStreamResponse: (_EXECUTION, {"status": pb.Status(code=3, message="got a payload of 7 bytes")}),
}
# Legal or not; stand between the other fields and the payload.
_ODDITIES = (
    b"",
    b"\x18\x02\x18\x03",  # a shape that is not packed
    b"\xba\x00\x03abc",  # field 7, its tag in two bytes
    b"\x7a\x83\x80\x00abc",  # a payload, its length in three bytes
    b"\xa3\x01\x7a\x01x\xa4\x01",  # a group with field 15 in it
    b"\x78\x01\x7d1234\x7912345678",  # field 15 as other types
    b"\x0a\x00" * 120,
    b"\x40\x00" * 300,
    b"\xfa\x80\x80\x80\x00\x01x",  # a payload, its tag as long as one may be
    b"\xfa\x80\x80\x80\x80\x00\x01x",  # and longer
    b"\x7a\x83" + b"\x80" * 8 + b"\x02abc",  # a payload, its length with more bits than a varint has
)


def seeds() -> Iterator[bytes]:
    """Make the inputs: each kind with each filler."""
    for selector in range(len(KINDS) * len(FILLERS)):
        kind = KINDS[selector % len(KINDS)]
        for fields in (*_TENSORS, *(_TENSORS[0] | own for own in _FIELDS[kind])):
            header = kind(**{**fields, "payload": b""}).SerializeToString()
            payload = kind(payload=fields.get("payload", b"")).SerializeToString()
            for oddity in _ODDITIES:
                yield bytes((selector,)) + header + oddity + payload
            yield bytes((selector,)) + payload + header
            yield bytes((selector,)) + (header + payload)[:-1]
