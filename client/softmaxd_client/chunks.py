"""A request whose tensor is large: it travels in blocks of rows over a stream, and so does the answer.

All of it is free of I/O and shared by both clients. A payload is copied once on the way out (into its block's message)
and once on the way in (into its rows of the answer).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmaxd_client import tensors, transport
from softmaxd_client.blocks import BLOCK_BYTES, SPLIT_BYTES, Index, row_indices
from softmaxd_client.errors import ServerError
from softmaxd_client.info import Execution
from softmaxd_client.tensors import Layout
from softmaxd_client.transport import Answer, Request

# Of one stream, in blocks of full size: enough for the server's four and for those on the way, each way. Measured on 2
# cores over loopback, 64 MB: 2 in flight take 1.1 times as long, 16 and 32 as long within the spread.
BLOCKS_IN_FLIGHT = 8


@dataclass(frozen=True)
class Block:
    """A block of a chunked request.

    Attributes:
        owner: The request.
        number: Its place among the owner's blocks, from 0 on.
        index: Where it is in the tensor, and its answer in the whole answer.
        request: What is asked.
    """

    owner: ChunkedRequest
    number: int
    index: Index
    request: Request

    @property
    def weight(self) -> int:
        """How many of `BLOCKS_IN_FLIGHT` it counts for; at most half, so that sending and receiving overlap."""
        return min(max(1, math.ceil(self.request.layout.nbytes / BLOCK_BYTES)), BLOCKS_IN_FLIGHT // 2)


class ChunkedRequest:
    """A request in blocks, and its answer as far as it has come.

    One thread may take `blocks()` while another one gives `accept` what is answered.

    Args:
        request_id: Unique within the client; the ids of its blocks are `<request_id>/<1, 2, ...>`.
        array: The tensor, in any memory and byte order; read until the last block is answered.
        layout: The array's.
        zero_masked_rows: An option of the request.
        out: Where the answer goes, fit for it (`tensors.check_out`); it may overlap `array`. None for a new array.
        writable: Whether a new array can be written to.

    Attributes:
        request_id: As given.
        error: Why the first block that failed did; None as long as none has.

    Raises:
        InvalidTensorError: A row is larger than a message can be.
    """

    def __init__(
        self,
        request_id: str,
        array: NDArray[Any],
        layout: Layout,
        *,
        zero_masked_rows: bool,
        out: NDArray[Any] | None,
        writable: bool,
    ) -> None:
        self.request_id = request_id
        self.error: ServerError | None = None
        self._array = array
        self._layout = layout
        self._zero_masked_rows = zero_masked_rows
        self._out = out
        self._writable = writable
        self._indices = list(row_indices(layout.shape, layout.element.itemsize))
        tensors.check_message_bytes(array[self._indices[0]].nbytes)
        self._answered = 0
        self._answer = out if out is not None and can_receive_into(out, array) else None
        self._execution: Execution | None = None

    @property
    def is_answered(self) -> bool:
        """Whether all of the answer has come."""
        return self._answered == len(self._indices)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks that have no answer, until one has failed."""
        for number in range(self._answered, len(self._indices)):
            if self.error is not None:
                return
            index = self._indices[number]
            layout = replace(self._layout, shape=self._array[index].shape)
            yield Block(self, number, index, Request(f"{self.request_id}/{number + 1}", layout))

    def encode(self, block: Block) -> bytes:
        """Write a block's message, from what the array holds now."""
        tensor = tensors.to_tensor(self._array[block.index])
        return transport.encode_request(tensor, block.request.request_id, zero_masked_rows=self._zero_masked_rows)

    def accept(self, block: Block, answer: Answer | ServerError) -> None:
        """Take what was answered to the next block, in the order of `blocks()`; behind one that failed, drop it."""
        if self.error is not None:
            return
        if isinstance(answer, ServerError):
            self.error = answer
            return
        if self._answer is None:
            self._answer = np.empty(self._layout.shape, self._layout.dtype)
        tensors.to_array(answer.payload, block.request.layout, out=self._answer[block.index], writable=True)
        self._execution = self._execution or answer.execution
        self._answered = block.number + 1

    def raise_error(self) -> None:
        """Raise why a block failed, if one has, and forget it: `blocks()` may begin again, at that block.

        Raises:
            ServerError: The block's.
        """
        error, self.error = self.error, None
        if error is not None:
            raise error

    def result(self) -> tuple[NDArray[Any], Execution]:
        """Return the answer, once all of it has come, and what ran for its first block; let go of all memory."""
        assert self._answer is not None
        assert self._execution is not None
        answer = self._answer
        if self._out is None:
            answer.flags.writeable = self._writable
        elif answer is not self._out:
            np.copyto(self._out, answer)
            answer = self._out
        del self._array, self._answer, self._out
        return answer, self._execution


def is_large(layout: Layout) -> bool:
    """Return whether a tensor travels in blocks: it is large, and has rows to split it by."""
    return layout.nbytes > SPLIT_BYTES and layout.nbytes > layout.shape[-1] * layout.element.itemsize


def can_receive_into(out: NDArray[Any], array: NDArray[Any]) -> bool:
    """Return whether no block of the answer, written into `out`, changes a block of `array` that is yet to be sent.

    So it is where they have no memory in common, and where each element has the same place in both: a block is sent
    before it is answered. They have the same shape and element type.
    """
    if not np.may_share_memory(out, array):
        return True
    return out.strides == array.strides and out.ctypes.data == array.ctypes.data
