"""Remembers what a request's header led to, for clients that send one shape again and again.

To parse a header, check it and write the answer's header costs 5 us in a tight loop, but 20 to 30 us between gRPC
calls, where caches are cold (4 KB tensors, 2-core Xeon). A header that is known costs a look-up and a comparison.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from softmaxd_proto import codec

from softmaxd_server.backends.base import Work

# An id up to here has a length of one byte.
_MAX_ID_BYTES = 0x7F
_MAX_ENTRIES = 256
# No client writes a longer one, and what is kept stays small. It also has fewer fields than `codec.MAX_FIELDS`, so that
# no message is known that `codec.decode` would refuse.
_MAX_HEAD_BYTES = 250
# Put before a head, it is replaced by any id in there, even by an empty one: it is too long to be that id.
_FOREIGN_ID = "x" * _MAX_HEAD_BYTES


class Recipe(NamedTuple):
    """How a request is answered, whatever its id and its values are.

    Attributes:
        work: What it asks for.
        prefix: The answer's message from behind its id up to its payload.
    """

    work: Work
    prefix: bytes


class Found(NamedTuple):
    """A request whose header is known.

    Attributes:
        id: The request's.
        id_field: The field that holds it, as it stands in the request and in its answer; empty without an id.
        recipe: How it is answered.
        payload: Its elements.
    """

    id: str
    id_field: bytes
    recipe: Recipe
    payload: memoryview


class HeaderMemo:
    """Finds headers by the size of their message without its id, and compares them byte by byte. Safe in many threads.

    Args:
        request: The generated class of the requests.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._id_tag = codec.tag(request.ID_FIELD_NUMBER)
        self._foreign_id = request(id=_FOREIGN_ID).SerializeToString()
        self._by_size: dict[int, tuple[bytes, Recipe]] = {}

    def find(self, message: bytes) -> Found | None:
        """Return what is known of a message, or None."""
        start = self._behind_id(message)
        known = self._by_size.get(len(message) - start)
        if known is None:
            return None
        head, recipe = known
        if not message.startswith(head, start):
            return None
        try:
            request_id = message[2:start].decode()
        except UnicodeDecodeError:  # protobuf refuses it too, and says so better
            return None
        return Found(request_id, message[:start], recipe, memoryview(message)[start + len(head) :])

    def remember(self, message: bytes, recipe: Recipe) -> None:
        """Keep what a valid message led to, if its id stands at its start, its payload at its end, little between."""
        work = recipe.work
        payload_bytes = work.rows * work.cols * work.element.itemsize
        payload_start = codec.payload_start(payload_bytes)
        behind_id, head_end = self._behind_id(message), len(message) - payload_bytes
        if head_end - behind_id > _MAX_HEAD_BYTES:
            return
        head = message[behind_id:head_end]
        if not head.endswith(payload_start):
            return
        try:
            # Only if all before the payload is a message of its own is all behind it the payload: these bytes could
            # also stand inside another field.
            rest = self._request.FromString(self._foreign_id + head.removesuffix(payload_start))
        except DecodeError:
            return
        if rest.id != _FOREIGN_ID or rest.payload:
            return
        if len(self._by_size) >= _MAX_ENTRIES:
            self._by_size.clear()
        self._by_size[len(head) + payload_bytes] = head, recipe

    def _behind_id(self, message: bytes) -> int:
        """Return where the fields behind the id start; 0 where no id, or a very long one, stands at the start.

        An empty id that was written out counts as none: no answer has one, since protobuf leaves empty fields out.
        """
        if len(message) < 2 or message[0] != self._id_tag or not 0 < message[1] <= _MAX_ID_BYTES:
            return 0
        return 2 + message[1]
