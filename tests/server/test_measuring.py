from __future__ import annotations

import pytest
from softmaxd_server import measuring
from softmaxd_server.measuring import Shape, choices_from, fastest, grid, measure
from softmaxd_server.tuning import Choice, Measurement


class TimedDevice:
    """A device whose launches take what is said, in seconds; it has no room for more than 1000 rows."""

    def __init__(self, seconds):
        self._seconds = seconds

    def candidates(self, cols):
        return ["warp_row", "block_row"] if cols <= 1024 else ["block_row"]

    def time_variant(self, variant, rows, cols, dtype):
        if rows > 1000:
            raise MemoryError
        return self._seconds(variant, rows, cols)


def cells(winners, dtype="float32"):
    """Measurements of what was fastest, by columns and rows."""
    return [
        Measurement(dtype=dtype, rows=rows, cols=cols, microseconds={variant: 1.0, "other": 2.0})
        for cols, by_rows in winners.items()
        for rows, variant in by_rows.items()
    ]


def test_grid_has_every_type_ordered_by_columns_and_no_matrix_over_its_bound():
    shapes = list(grid())
    assert {shape.dtype for shape in shapes} == {"float32", "float16", "bfloat16"}
    assert max(rows * cols * (4 if dtype == "float32" else 2) for dtype, rows, cols in shapes) == 256 << 20
    assert {1024, 16384, 32768} <= set(measuring.COLUMNS)  # the limits of variants
    own = [(cols, rows) for dtype, rows, cols in shapes if dtype == "float32"]
    assert own == sorted(own)


def test_measure_times_what_may_be_chosen_and_leaves_out_what_does_not_fit():
    told = []
    shapes = [Shape("float16", 2, 100), Shape("float16", 2000, 100), Shape("float16", 2, 2000)]
    measured = measure(TimedDevice(lambda *_: 2.5e-6), shapes, told.append)
    assert told == measured
    assert [(each.rows, each.cols) for each in measured] == [(2, 100), (2, 2000)]
    assert [each.microseconds for each in measured] == [{"warp_row": 2.5, "block_row": 2.5}, {"block_row": 2.5}]


def test_rules_of_a_measured_device_choose_what_was_fastest():
    device = TimedDevice(lambda variant, rows, cols: 1.0 if (variant == "block_row") == (rows > 10) else 2.0)
    choices = choices_from(measure(device, [Shape("float32", rows, 100) for rows in (1, 10, 100)]))
    assert choices == (Choice(max_rows=10, variant="warp_row"), Choice(variant="block_row"))


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        ({"split_row": 100, "reread_row": 101.9}, "reread_row"),
        ({"split_row": 100, "reread_row": 102.1}, "split_row"),
        ({"block_row": 100, "warp_row": 101, "reread_row": 99.5}, "warp_row"),
        ({"new_row": 100, "split_row": 101}, "split_row"),
        ({"new_row": 100}, "new_row"),
    ],
    ids=str,
)
def test_fastest_is_the_simplest_within_two_percent(microseconds, expected):
    assert fastest(microseconds) == expected


def test_rules_merge_neighbours_and_the_last_hold_for_all_that_is_larger():
    winners = {
        64: {1: "a", 8: "a", 64: "b"},
        128: {1: "a", 8: "a", 64: "b", 512: "b"},
        256: {1: "c", 8: "c"},
        512: {1: "c", 8: "a"},
        1024: {1: "c"},
        2048: {1: "c", 8: "c"},
    }
    assert choices_from(cells(winners)) == (
        Choice(max_cols=128, max_rows=8, variant="a"),
        Choice(max_cols=128, variant="b"),
        Choice(max_cols=256, variant="c"),
        Choice(max_cols=512, max_rows=1, variant="c"),
        Choice(max_cols=512, variant="a"),
        Choice(variant="c"),
    )


def test_rules_are_shared_by_types_only_where_all_have_the_same():
    same = cells({64: {1: "a"}}) + cells({64: {1: "a"}}, "float16")
    assert choices_from(same) == (Choice(variant="a"),)
    other = cells({64: {1: "a"}}) + cells({64: {1: "b"}}, "float16")
    assert choices_from(other) == (Choice(dtype="float32", variant="a"), Choice(dtype="float16", variant="b"))


def test_simulated_device_is_measured(open_backend):
    backend = open_backend("simt", threads=1)
    measured = measure(backend, [Shape("bfloat16", 2, 40), Shape("bfloat16", 1, 1030)])
    assert [set(each.microseconds) for each in measured] == [set(backend.candidates(cols)) for cols in (40, 1030)]
    assert all(taken > 0 for each in measured for taken in each.microseconds.values())
