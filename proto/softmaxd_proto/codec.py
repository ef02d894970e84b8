"""Messages that carry a tensor's bytes, read and written without copying those bytes.

protobuf's own classes copy a `bytes` field once when they parse a message and twice when they write one. Here the
payload stays where it is: `decode` gives a view into the message, and `prefix` gives all that stands before the
payload, so that an answer's bytes can be produced straight behind it. Everything but the payload is still read and
written by the protobuf library, so the result is the same, bit for bit.

To find the payload, a large message's fields are walked in Python. No message can hold up the process by that: the walk
stops, and the message is refused, at `MAX_FIELDS` fields or `MAX_HEADER_BYTES` besides payloads.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

PAYLOAD_FIELD = 15
# What a message over 32 KiB may have at most: several times what this contract can need.
MAX_FIELDS = 256  # with those within groups
MAX_HEADER_BYTES = 64 * 1024  # besides payloads
_VARINT, _LENGTH_DELIMITED = 0, 2  # wire types
# The other wire types -> the bytes of the value, and the levels of nesting added: a group's start and end are fields.
_FIXED = {1: (8, 0), 3: (0, 1), 4: (0, -1), 5: (4, 0)}
_UINT64_MAX = 2**64 - 1  # of a longer varint the library drops the upper bits
_MAX_VARINT_BYTES, _MAX_TAG_BYTES = 10, 5
# Up to here the library's own parse and copy is quicker than a look at each field: 0.5 us against 2.3 us at 4 KB.
_SMALL_MESSAGE_BYTES = 32 * 1024
_EMPTY = memoryview(b"")


def tag(number: int) -> int:
    """Return the byte that a string, bytes or message field with a number of 1 to 15 starts with."""
    return number << 3 | _LENGTH_DELIMITED


_PAYLOAD_TAG = tag(PAYLOAD_FIELD)


class MalformedMessageError(ValueError):
    """Raised when bytes are not a message of the wanted kind, or one with more besides its payload than is allowed."""


class _LimitError(Exception):
    """Raised when the walk has come to a limit; says to which, as in "with more than 256 fields"."""


M = TypeVar("M", bound=Message)


def decode(kind: type[M], message: bytes) -> tuple[M, memoryview]:
    """Split a message into its header and its payload.

    Args:
        kind: The generated class; it has a field `payload` with the number `PAYLOAD_FIELD`.
        message: The bytes off the wire, written by any protobuf library: fields in any order, repeated or unknown.

    Returns:
        The message with an empty `payload`, and the payload. Of a message over 32 KiB it is a view into `message`.

    Raises:
        MalformedMessageError: The bytes are not such a message; or they are over 32 KiB and have more than `MAX_FIELDS`
            fields, or more than `MAX_HEADER_BYTES` besides the payload.
    """
    try:
        if len(message) > _SMALL_MESSAGE_BYTES:
            header, payload = _split(message)
            return kind.FromString(header), payload
        parsed = kind.FromString(message)
        payload = memoryview(parsed.payload)  # type: ignore[attr-defined] # every `kind` has the field
        parsed.ClearField("payload")
        return parsed, payload
    except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf's implementation in Python
        raise MalformedMessageError(f"not a {kind.DESCRIPTOR.full_name} message of {len(message)} bytes") from error
    except _LimitError as error:
        raise MalformedMessageError(f"a {kind.DESCRIPTOR.full_name} message of {len(message)} bytes {error}") from error


def prefix(header: Message, payload_bytes: int) -> bytes:
    """Write a message up to where its payload starts.

    Args:
        header: The message with an empty `payload`, and no field with a number above `PAYLOAD_FIELD`.
        payload_bytes: The payload's size in bytes, >= 0.

    Returns:
        Bytes which, followed by the payload, are the whole message.
    """
    return header.SerializeToString() + payload_start(payload_bytes)


def payload_start(payload_bytes: int) -> bytes:
    """Write what stands between a message's other fields and its payload: nothing where the payload is empty."""
    if payload_bytes == 0:
        return b""
    written = bytearray((_PAYLOAD_TAG,))
    while payload_bytes > 0x7F:
        written.append(payload_bytes & 0x7F | 0x80)
        payload_bytes >>= 7
    written.append(payload_bytes)
    return bytes(written)


def encode(header: Message, payload: memoryview) -> bytes:
    """Write a whole message, copying the payload once.

    Args:
        header: As for `prefix`.
        payload: Contiguous bytes.
    """
    return b"".join((prefix(header, payload.nbytes), payload))


def _split(message: bytes) -> tuple[bytes, memoryview]:
    """Return all fields but the payload, and the payload: the last one, as the library takes it.

    Raises:
        DecodeError: The fields do not end where the message ends. Other mistakes are left to the library.
        _LimitError: There are too many of them, or they have too many bytes.
    """
    header = []  # what stands before, between and behind payloads
    payload = _EMPTY
    header_start = position = payload_bytes = depth = 0
    end = len(message)
    try:
        for _ in range(MAX_FIELDS):
            start = position
            field_tag = message[position]
            position += 1
            if field_tag > 0x7F:
                field_tag, position = _varint(message, start, _MAX_TAG_BYTES)
            wire_type = field_tag & 7
            if wire_type == _LENGTH_DELIMITED:
                length = message[position]
                position += 1
                if length > 0x7F:
                    length, position = _varint(message, position - 1)
                position += length
                if field_tag == _PAYLOAD_TAG and depth == 0:
                    payload = memoryview(message)[position - length : position]
                    header.append(message[header_start:start])
                    header_start = position
                    payload_bytes += position - start
            elif wire_type == _VARINT:
                position += 1
                if message[position - 1] > 0x7F:
                    _, position = _varint(message, position - 1)
            elif wire_type in _FIXED:
                value_bytes, levels = _FIXED[wire_type]
                position += value_bytes
                depth += levels
            else:
                raise DecodeError(f"wire type {wire_type}")
            if position >= end or position - payload_bytes > MAX_HEADER_BYTES:
                break
    except IndexError as error:
        raise DecodeError("truncated") from error
    if position > end:
        raise DecodeError("truncated")
    if position - payload_bytes > MAX_HEADER_BYTES:
        raise _LimitError(
            f"with at least {position - payload_bytes} bytes besides its payload, allowed are {MAX_HEADER_BYTES}"
        )
    if position < end:
        raise _LimitError(f"with more than {MAX_FIELDS} fields, allowed are {MAX_FIELDS}")
    header.append(message[header_start:])
    return b"".join(header), payload


def _varint(message: bytes, position: int, most_bytes: int = _MAX_VARINT_BYTES) -> tuple[int, int]:
    """Read a varint; return its value and the position behind it.

    Raises:
        DecodeError: It does not end within the message, or within so many bytes.
    """
    value = 0
    for index, byte in enumerate(message[position : position + most_bytes]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & _UINT64_MAX, position + index + 1
    raise DecodeError("varint without an end")
