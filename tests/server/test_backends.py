from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest
from softmaxd_proto import dtypes
from softmaxd_server import backends
from softmaxd_server.backends import native
from softmaxd_server.backends.base import Work
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.config import Config
from softmaxd_server.errors import BackendUnavailableError

DATA = Path(__file__).parents[1] / "data"
SMALLEST_NORMAL = 2.0**-126
INF, NAN = math.inf, math.nan
# Relative and absolute. float32: the contract's bound, and results below the smallest normal are 0. The others: half a
# unit in the last place, a little more as the float32 result is rounded a second time; float16 keeps its subnormals.
TOLERANCES = {
    "float32": (1e-6, SMALLEST_NORMAL),
    "float16": (1.01 * 2.0**-11, 1.01 * 2.0**-25),
    "bfloat16": (1.01 * 2.0**-8, SMALLEST_NORMAL),
}
SHAPES = {  # why each is here
    (1,): "rank 1, one column",
    (7, 1): "one column",
    (3, 17): "no multiple of any vector",
    (2, 3, 5): "rank 3",
    (1, 1024): "one row",
    (300, 1000): "more than one block of the reference",
    (1, 70001): "one long row",
}
type_names = pytest.mark.parametrize("name", list(dtypes.BY_NAME))


def independent_softmax(row):
    """Softmax of one row in float64 with exactly rounded sums, sharing no code with any backend."""
    largest = max(row)
    exponentials = [math.exp(value - largest) for value in row]
    total = math.fsum(exponentials)
    return [value / total for value in exponentials]


def assert_close(got, x, name):
    relative, absolute = TOLERANCES[name]
    rows = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
    expected = np.array([independent_softmax(row.tolist()) for row in rows]).reshape(x.shape)
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=relative, atol=absolute)


def bits(x):
    return x.view(np.uint8).tobytes()


def values(seed, shape, name, scale=8.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtypes.BY_NAME[name].numpy)


@type_names
@pytest.mark.parametrize("shape", list(SHAPES), ids=str)
def test_softmax_of_any_shape_is_near_an_independent_float64_one(backend, shape, name):
    x = values(1, shape, name)
    got = backend.softmax(x)
    assert got.dtype == x.dtype
    assert got.shape == shape
    assert_close(got, x, name)


def test_softmax_of_real_logits_is_near_the_recorded_float64_one(backend):
    x = np.load(DATA / "digits_mlp_logits_f32.npy")
    expected = np.load(DATA / "digits_mlp_softmax_f64.npy")
    relative, absolute = TOLERANCES["float32"]
    np.testing.assert_allclose(backend.softmax(x), expected, rtol=relative, atol=absolute)


@type_names
@pytest.mark.parametrize(
    ("row", "zero_masked_rows", "expected"),
    [
        ([1, NAN, 2], False, [NAN, NAN, NAN]),
        ([NAN, -INF, -INF], True, [NAN, NAN, NAN]),
        ([1, INF, 2], False, [NAN, NAN, NAN]),
        ([INF, INF, -INF], True, [NAN, NAN, NAN]),
        ([-INF, -INF, -INF], False, [NAN, NAN, NAN]),
        ([-INF, -INF, -INF], True, [0, 0, 0]),
        ([-INF, 3, 3], False, [0, 0.5, 0.5]),
        ([-INF, -INF, 3], True, [0, 0, 1]),
        ([INF], False, [NAN]),
        ([NAN], False, [NAN]),
        ([-INF], False, [NAN]),
        ([-INF], True, [0]),
        ([5], True, [1]),
    ],
    ids=str,
)
def test_softmax_of_nan_and_inf_follows_the_contract(backend, name, row, zero_masked_rows, expected):
    element = dtypes.BY_NAME[name]
    ordinary = np.zeros(len(row))
    x = np.array([ordinary, row, ordinary], element.numpy)
    got = backend.softmax(x, zero_masked_rows=zero_masked_rows).astype(np.float64)
    np.testing.assert_array_equal(got[1], expected)
    np.testing.assert_allclose(got[0::2], 1 / len(row), rtol=2**-8)


