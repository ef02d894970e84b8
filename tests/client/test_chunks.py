import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from softmaxd_client import InvalidTensorError, chunks, tensors, transport
from softmaxd_client.blocks import BLOCK_BYTES, SPLIT_BYTES
from softmaxd_client.info import Execution
from softmaxd_proto import codec
from softmaxd_proto.v1 import softmax_pb2

MB = 1 << 20


def layout(shape, dtype=np.float32):
    return tensors.layout_of(np.broadcast_to(np.zeros((), dtype), shape))


def chunked(array, *, out=None, writable=True):
    return chunks.ChunkedRequest(
        "id-1", array, tensors.layout_of(array), zero_masked_rows=False, out=out, writable=writable
    )


def echo(block):
    """Answer a block with its own elements, what ran being the number of the block."""
    _, payload = codec.decode(softmax_pb2.SoftmaxStreamRequest, block.owner.encode(block))
    return transport.Answer(payload, Execution(f"variant {block.number}", 1, 1))


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((2 * MB // 4,), np.float32, False),
        ((2, MB // 4), np.float32, False),
        ((2 * MB + 4, 1), np.float16, True),
        ((MB // 4 + 1, 2), np.float32, True),
        ((1, 5, 3 * MB // 4), np.float32, True),
        ((16 * MB,), np.float32, False),
        ((1, 1, 16 * MB), np.float32, False),
        ((0, 16 * MB), np.float32, False),
        ((2**20, 2**20), ml_dtypes.bfloat16, True),
    ],
    ids=str,
)
def test_is_large_tensor_of_more_than_2_mb_and_one_row(shape, dtype, expected):
    assert SPLIT_BYTES == 2 * MB
    assert chunks.is_large(layout(shape, dtype)) is expected


def test_chunked_request_beyond_one_message_goes_in_blocks_of_a_megabyte():
    huge = np.broadcast_to(np.float32(1), (2**12, 2**18))  # 4 GiB, on paper
    request = chunked(huge)
    numbers = [block.number for block, _ in zip(request.blocks(), range(20), strict=False)]
    assert numbers == list(range(20))
    block = next(request.blocks())
    assert block.request.layout.nbytes == BLOCK_BYTES
    assert block.request.layout.shape == (1, 2**18)
    header, payload = codec.decode(softmax_pb2.SoftmaxStreamRequest, request.encode(block))
    assert (header.id, list(header.shape)) == ("id-1/1", [1, 2**18])
    assert payload == np.ones(2**18, np.float32).tobytes()


def test_chunked_request_row_beyond_one_message_is_refused():
    with pytest.raises(InvalidTensorError, match=r"got 4294967296 bytes for one message.*shorter rows"):
        chunked(np.broadcast_to(np.float32(0), (3, 2**30)))


@pytest.mark.parametrize(
    ("row_bytes", "weight"), [(100, 1), (400, 1), (404, 2), (800, 2), (1200, 3), (1600, 4), (1604, 4), (8000, 4)]
)
def test_block_weight_is_its_size_and_at_most_half_of_what_may_be_in_flight(small_blocks, row_bytes, weight):
    assert chunks.BLOCKS_IN_FLIGHT == 8
    assert next(chunked(np.zeros((100, row_bytes // 4), np.float32)).blocks()).weight == weight


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f2", ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("out", [None, "C", "F", "strided", "in place"])
@pytest.mark.parametrize("order", ["C", "F", "reversed"])
def test_chunked_request_echoed_is_the_array(small_blocks, dtype, out, order):
    expected = np.random.default_rng(0).normal(size=(7, 9, 11)).astype(dtype)
    array = expected[:, ::-1].copy()[:, ::-1] if order == "reversed" else expected.copy(order)
    outs = {
        "C": np.zeros_like(expected),
        "F": np.zeros_like(expected, order="F"),
        "strided": np.zeros((14, 9, 33), dtype)[::2, :, ::3],
        "in place": array,
    }
    request = chunked(array, out=outs.get(out))
    for block in request.blocks():
        assert not request.is_answered
        request.accept(block, echo(block))
    assert request.is_answered
    result, execution = request.result()
    assert execution.variant == "variant 0"
    assert result.dtype == expected.dtype
    assert result.tobytes() == expected.tobytes()
    assert result is outs[out] if out else result.flags.c_contiguous


@pytest.mark.parametrize("writable", [True, False])
def test_chunked_request_new_answer_is_writable_where_asked(small_blocks, writable):
    request = chunked(np.zeros((50, 10), np.float32), writable=writable)
    for block in request.blocks():
        request.accept(block, echo(block))
    assert request.result()[0].flags.writeable is writable


def test_chunked_request_after_a_failure_begins_again_at_the_block_that_failed(small_blocks):
    array = np.arange(600, dtype=np.float32).reshape(60, 10)  # six blocks
    request = chunked(array)
    failure = transport.missing_answer("id-1/3")
    sent = list(request.blocks())
    assert [block.request.request_id for block in sent] == [f"id-1/{number}" for number in range(1, 7)]
    request.accept(sent[0], echo(sent[0]))
    request.accept(sent[1], echo(sent[1]))
    request.accept(sent[2], failure)
    request.accept(sent[3], echo(sent[3]))  # dropped
    request.accept(sent[4], transport.missing_answer("id-1/5"))
    assert request.error is failure
    assert list(request.blocks()) == []
    with pytest.raises(type(failure)) as caught:
        request.raise_error()
    assert caught.value is failure
    again = list(request.blocks())
    assert [block.request.request_id for block in again] == [f"id-1/{number}" for number in range(3, 7)]
    for block in again:
        request.accept(block, echo(block))
    request.raise_error()
    np.testing.assert_array_equal(request.result()[0], array)


@pytest.mark.parametrize("kind", ["C", ">f4", "strided"])
def test_chunked_request_never_holds_a_copy_of_the_array(kind):
    array = np.ones((1024, 4096), ">f4" if kind == ">f4" else "<f4")  # 16 MB
    if kind == "strided":
        array = np.ones((2048, 4096), np.float32)[::2]
    out = np.empty(array.shape, array.dtype)
    request = chunked(array, out=out)
    tracemalloc.start()
    try:
        for block in request.blocks():
            request.accept(block, echo(block))
        request.result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * BLOCK_BYTES


def test_can_receive_into_overlap_only_where_each_element_keeps_its_place():
    buffer = np.zeros((20, 20), np.float32)
    array = buffer[:10]
    assert chunks.can_receive_into(buffer[10:], array)
    assert chunks.can_receive_into(buffer[:10], array)
    assert chunks.can_receive_into(buffer[:, ::2], buffer[:, ::2])
    assert not chunks.can_receive_into(buffer[1:11], array)
    assert not chunks.can_receive_into(array[::-1], array)
    assert not chunks.can_receive_into(buffer.T, buffer)
