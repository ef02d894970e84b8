"""The codec against the generated classes: the same messages, both ways."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from softmaxd_proto import codec
from softmaxd_proto.v1 import softmax_pb2 as pb

KINDS = (pb.SoftmaxRequest, pb.SoftmaxStreamRequest, pb.SoftmaxResponse, pb.SoftmaxStreamResponse)
LARGE = 40_000
VARINT, FIXED_64, LENGTH_DELIMITED, GROUP_START, GROUP_END, FIXED_32 = range(6)

kinds = st.sampled_from(KINDS)
payloads = st.binary(max_size=300) | st.integers(LARGE, LARGE + 3).map(bytes)


def varint(value: int, padding: int = 0) -> bytes:
    """Write a varint, with more bytes than it needs if told so."""
    out = bytearray()
    while value > 0x7F or padding > len(out):
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def field(number: int, wire_type: int, value: bytes, padding: int = 0) -> bytes:
    """Write one field; the value as it stands on the wire."""
    return varint(number << 3 | wire_type, padding) + value


def length_delimited(number: int, value: bytes, tag_padding: int = 0, length_padding: int = 0) -> bytes:
    """Write a field of a string, of bytes or of a message."""
    return field(number, LENGTH_DELIMITED, varint(len(value), length_padding) + value, tag_padding)


def group(number: int, content: bytes) -> bytes:
    """Write a group: fields between a start and an end."""
    return field(number, GROUP_START, content) + field(number, GROUP_END, b"")


slices = st.builds(
    pb.MemorySlice,
    region=st.binary(max_size=16),
    offset=st.integers(0, 2**64 - 1),
    byte_size=st.integers(0, 2**64 - 1),
)
# Hypothesis makes its table of Unicode when it first needs it on a machine, in 1.4 s. Within a test it would take that
# for an input that is slow to make.
st.text().validate()
# What a field of the messages may hold, by its name; 4 is no DataType, and legal on the wire.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.text(max_size=20),
    "data_type": st.integers(0, 4),
    "shape": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    "options": st.builds(pb.SoftmaxOptions, zero_masked_rows=st.booleans()),
    "source": slices,
    "destination": slices,
    "execution": st.builds(pb.Execution, variant=st.text(max_size=9), tile_columns=st.integers(0, 2**64 - 1)),
    "status": st.builds(pb.Status, code=st.integers(-(2**31), 2**31 - 1), message=st.text(max_size=40)),
    "payload": payloads,
}


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> Message:
    """Make a message with any of its fields set or not."""
    names = draw(st.sets(st.sampled_from([each.name for each in kind.DESCRIPTOR.fields])))
    return kind(**{name: draw(VALUES[name]) for name in sorted(names)})


def fields_of(message: Message) -> list[bytes]:
    """Return each field of a message as it stands on the wire."""
    kind = type(message)
    return [kind(**{descriptor.name: value}).SerializeToString() for descriptor, value in message.ListFields()]


numbers = st.sampled_from((7, 14, 15, 16, 17, 2047, 2048, 2**29 - 1))  # of no field, and the payload's
padding = st.sampled_from((0, 0, 1, 4))
scalars = st.one_of(
    st.builds(
        lambda number, value, pad: field(number, VARINT, varint(value, pad)), numbers, st.integers(0, 9), padding
    ),
    st.builds(lambda number: field(number, VARINT, varint(2**64 - 1)), numbers),
    st.builds(lambda number, value: field(number, FIXED_64, value), numbers, st.binary(min_size=8, max_size=8)),
    st.builds(lambda number, value: field(number, FIXED_32, value), numbers, st.binary(min_size=4, max_size=4)),
)
groups = st.recursive(
    st.builds(group, numbers, scalars | st.builds(length_delimited, numbers, st.binary(max_size=20))),
    lambda inner: st.builds(group, numbers, inner),
    max_leaves=3,
)
unknown_fields = st.one_of(
    scalars,
    groups,
    st.builds(length_delimited, numbers.filter(lambda number: number != 15), st.binary(max_size=20), padding, padding),
)
payload_fields = st.builds(length_delimited, st.just(15), payloads, padding, st.sampled_from((0, 0, 1, 4, 9)))
unpacked_shape = st.lists(st.integers(0, 2**40), max_size=5).map(
    lambda shape: b"".join(field(3, VARINT, varint(size)) for size in shape)
)


@st.composite
def legal_messages(draw: st.DrawFn, kind: type[Message]) -> bytes:
    """Write a large message as a writer may do that keeps to no order, repeats fields and knows some of its own."""
    parts = draw(st.lists(unknown_fields | payload_fields | unpacked_shape, max_size=5))
    for message in draw(st.lists(messages(kind), max_size=2)):
        parts += fields_of(message)
    parts.append(length_delimited(15, bytes(LARGE)))
    return b"".join(draw(st.permutations(parts)))


def assert_decodes_as_the_library_does(kind: type[Message], message: bytes) -> memoryview | None:
    """Compare `decode` with the generated class, which may also refuse; return the payload, or None."""
    try:
        expected = kind.FromString(message)
    except DecodeError:
        with pytest.raises(codec.MalformedMessageError):
            codec.decode(kind, message)
        return None
    header, payload = codec.decode(kind, message)
    assert payload.tobytes() == expected.payload  # type: ignore[attr-defined]
    expected.ClearField("payload")
    assert header == expected
    # `==` of messages may not look at unknown fields.
    assert header.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    return payload


@given(data=st.data(), kind=kinds)
def test_decode_of_what_the_library_writes_equals_it(data: st.DataObject, kind: type[Message]) -> None:
    assert_decodes_as_the_library_does(kind, data.draw(messages(kind)).SerializeToString())


@given(data=st.data(), kind=kinds)
def test_encode_writes_what_the_library_writes(data: st.DataObject, kind: type[Message]) -> None:
    whole: Any = data.draw(messages(kind))
    header = kind.FromString(whole.SerializeToString())
    header.ClearField("payload")
    message = codec.encode(header, memoryview(whole.payload))
    assert message == whole.SerializeToString()
    assert codec.prefix(header, len(whole.payload)) + whole.payload == message


@settings(max_examples=400)
@given(data=st.data(), kind=kinds)
def test_decode_of_a_large_legal_message_equals_the_library_and_copies_no_payload(
    data: st.DataObject, kind: type[Message]
) -> None:
    message = data.draw(legal_messages(kind))
    payload = assert_decodes_as_the_library_does(kind, message)
    assert payload is not None
    assert payload.obj is message


@given(data=st.data(), kind=kinds)
def test_decode_of_two_messages_in_one_merges_them_and_copies_no_payload(
    data: st.DataObject, kind: type[Message]
) -> None:
    halves = [data.draw(messages(kind)).SerializeToString() for _ in range(2)]
    message = b"".join((*halves, kind(payload=bytes(LARGE)).SerializeToString()))
    payload = assert_decodes_as_the_library_does(kind, message)
    assert payload is not None
    assert payload.obj is message


@given(data=st.data(), kind=kinds)
def test_decode_of_a_truncated_message_agrees_with_the_library(data: st.DataObject, kind: type[Message]) -> None:
    message = data.draw(legal_messages(kind))
    cut = data.draw(st.integers(0, 60) | st.integers(0, len(message)))
    assert_decodes_as_the_library_does(kind, message[: len(message) - cut])


# Fields that may be broken, groups that may not end, and plain rubbish.
fragments = st.lists(
    st.one_of(
        st.sampled_from(KINDS).flatmap(messages).map(lambda message: message.SerializeToString()),
        unknown_fields,
        payload_fields,
        st.builds(length_delimited, st.integers(0, 40), st.binary(max_size=20)),
        st.builds(lambda number, value: field(number, VARINT, value), st.integers(1, 40), st.binary(max_size=12)),
        st.builds(lambda number, kind: field(number, kind, b""), st.integers(0, 40), st.integers(0, 7)),
        st.builds(length_delimited, st.just(15), st.just(b"abc"), st.integers(4, 6), st.integers(8, 10)),
        # Bits that a varint has no room for: a tag of 35 bits, a length of 70.
        st.sampled_from((b"\xfa\x80\x80\x80\x10\x01x", b"\x7a\x81" + b"\x80" * 8 + b"\x02x")),
        st.binary(max_size=12),
    ),
    max_size=6,
).map(b"".join)


@settings(max_examples=400)
@given(kind=kinds, message=fragments, is_large=st.booleans())
def test_decode_of_any_bytes_agrees_with_the_library(kind: type[Message], message: bytes, is_large: bool) -> None:
    # A payload of 40 KB in front takes small messages through the codec's own walk as well.
    assert_decodes_as_the_library_does(kind, (length_delimited(15, bytes(LARGE)) if is_large else b"") + message)


@pytest.mark.parametrize("kind", KINDS)
def test_decode_of_a_large_message_without_a_payload_gives_an_empty_one(kind: type[Message]) -> None:
    message = kind(id="x" * LARGE).SerializeToString()
    payload = assert_decodes_as_the_library_does(kind, message)
    assert payload is not None
    assert payload.nbytes == 0


@pytest.mark.parametrize("number", [15, 20])
@pytest.mark.parametrize("tag_padding", range(7))
@pytest.mark.parametrize("length_padding", range(13))
def test_varint_longer_than_it_needs_to_be_is_taken_as_the_library_does(
    number: int, tag_padding: int, length_padding: int
) -> None:
    odd = length_delimited(number, b"abc", tag_padding, length_padding)
    assert_decodes_as_the_library_does(pb.SoftmaxRequest, length_delimited(15, bytes(LARGE)) + odd)


@pytest.mark.parametrize("kind", KINDS)
def test_payload_number_within_a_group_is_not_the_payload(kind: type[Message]) -> None:
    inner = group(20, length_delimited(15, b"inner"))
    message = b"".join((group(21, inner), length_delimited(15, bytes(LARGE)), inner, b"\x10\x01", group(7, inner)))
    payload = assert_decodes_as_the_library_does(kind, message)
    assert payload is not None
    assert payload.nbytes == LARGE


class ReadBytes(bytes):
    """Bytes that note how many of them are looked at."""

    looked_at = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.looked_at += 1 if isinstance(part, int) else len(part)
        return part


PAYLOAD = length_delimited(15, bytes(LARGE))
# What one more of something is refused for, at the limit: fields of 2, 1 and 3 bytes, within groups too.
TINY_FIELDS = {
    "varints": field(7, VARINT, b"\0"),
    "groups": group(7, b"")[:1],
    "padded": field(7, VARINT, b"\0", padding=1),
    "payloads": length_delimited(15, b"x"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["varints", "padded", "payloads"])
def test_message_with_as_many_fields_as_are_allowed_is_decoded(kind: type[Message], name: str) -> None:
    assert_decodes_as_the_library_does(kind, PAYLOAD + TINY_FIELDS[name] * (codec.MAX_FIELDS - 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TINY_FIELDS)
@pytest.mark.parametrize("excess", [1, 1_000_000])
def test_message_with_too_many_fields_is_refused_and_no_more_of_it_looked_at(
    kind: type[Message], name: str, excess: int
) -> None:
    message = ReadBytes(PAYLOAD + TINY_FIELDS[name] * (codec.MAX_FIELDS - 1 + excess))
    with pytest.raises(codec.MalformedMessageError) as raised:
        codec.decode(kind, message)
    assert str(raised.value) == (
        f"a {kind.DESCRIPTOR.full_name} message of {len(message)} bytes with more than 256 fields, allowed are 256"
    )
    assert message.looked_at <= 20 * codec.MAX_FIELDS


@pytest.mark.parametrize("kind", KINDS)
def test_message_with_as_many_bytes_besides_the_payload_as_are_allowed_is_decoded(kind: type[Message]) -> None:
    unknown = length_delimited(7, bytes(codec.MAX_HEADER_BYTES - 4 - 2))
    for message in (b"\x10\x01" + PAYLOAD + unknown, b"\x10\x01" + unknown + PAYLOAD):
        assert_decodes_as_the_library_does(kind, message)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("excess", [1, 1_000_000])
def test_message_with_too_many_bytes_besides_the_payload_is_refused_and_they_are_not_copied(
    kind: type[Message], excess: int
) -> None:
    unknown = length_delimited(7, bytes(codec.MAX_HEADER_BYTES - 4 - 2 + excess))
    message = ReadBytes(b"\x10\x01" + PAYLOAD + unknown + PAYLOAD)
    with pytest.raises(codec.MalformedMessageError) as raised:
        codec.decode(kind, message)
    assert str(raised.value) == (
        f"a {kind.DESCRIPTOR.full_name} message of {len(message)} bytes with at least {2 + len(unknown)} bytes besides "
        "its payload, allowed are 65536"
    )
    assert message.looked_at < 100


@pytest.mark.parametrize("kind", KINDS)
def test_payload_is_the_last_field_of_each_message(kind: type[Message]) -> None:
    numbers = {descriptor.name: descriptor.number for descriptor in kind.DESCRIPTOR.fields}
    assert numbers["payload"] == codec.PAYLOAD_FIELD == max(numbers.values())


def test_stream_messages_have_the_fields_of_the_unary_ones() -> None:
    def fields(kind: type[Message]) -> dict[str, int]:
        return {descriptor.name: descriptor.number for descriptor in kind.DESCRIPTOR.fields}

    assert fields(pb.SoftmaxStreamRequest) == fields(pb.SoftmaxRequest)
    assert fields(pb.SoftmaxStreamResponse).items() > fields(pb.SoftmaxResponse).items()
