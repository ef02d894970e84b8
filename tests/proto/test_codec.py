"""The codec against the generated classes: the same messages, both ways."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from softmaxd_proto import codec
from softmaxd_proto.v1 import softmax_pb2 as pb

KINDS = (pb.SoftmaxRequest, pb.SoftmaxStreamRequest, pb.SoftmaxResponse, pb.SoftmaxStreamResponse)
LARGE = 40_000  # beyond what the codec leaves to the library

payloads = st.binary(max_size=300) | st.integers(LARGE, LARGE + 3).map(bytes)


@st.composite
def requests(draw: st.DrawFn) -> pb.SoftmaxRequest:
    """A request with any field set or not."""
    request = pb.SoftmaxRequest(
        id=draw(st.text(max_size=20)),
        data_type=draw(st.integers(0, 4)),  # type: ignore[arg-type] # 4 is no member, and legal on the wire
        shape=draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)),
        payload=draw(payloads),
    )
    if draw(st.booleans()):
        request.options.zero_masked_rows = draw(st.booleans())
    return request


def field(number: int, wire_type: int, value: bytes) -> bytes:
    """Write one field; the value as it stands on the wire."""
    return varint(number << 3 | wire_type) + value


def varint(value: int) -> bytes:
    """Write a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def length_delimited(number: int, value: bytes) -> bytes:
    """Write a field of wire type 2."""
    return field(number, 2, varint(len(value)) + value)


def assert_decodes_as_the_library_does(kind: type[Message], message: bytes) -> None:
    """Compare `decode` with the generated class, which may also refuse."""
    try:
        expected = kind.FromString(message)
    except DecodeError:
        with pytest.raises(codec.MalformedMessageError):
            codec.decode(kind, message)
        return
    header, payload = codec.decode(kind, message)
    assert payload.tobytes() == expected.payload  # type: ignore[attr-defined]
    expected.ClearField("payload")
    assert header == expected


@given(requests())
def test_decode_of_what_the_library_writes_equals_it(request: pb.SoftmaxRequest) -> None:
    assert_decodes_as_the_library_does(pb.SoftmaxRequest, request.SerializeToString())


@given(requests())
def test_encode_writes_what_the_library_writes(request: pb.SoftmaxRequest) -> None:
    header = pb.SoftmaxRequest.FromString(request.SerializeToString())
    header.ClearField("payload")
    message = codec.encode(header, memoryview(request.payload))
    assert message == request.SerializeToString()
    assert codec.prefix(header, len(request.payload)) + request.payload == message


# Fields in any order, repeated, unknown, split over two messages, padded varints, groups, and plain rubbish.
fragments = st.lists(
    st.one_of(
        requests().map(lambda request: request.SerializeToString()),
        payloads.map(lambda payload: length_delimited(15, payload)),
        payloads.map(lambda payload: field(15, 2, b"\x80\x00" if not payload else varint(len(payload)) + payload)),
        st.builds(length_delimited, st.integers(1, 40), st.binary(max_size=20)),
        st.builds(lambda number, value: field(number, 0, varint(value)), st.integers(1, 40), st.integers(0, 2**64 - 1)),
        st.builds(lambda number, value: field(number, 5, value), st.integers(1, 40), st.binary(min_size=4, max_size=4)),
        st.builds(lambda number, value: field(number, 1, value), st.integers(1, 40), st.binary(min_size=8, max_size=8)),
        st.just(b"\xfa\x00\x03abc"),  # the payload's tag in two bytes
        st.just(field(20, 3, b"") + field(20, 4, b"")),  # a group
        st.binary(max_size=12),
    ),
    max_size=6,
).map(b"".join)


@settings(max_examples=400)
@given(kind=st.sampled_from(KINDS), message=fragments, filler=st.booleans())
def test_decode_of_any_bytes_agrees_with_the_library(kind: type[Message], message: bytes, filler: bool) -> None:
    # An unknown field of 40 KB in front takes small messages through the codec's own walk as well.
    assert_decodes_as_the_library_does(kind, (length_delimited(14, bytes(LARGE)) if filler else b"") + message)


@given(request=requests(), cut=st.integers(0, 200), filler=st.booleans())
def test_decode_of_a_truncated_message_agrees_with_the_library(
    request: pb.SoftmaxRequest, cut: int, filler: bool
) -> None:
    message = (length_delimited(14, bytes(LARGE)) if filler else b"") + request.SerializeToString()
    assert_decodes_as_the_library_does(pb.SoftmaxRequest, message[: max(0, len(message) - cut)])


def test_decode_of_a_large_message_copies_no_payload() -> None:
    message = pb.SoftmaxRequest(
        id="a", data_type=pb.DATA_TYPE_FLOAT32, shape=[1], payload=bytes(LARGE)
    ).SerializeToString()
    _, payload = codec.decode(pb.SoftmaxRequest, message)
    assert payload.obj is message


@pytest.mark.parametrize("kind", KINDS)
def test_payload_is_the_last_field_of_each_message(kind: type[Message]) -> None:
    numbers = {descriptor.name: descriptor.number for descriptor in kind.DESCRIPTOR.fields}
    assert numbers["payload"] == codec.PAYLOAD_FIELD == max(numbers.values())


def test_stream_messages_have_the_fields_of_the_unary_ones() -> None:
    def fields(kind: type[Message]) -> dict[str, int]:
        return {descriptor.name: descriptor.number for descriptor in kind.DESCRIPTOR.fields}

    assert fields(pb.SoftmaxStreamRequest) == fields(pb.SoftmaxRequest)
    assert fields(pb.SoftmaxStreamResponse).items() > fields(pb.SoftmaxResponse).items()
