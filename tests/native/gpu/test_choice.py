"""What is built in for a device, and which rules are taken: native/src/gpu/choice.h, on the simulated device."""

from __future__ import annotations

import pytest
from harness import simulated_gpu

BLOCK_COLUMNS = 16384  # that block_row takes on the simulated device
HELD_COLUMNS = 60 * BLOCK_COLUMNS  # of one row, that split_row holds on 60 multiprocessors
CLUSTER_COLUMNS = 262144  # that cluster_row takes
TILE_COLUMNS = 4096  # of pipelined_row
PIECE_ROWS = (1 << 20) // (2 * BLOCK_COLUMNS * 4)  # that go through a slot at once


@pytest.fixture
def context(monkeypatch):
    """Open a device of 60 multiprocessors, or with what SIMT_<NAME> says, by rules."""

    def open_one(*choices, **settings):
        for name, value in {"MULTIPROCESSORS": 60, **settings}.items():
            monkeypatch.setenv(f"SIMT_{name}", str(value))
        return simulated_gpu.load().GpuContext(devices=[], choices=choices, threads=1)

    return open_one


def variant(context, rows, cols, dtype="float32"):
    return context.plan(rows, cols, dtype)[0]


@pytest.mark.parametrize(
    ("rows", "cols", "expected"),
    [
        (1, 1, "warp_row"),
        (5000, 1024, "warp_row"),
        (1, 1025, "block_row"),
        (5000, BLOCK_COLUMNS, "block_row"),
        (1, BLOCK_COLUMNS + 1, "split_row"),
        (1, HELD_COLUMNS, "split_row"),
        (1, HELD_COLUMNS + 1, "reread_row"),
        (2, HELD_COLUMNS // 2, "split_row"),
        (2, HELD_COLUMNS // 2 + 1, "reread_row"),
        (PIECE_ROWS, 2 * BLOCK_COLUMNS, "split_row"),
        (100 * PIECE_ROWS, 2 * BLOCK_COLUMNS, "split_row"),  # by the rows of one launch
        (100, HELD_COLUMNS // 2, "reread_row"),
    ],
)
def test_built_in_variant_suits_the_size_and_what_the_device_holds(context, rows, cols, expected):
    assert variant(context(), rows, cols) == expected


@pytest.mark.parametrize("settings", [{"COOPERATIVE": 0}, {"MULTIPROCESSORS": 1}], ids=str)
def test_built_in_variant_waits_for_nothing_where_the_device_cannot_hold_a_row(context, settings):
    opened = context(**settings)
    assert variant(opened, 1, BLOCK_COLUMNS) == "block_row"
    assert {variant(opened, rows, 1 << power) for rows in (1, 100) for power in (15, 18, 22)} == {"reread_row"}


def test_built_in_variant_of_many_long_rows_reads_once_where_there_are_clusters(context):
    opened = context(CLUSTERS=1, MULTIPROCESSORS=9)
    assert variant(opened, 1, 9 * TILE_COLUMNS) == "split_row"
    assert variant(opened, 100, 9 * TILE_COLUMNS) == "pipelined_row"
    assert variant(opened, 100, 9 * TILE_COLUMNS + 1) == "cluster_row"
    assert variant(opened, 100, CLUSTER_COLUMNS + 1) == "reread_row"
    assert variant(context(CLUSTERS=1, MULTIPROCESSORS=1), 1, CLUSTER_COLUMNS) == "cluster_row"
    assert variant(context(CLUSTERS=1, COOPERATIVE=0), 1, 9 * TILE_COLUMNS) == "cluster_row"


def test_built_in_variant_suits_the_least_of_two_devices(context, monkeypatch):
    monkeypatch.setenv("SIMT_DEVICES", "2")
    assert variant(context(), 1, HELD_COLUMNS) == "split_row"


def test_first_rule_that_fits_decides(context):
    opened = context(
        ("float16", None, 100, "warp_row"),
        (None, 2, 2000, "warp_row"),  # no more than it takes: 1024 columns
        (None, 2, 2000, "split_row"),
        (None, None, 3000, "block_row"),
        (None, None, 2000, "split_row"),  # no matrix comes here
    )
    assert variant(opened, 9, 100, "float16") == "warp_row"
    assert variant(opened, 9, 100, "bfloat16") == "block_row"
    assert variant(opened, 2, 1024) == "warp_row"
    assert variant(opened, 2, 1025) == "split_row"
    assert variant(opened, 3, 1025) == "block_row"
    assert variant(opened, 3, 3001) == "reread_row"


def test_variant_that_is_asked_for_is_taken_whatever_the_rules_say(context):
    opened = context((None, None, None, "reread_row"))
    assert [opened.plan(5, 300, "float32", name)[0] for name, _ in opened.variants] == [n for n, _ in opened.variants]


@pytest.mark.parametrize(
    "choices",
    [
        [(None, None, 4096, "basic"), (None, None, None, "five_pass")],
        [("float32", None, 1024, "basic"), (None, 4, None, "split_row"), (None, None, None, "reread_row")],
        [(None, None, 100, "basic"), (None, 5, 100, "warp_row")],  # none comes to the second
        [(None, None, 1024, "warp_row")],
    ],
    ids=str,
)
def test_rules_by_which_columns_alone_decide_between_bits_are_taken(choices):
    simulated_gpu.load().check_choices(choices)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        (
            [(None, 4, 1024, "basic"), (None, None, 1024, "warp_row")],
            "float32 with 1024 columns .* basic or by warp_row",
        ),
        ([("float16", 4, None, "basic")], "float16 with any number of columns .* basic or by reread_row"),
        ([(None, 4, 9, "basic"), (None, None, None, "five_pass")], "float32 with 9 columns .* basic or by five_pass"),
        (
            [(None, 4, 3000, "warp_row"), (None, None, None, "five_pass")],
            "with 1024 columns .* warp_row or by five_pass",
        ),
        ([(None, None, None, "magic")], "no variant 'magic'; there are: basic, five_pass, warp_row"),
        ([("float64", None, None, "basic")], "'float64'; allowed are float32"),
        ([(None, 0, None, "basic")], "max_rows 0 .* 1 or more"),
        ([(None, None, 0, "basic")], "max_cols 0; both must be 1 or more"),
    ],
    ids=str,
)
def test_rules_that_cannot_be_used_are_refused_and_say_why(choices, said, context):
    module = simulated_gpu.load()
    with pytest.raises(module.InvalidArgument, match=said):
        module.check_choices(choices)
    with pytest.raises(module.InvalidArgument, match=said):
        context(*choices)


def test_candidates_give_the_same_bits_and_take_so_many_columns(context):
    opened = context()
    assert {"warp_row", "block_row", "reread_row"} <= set(opened.candidates(1024))
    assert set(opened.candidates(1024)) - set(opened.candidates(1025)) == {"warp_row"}
    assert not {"basic", "five_pass"} & set(opened.candidates(1))
