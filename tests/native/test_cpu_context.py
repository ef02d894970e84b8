"""The CPU kernels against float64, on every instruction set that this machine has."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from harness.reference import DTYPES, Array, assert_close, masked_scores
from hypothesis import given, settings
from hypothesis import strategies as st
from softmaxd_native import CpuContext, InvalidArgument, Unsupported, targets

TARGETS = targets()
CONTEXTS = {(target, threads): CpuContext(threads, target) for target in TARGETS for threads in (1, 3)}
VARIANTS = [name for name, _ in CONTEXTS[TARGETS[0], 3].variants]
LEAF = CONTEXTS[TARGETS[0], 1].plan(1, 1 << 20, "float32")[1]

# Around the lengths at which the code takes another way: a step of 32, a leaf, several leaves.
COLS = (1, 2, 7, 31, 32, 33, 100, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF + 5, 40_000)


def compute(context: CpuContext, x: Array, *, variant: str = "", zero_masked_rows: bool = False) -> Array:
    """Run x of shape (rows, cols); return the result, and check that all of it was written."""
    rows, cols = x.shape
    out = np.full(x.shape, 7, dtype=x.dtype)
    context.softmax(
        x.view(np.uint8),
        out.view(np.uint8),
        rows,
        cols,
        x.dtype.name,
        variant=variant,
        zero_masked_rows=zero_masked_rows,
    )
    return out


def supported(context: CpuContext, x: Array, variant: str) -> bool:
    """Tell whether the variant takes x here."""
    try:
        context.plan(*x.shape, x.dtype.name, variant)
    except InvalidArgument:
        return False
    return True


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_softmax_of_masked_scores_equals_float64(target: str, dtype: str, cols: int) -> None:
    context = CONTEXTS[target, 3]
    assert context.target == target
    with np.errstate(over="ignore"):  # finfo.min of float32 is -inf in float16
        x = masked_scores(np.random.default_rng(cols), 5, cols).astype(DTYPES[dtype])
    assert_close(compute(context, x), x)


@pytest.mark.parametrize("target", TARGETS)
def test_float32_whose_differences_round_keeps_the_tolerance(target: str) -> None:
    # x - max rounds for nearly every element here; without its error carried along this is 4e-6 off.
    x = np.random.default_rng(1).uniform(-80, 5, (64, 1000)).astype(np.float32)
    assert_close(compute(CONTEXTS[target, 1], x), x)


def test_float32_of_16777216_columns_keeps_the_tolerance() -> None:
    x = np.random.default_rng(2).standard_normal((1, 1 << 24), dtype=np.float32)
    context = CONTEXTS[TARGETS[0], 3]
    assert context.plan(*x.shape, "float32")[0] == "split_row"
    assert_close(compute(context, x), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_bit_pattern_of_16_bits_is_read_and_written_right(target: str, dtype: str) -> None:
    if dtype == "float32":
        pytest.skip("float32 has 2^32 patterns; its loads and stores convert nothing")
    patterns = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype])
    finite = patterns[np.isfinite(patterns.astype(np.float32))]
    # As the second of two columns each pattern meets a first that keeps the result from being 0 or 1.
    wide = finite.astype(np.float64)
    with np.errstate(over="ignore"):
        first = np.clip(wide + np.linspace(-9, 9, wide.size), -60000, 60000).astype(DTYPES[dtype])
    x = np.stack([first, finite], axis=1)
    assert_close(compute(CONTEXTS[target, 1], x), x)
    everything = np.stack([patterns, patterns], axis=1)
    with np.errstate(invalid="ignore"):
        assert_close(compute(CONTEXTS[target, 1], everything), everything)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cols", [1, 5, 32, LEAF + 3])
def test_special_values_follow_the_contract(target: str, dtype: str, cols: int) -> None:
    context = CONTEXTS[target, 1]
    inf, nan = np.inf, np.nan
    base = np.zeros((6, cols), dtype=DTYPES[dtype])
    base[1, cols // 2] = inf
    base[2, cols // 2] = nan
    base[3, :] = -inf
    base[4, :] = -inf
    base[4, cols // 2] = nan
    base[5, :] = -inf
    base[5, cols // 2] = 1
    out = compute(context, base).astype(np.float64)
    np.testing.assert_allclose(out[0], 1 / cols, rtol=4e-3)
    assert np.isnan(out[1:5]).all()
    assert out[5, cols // 2] == 1
    assert out[5].sum() == 1
    zeroed = compute(context, base, zero_masked_rows=True).astype(np.float64)
    assert (zeroed[3] == 0).all()
    assert np.isnan(zeroed[4]).all(), "a NaN among -inf is not a mask"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", TARGETS)
def test_results_below_the_smallest_normal_are_flushed_to_zero(target: str, dtype: str) -> None:
    x = np.array([[0, -80, -87, -88, -90, -100, -103]], dtype=DTYPES[dtype])
    out = compute(CONTEXTS[target, 1], x).astype(np.float64)
    assert (out[0, :3] > 0).all()
    assert (out[0, 3:] == 0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_the_float_environment_of_the_caller_is_left_as_it_was(target: str) -> None:
    compute(CONTEXTS[target, 1], np.zeros((1, 4), np.float32))
    assert np.float32(2.0**-130) * np.float32(1.0) > 0, "subnormals must live on outside the kernel"


def test_split_rows_of_any_special_values_equal_whole_rows() -> None:
    context = CONTEXTS[TARGETS[0], 3]
    for special in (np.nan, np.inf, -np.inf):
        x = np.full((1, 150 * LEAF), -np.inf, dtype=np.float32)
        x[0, 7 * LEAF + 3] = special
        for variant in ("split_row", "reread_row"):
            assert np.isnan(compute(context, x, variant=variant)).all()


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_one_rows_bits_depend_on_nothing_around_it(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(DTYPES)))
    cols = data.draw(st.sampled_from(COLS) | st.integers(1, 5 * LEAF))
    rows = data.draw(st.integers(1, 9))
    target = data.draw(st.sampled_from(TARGETS))
    x = masked_scores(np.random.default_rng(data.draw(st.integers(0, 99))), rows, cols)
    with np.errstate(over="ignore"):
        x = x.astype(DTYPES[dtype])
    alone = np.concatenate([compute(CONTEXTS[target, 1], x[i : i + 1]) for i in range(rows)])
    for threads in (1, 3):
        context = CONTEXTS[target, threads]
        for variant in VARIANTS:
            if supported(context, x, variant):
                assert compute(context, x, variant=variant).tobytes() == alone.tobytes(), (variant, threads)
    # At any address, in place, and behind a prefix.
    shift = data.draw(st.integers(1, 63))
    room = np.empty(x.nbytes + shift, np.uint8)
    room[shift:] = x.view(np.uint8).reshape(-1)
    context.softmax(room[shift:], room[shift:], rows, cols, dtype)
    assert room[shift:].tobytes() == alone.tobytes()
    prefix = b"p" * shift
    message, _ = context.softmax_message(prefix, x.view(np.uint8), rows, cols, dtype)
    assert message == prefix + alone.tobytes()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("cols", [150 * LEAF, 300_001])
def test_rows_that_threads_share_have_the_bits_of_one_thread(dtype: str, cols: int) -> None:
    x = masked_scores(np.random.default_rng(cols), 3, cols)
    with np.errstate(over="ignore"):
        x = x.astype(DTYPES[dtype])
    shared = CONTEXTS[TARGETS[0], 3]
    assert shared.plan(*x.shape, dtype)[0] == "split_row"
    alone = compute(CONTEXTS[TARGETS[0], 1], x)
    assert compute(shared, x).tobytes() == alone.tobytes()
    for shift in (0, 3):  # in place, at any address
        room = np.empty(x.nbytes + shift, np.uint8)
        room[shift:] = x.view(np.uint8).reshape(-1)
        shared.softmax(room[shift:], room[shift:], *x.shape, dtype)
        assert room[shift:].tobytes() == alone.tobytes()


def test_a_result_that_passes_the_caches_has_the_same_bits() -> None:
    context = CONTEXTS[TARGETS[0], 3]
    for rows, cols in ((130_001, 33), (2100, LEAF + 1), (3, 1_500_001)):
        x = np.random.default_rng(rows).standard_normal((rows, cols), dtype=np.float32)
        whole = compute(context, x)  # more than 16 MiB
        for i in (0, rows // 2, rows - 1):
            assert compute(context, x[i : i + 1]).tobytes() == whole[i].tobytes()
        assert_close(whole, x)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("cols", [1, 33, 1000, LEAF, 2 * LEAF])
def test_small_work_has_the_bits_of_large_work(dtype: str, cols: int) -> None:
    context = CpuContext(2)  # no target by name: small work takes AVX2 where large work takes AVX-512
    x = masked_scores(np.random.default_rng(cols), 100_000 // cols, cols)
    with np.errstate(over="ignore"):
        x = x.astype(DTYPES[dtype])
    whole = compute(context, x)
    assert whole.tobytes() == compute(CONTEXTS[TARGETS[0], 1], x).tobytes()
    for i in range(0, len(x), max(1, len(x) // 5)):
        assert compute(context, x[i : i + 1]).tobytes() == whole[i].tobytes()


def test_many_callers_at_once_get_their_own_results() -> None:
    context = CpuContext(3)
    inputs = [np.random.default_rng(i).standard_normal((1 + i, 50_000), dtype=np.float32) for i in range(6)]
    expected = [compute(CONTEXTS[TARGETS[0], 1], x).tobytes() for x in inputs]
    wrong: list[int] = []

    def call(i: int) -> None:
        wrong.extend(i for _ in range(20) if compute(context, inputs[i]).tobytes() != expected[i])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_steady_state_allocates_no_workspace() -> None:
    context = CpuContext(2)
    sizes = [(3, 10), (100, 1000), (4, 70_000), (1, 300_000)]
    for rows, cols in sizes * 5:
        compute(context, np.zeros((rows, cols), np.float32))
    [(name, used, reserved, allocations)] = context.pools
    for rows, cols in sizes * 50:
        compute(context, np.zeros((rows, cols), np.float32))
    assert name == "workspace"
    assert used == 0
    assert reserved > 0
    # At most one a thread, whenever the threads happen to meet.
    assert context.pools[0][3] <= max(allocations, context.threads)


@pytest.mark.parametrize(("rows", "cols"), [(0, 5), (5, 0), (0, 0)])
def test_an_empty_matrix_succeeds(rows: int, cols: int) -> None:
    assert compute(CONTEXTS[TARGETS[0], 1], np.zeros((rows, cols), np.float32)).size == 0


def test_wrong_arguments_are_refused_with_a_reason() -> None:
    context = CONTEXTS[TARGETS[0], 1]
    x = np.zeros(4, np.float32)
    with pytest.raises(InvalidArgument, match=r"source has 16 bytes; 1 x 5 elements need 20"):
        context.softmax(x, x, 1, 5, "float32")
    with pytest.raises(InvalidArgument, match=r"destination has 12 bytes"):
        context.softmax(x, x[:3].copy(), 1, 4, "float32")
    with pytest.raises(InvalidArgument, match=r"'float64'; allowed are float32, float16, bfloat16"):
        context.softmax(x, x, 1, 2, "float64")
    with pytest.raises(InvalidArgument, match=r"no variant 'fast'; there are: split_row"):
        context.softmax(x, x, 1, 4, "float32", variant="fast")
    with pytest.raises(InvalidArgument, match=r"split_row does not take 1 x 4 with 1 threads"):
        context.softmax(x, x, 1, 4, "float32", variant="split_row")
    with pytest.raises(InvalidArgument, match=r"more than memory can hold"):
        context.softmax(x, x, 1 << 40, 1 << 40, "float32")
    with pytest.raises(BufferError):
        context.softmax(x, x.tobytes(), 1, 4, "float32")
    with pytest.raises(Unsupported, match=r"AVX9 cannot be had here; there are: "):
        CpuContext(1, "AVX9")
    with pytest.raises(InvalidArgument, match=r"at most 1024"):
        CpuContext(100_000)