@type_names
def test_softmax_of_finfo_min_masks_gives_exact_zeros(backend, name):
    element = dtypes.BY_NAME[name]
    lowest = {"float32": -3.4028235e38, "float16": -65504.0, "bfloat16": -3.3895314e38}[name]
    x = np.array([[0, lowest, 0, lowest], [lowest] * 4], element.numpy)
    np.testing.assert_array_equal(backend.softmax(x).astype(np.float64), [[0.5, 0, 0.5, 0], [0.25] * 4])


def test_softmax_of_largest_finite_values_stays_finite(backend):
    x = np.array([[3e38, -3e38], [-3e38, -3e38]], np.float32)
    np.testing.assert_array_equal(backend.softmax(x), [[1, 0], [0.5, 0.5]])


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_softmax_below_the_smallest_normal_is_zero(backend, name):
    x = np.array([[0, -86, -87, -88, -89, -95, -103, -104]], dtypes.BY_NAME[name].numpy)
    got = backend.softmax(x).astype(np.float64)[0]
    assert got[1] > 0
    np.testing.assert_array_equal(got[3:], 0)
    assert not np.any((got > 0) & (got < SMALLEST_NORMAL))


def test_softmax_of_float16_keeps_subnormals(backend):
    x = np.array([[0, -10, -12, -15, -18]], np.float16)
    got = backend.softmax(x)
    assert 0 < got[0, 3] < 2.0**-14
    assert_close(got, x, "float16")


@type_names
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), (0, 0), (2, 0, 5)], ids=str)
def test_softmax_of_nothing_is_nothing(backend, name, shape):
    got = backend.softmax(np.empty(shape, dtypes.BY_NAME[name].numpy))
    assert got.shape == shape


@type_names
def test_answer_is_the_prefix_and_the_bits_of_softmax(backend, name):
    x = values(3, (5, 33), name)
    work = Work(5, 33, dtypes.BY_NAME[name], False)
    answer, phase_seconds = backend.answer(b"prefix", memoryview(x.tobytes()), work)
    assert answer == b"prefix" + bits(backend.softmax(x))
    assert set(phase_seconds) <= {"upload", "kernel", "download"}
    assert phase_seconds["kernel"] > 0


def test_plan_names_a_variant_and_tiles_that_cover_a_row(backend):
    names = {variant.name for variant in backend.variants}
    for cols in (1, 100, 5000, 1 << 20):
        plan = backend.plan(Work(3, cols, dtypes.BY_NAME["float32"], False))
        assert plan.variant in names
        assert (plan.tile_count - 1) * plan.tile_columns < cols <= plan.tile_count * plan.tile_columns


def test_answer_of_masked_rows_honours_the_option(backend):
    x = np.full((2, 3), -INF, np.float32)
    answer, _ = backend.answer(b"", memoryview(x.tobytes()), Work(2, 3, dtypes.BY_NAME["float32"], True))
    assert answer == bytes(24)


def test_every_variant_when_asked_for_computes(backend, open_backend):
    backend = open_backend(backend.name, threads=2)  # some variants need a second thread
    arrays = [values(5, shape, "float32") for shape in ((4, 100), (2, 300_000))]
    for variant in backend.variants:
        assert variant.note
        taken = [(x, got) for x in arrays if (got := _softmax_or_none(backend, x, variant.name)) is not None]
        assert taken, f"{variant.name} takes none of the shapes"
        for x, got in taken:
            assert_close(got, x, "float32")


def _softmax_or_none(backend, x, variant):
    """A variant may refuse a shape that it is not made for."""
    try:
        return backend.softmax(x, variant=variant)
    except ValueError:
        return None


def test_softmax_with_out_writes_into_it_and_returns_it(backend):
    x = values(6, (4, 10), "bfloat16")
    out = np.empty_like(x)
    assert backend.softmax(x, out=out) is out
    assert bits(out) == bits(backend.softmax(x))


