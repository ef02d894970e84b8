"""Where the tensors of a request are that travels by reference: in memory that the server has registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softmaxd_proto.v1 import softmax_pb2


@dataclass(frozen=True)
class Placement:
    """A request's memory, kept for as long as this is.

    Attributes:
        source: Where the server reads.
        destination: Where it writes.
        tensors: What lies there: the source's, and the destination's.
        finish: Called once the server has answered, for good or ill: it uses the memory no more. Where it never
            answers, nobody may use the memory for something else.
    """

    source: softmax_pb2.MemorySlice
    destination: softmax_pb2.MemorySlice
    tensors: tuple[Any, Any]
    finish: Callable[[], None]

    @property
    def is_in_place(self) -> bool:
        """Whether the answer takes the source's place: to compute it twice would be wrong."""
        return self.source == self.destination

    @property
    def result(self) -> Any:
        """What the server writes to."""
        return self.tensors[1]


def overlap_in_part(source: int, destination: int, byte_size: int) -> bool:
    """Say whether two ranges of memory of one size, given by their addresses, share bytes but are not the same."""
    return 0 < abs(source - destination) < byte_size
