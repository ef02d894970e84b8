"""One row's bits are the same whatever is computed with it, and however: on every backend that can be had here.

Of each backend several are open, which must agree: the CPU's with other numbers of threads, a GPU's with a tuning table
besides, by which the number of rows decides between variants.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from harness import simulated_gpu, tables
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from softmaxd_proto import dtypes
from softmaxd_server.backends.base import Work

# What kernels cut rows at: vectors, leaves, groups of leaves, tiles.
EDGES = (8, 16, 32, 128, 256, 512, 1024, 2048, 4096, 16384, 32768, 65536)
SPECIAL = (-np.inf, np.inf, np.nan, 0.0)


class Limits(NamedTuple):
    """What one example may take, so that all of them take seconds."""

    elements: int
    examples: int


LIMITS = {simulated_gpu.NAME: Limits(20_000, 200)}
DEFAULT_LIMITS = Limits(150_000, 200)
CONFIGURATIONS: dict[str, list[dict[str, Any]]] = {
    "numpy": [{}],
    "cpu": [{"threads": threads} for threads in (1, 2, 3, 7)],
}


class Case(NamedTuple):
    """An array, and a way of computing some of its rows."""

    x: NDArray[Any]
    chosen: list[int]  # rows, in this order
    cuts: list[int]  # where these go on in another call
    source_offset: int  # bytes from an aligned address
    result_offset: int
    is_in_place: bool
    zero_masked_rows: bool


def column_counts(limit: int) -> st.SearchStrategy[int]:
    near_edges = st.builds(lambda edge, step: edge + step, st.sampled_from(EDGES), st.integers(-1, 1))
    return (st.integers(1, 70) | near_edges | st.integers(1, limit)).filter(lambda cols: cols <= limit)


@st.composite
def cases(draw: st.DrawFn, limit: int) -> Case:
    element = dtypes.BY_NAME[draw(st.sampled_from(list(dtypes.BY_NAME)))]
    cols = draw(column_counts(limit))
    rows = draw(st.integers(1, max(1, min(40, limit // cols))))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    wide = random.standard_normal((rows, cols)) * draw(st.sampled_from([0.1, 3, 30])) + random.integers(-99, 99)
    for row, value in draw(st.dictionaries(st.integers(0, rows - 1), st.sampled_from(SPECIAL), max_size=3)).items():
        wide[row, random.integers(0, cols) if value != -np.inf else slice(None)] = value
    chosen = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows))
    return Case(
        wide.astype(element.numpy),
        chosen,
        sorted(draw(st.sets(st.integers(1, len(chosen)), max_size=4))),
        draw(st.integers(0, 64)),
        draw(st.integers(0, 64)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def placed(array: NDArray[Any], offset: int) -> NDArray[Any]:
    """Return a copy that starts `offset` bytes behind an address that is a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def compute(backend: Any, case: Case) -> NDArray[Any]:
    """Compute the chosen rows as the case says."""
    parts = []
    for rows in np.split(case.x[case.chosen], case.cuts):
        source = placed(rows, case.source_offset)
        out = source if case.is_in_place else placed(np.zeros_like(rows), case.result_offset)
        parts.append(backend.softmax(source, out=out, zero_masked_rows=case.zero_masked_rows))
    return np.concatenate(parts)


def answered(backend: Any, case: Case) -> bytes:
    """Return the chosen rows' bits as the server makes them: behind an answer's header, from within a message."""
    rows = case.x[case.chosen]
    message = placed(rows, case.source_offset).reshape(-1).view(np.uint8)
    work = Work(*rows.shape, dtypes.of_numpy(rows.dtype), case.zero_masked_rows)
    prefix = bytes(case.result_offset)
    answer, _ = backend.answer(prefix, memoryview(message), work)
    return answer[len(prefix) :]


def test_row_has_the_same_bits_in_whatever_batch_and_placement(backend, open_backend, tuning_file):
    gpus = [{"threads": 1}, {"threads": 3}, {"threads": 1, "tuning": tuning_file(*tables.MIXED)}]
    configurations = CONFIGURATIONS.get(backend.name, gpus)
    opened = [open_backend(backend.name, **options) for options in configurations]
    limits = LIMITS.get(backend.name, DEFAULT_LIMITS)

    @settings(max_examples=limits.examples, deadline=None)
    @given(cases(limits.elements))
    def holds(case: Case) -> None:
        # One row at a time, aligned, by the first: what all the others are held against.
        alone = [opened[0].softmax(row[None], zero_masked_rows=case.zero_masked_rows) for row in case.x]
        expected = np.concatenate([alone[row] for row in case.chosen]).tobytes()
        for options, other in zip(configurations, opened, strict=True):
            assert compute(other, case).tobytes() == expected, options
            assert answered(other, case) == expected, options

    holds()


def test_rows_of_several_blocks_have_the_bits_of_a_row_alone(gpu, tuning_file):
    x = (np.random.default_rng(3).standard_normal((1500, 300)) * 4).astype(np.float32)
    whole = gpu(threads=1).softmax(x)
    assert gpu(threads=4).softmax(x).tobytes() == whole.tobytes()
    assert gpu(threads=1, tuning=tuning_file(*tables.MIXED)).softmax(x).tobytes() == whole.tobytes()
    for row in (0, 700, 1499):
        assert gpu(threads=1).softmax(x[row : row + 1]).tobytes() == whole[row].tobytes()


@pytest.mark.parametrize("rows", [1, 3, 7, 12, 20, 21])
def test_mixed_table_has_the_number_of_rows_decide(gpu, tuning_file, rows):
    backend = gpu(tuning=tuning_file(*tables.MIXED))
    limits = (choice.get("max_rows", rows) for choice in tables.MIXED)
    expected = next(choice["variant"] for choice, most in zip(tables.MIXED, limits, strict=True) if rows <= most)
    assert backend.plan(Work(rows, 100, dtypes.BY_NAME["float32"], False)).variant == expected