def test_softmax_of_strided_and_swapped_arrays_has_the_same_bits(backend):
    x = values(7, (6, 10), "float32")
    wide = np.zeros((6, 20), np.float32)
    wide[:, ::2] = x
    assert bits(backend.softmax(wide[:, ::2])) == bits(backend.softmax(x))
    assert bits(backend.softmax(x.astype(">f4"))) == bits(backend.softmax(x))


@pytest.mark.parametrize(
    ("x", "options", "said"),
    [
        (np.zeros((2, 2)), {}, "float64"),
        (np.zeros((2, 2), np.int32), {}, "int32"),
        (np.float32(1), {}, "rank 0"),
        (np.zeros((2, 2), np.float32), {"out": np.zeros((2, 3), np.float32)}, r"\(2, 3\)"),
        (np.zeros((2, 2), np.float32), {"out": np.zeros((2, 2), np.float16)}, "float16"),
        (np.zeros((2, 2), np.float32), {"out": np.zeros((2, 4), np.float32)[:, ::2]}, "C-contiguous: False"),
        (np.zeros((2, 2), np.float32), {"variant": "magic"}, "magic"),
    ],
)
def test_softmax_of_bad_arguments_says_what_was_got(backend, x, options, said):
    with pytest.raises(ValueError, match=said):
        backend.softmax(np.asarray(x), **options)


def test_backend_describes_its_devices_and_pools(backend):
    backend.warm_up()
    assert all(name and parallelism >= 1 and unit for name, parallelism, unit in backend.devices)
    assert all(reserved >= used >= 0 for _, used, reserved, _ in backend.pools())


def test_every_backend_agrees_with_the_reference(backend):
    reference = NumpyBackend()
    for name, (relative, absolute) in TOLERANCES.items():
        x = values(8, (50, 777), name)
        got, expected = backend.softmax(x), reference.softmax(x)
        # Both sides may be off by the tolerance.
        np.testing.assert_allclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=2 * relative, atol=2 * absolute
        )


@pytest.mark.parametrize("name", list(backends.BACKENDS))
def test_select_by_name_opens_that_backend_or_says_why_not(name):
    try:
        opened = backends.select(name)
    except BackendUnavailableError as error:
        assert name != "numpy"
        pytest.skip(str(error))
    assert opened.name == name
    opened.close()


@pytest.mark.parametrize(("name", "built"), [("hip", "cuda"), ("cuda", "hip"), ("hip", None)])
def test_select_gpu_of_another_build_says_why_and_what_to_do(monkeypatch, name, built):
    pytest.importorskip("softmaxd_native", reason="softmaxd_native is not installed")
    monkeypatch.setattr("softmaxd_native.gpu_runtime", built)
    said = rf"built {f'for {built}' if built else 'without GPU support'}: .*SOFTMAXD_GPU={name.upper()}.*--backend cpu"
    with pytest.raises(BackendUnavailableError, match=said):
        backends.select(name)


@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_select_backend_without_tuning_refuses_a_table_and_says_which_take_one(name):
    with pytest.raises(BackendUnavailableError, match=r"got --tuning some\.json.*--backend hip or cuda"):
        backends.select(name, Config.model_construct(tuning=Path("some.json")))


def test_select_unknown_name_lists_the_known_ones():
    with pytest.raises(BackendUnavailableError, match="'tpu', allowed are auto, hip, cuda, cpu, numpy"):
        backends.select("tpu")


@pytest.mark.parametrize("error", [ImportError("no such module"), AttributeError("CpuContext")], ids=repr)
def test_select_cpu_without_native_module_says_how_to_get_it(monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr(native.importlib, "import_module", fail)
    with pytest.raises(BackendUnavailableError, match=r"pip install \./native"):
        backends.select("cpu")


def test_select_auto_without_native_module_takes_numpy_and_logs_why(monkeypatch, caplog):
    def fail(name):
        raise ImportError("no such module")

    monkeypatch.setattr(native.importlib, "import_module", fail)
    with caplog.at_level(logging.INFO):
        assert backends.select("auto").name == "numpy"
    for name in ("hip", "cuda", "cpu"):
        assert f"not using backend {name}" in caplog.text
    assert "using backend numpy" in caplog.text
