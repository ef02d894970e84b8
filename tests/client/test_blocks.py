import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from softmaxd_client.blocks import row_blocks


@given(
    shape=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    block_bytes=st.integers(1, 200),
    order=st.sampled_from("CF"),
)
def test_row_blocks_any_array_joined_is_the_array(shape, block_bytes, order):
    array = np.asarray(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), order=order)
    blocks = list(row_blocks(array, block_bytes))
    assert b"".join(block.tobytes() for block in blocks) == array.tobytes()
    row_bytes = 4 * shape[-1]
    for block in blocks:
        assert block.shape[-1] == shape[-1]
        assert block.nbytes <= max(block_bytes, row_bytes)
        assert np.shares_memory(block, array)


@pytest.mark.parametrize(
    ("shape", "shapes"),
    [
        ((10, 25), [(4, 25), (4, 25), (2, 25)]),
        ((3, 200), [(1, 200)] * 3),
        ((300,), [(300,)]),
        ((2, 3, 50), [(2, 50), (1, 50)] * 2),
        ((5, 2, 3, 4), [(3, 2, 3, 4), (2, 2, 3, 4)]),
        ((0, 5), []),
        ((5, 0), []),
    ],
)
def test_row_blocks_of_400_bytes_have_these_shapes(shape, shapes):
    assert [block.shape for block in row_blocks(np.zeros(shape, np.float32), 400)] == shapes
