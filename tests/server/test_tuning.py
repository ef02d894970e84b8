from __future__ import annotations

import json
import os

import pytest
from harness import tables
from softmaxd_server import tuning
from softmaxd_server.errors import TuningError

MEASURED = {"dtype": "float16", "rows": 3, "cols": 70, "microseconds": {"warp_row": 1.5, "block_row": 2}}
CHOICE = {"variant": "warp_row"}


def test_table_that_was_saved_is_loaded_as_it_was(tmp_path):
    table = tuning.TuningTable.model_validate_json(tables.text(*tables.MIXED, measured=[MEASURED]))
    path = tmp_path / "table.json"
    path.write_text("what was there")
    tuning.save(table, path)
    assert tuning.load(path) == table
    assert list(tmp_path.iterdir()) == [path]


def test_file_is_json_with_a_line_for_each_rule_and_measurement(tmp_path):
    text = tuning.render(tuning.TuningTable.model_validate_json(tables.text(CHOICE, measured=[MEASURED])))
    assert json.loads(text)["choices"] == [{"dtype": None, "max_cols": None, "max_rows": None, "variant": "warp_row"}]
    assert json.loads(text)["measured"] == [MEASURED]
    assert list(json.loads(text)) == ["format", "runtime", "device", "driver", "date", "choices", "measured"]
    assert len(text.splitlines()) == 13


def test_table_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    table = tuning.TuningTable.model_validate_json(tables.text(CHOICE))
    with pytest.raises(TuningError, match=r"nowhere/table\.json: No such file"):
        tuning.save(table, tmp_path / "nowhere" / "table.json")

    def fail(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tuning.os, "replace", fail)
    with pytest.raises(TuningError, match="No space left"):
        tuning.save(table, tmp_path / "table.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "invalid JSON"),
        ("[]", "object"),
        ("\udcff", "invalid JSON"),
        (tables.text(CHOICE, format=2), "format: got 2: input should be 1"),
        (tables.text(CHOICE, color="red"), "color: got 'red': extra inputs are not permitted"),
        (tables.text(), r"choices: got \[\].* at least 1 item"),
        (tables.text({}), "choices.0.variant: field required"),
        (tables.text({**CHOICE, "cols": 5}), "choices.0.cols: got 5: extra"),
        (tables.text({**CHOICE, "dtype": "float64"}), "choices.0.dtype: got 'float64': .*'float32', 'float16' or"),
        (tables.text(CHOICE, {**CHOICE, "max_rows": 0}), "choices.1.max_rows: got 0: .* greater than or equal to 1"),
        (tables.text({**CHOICE, "max_cols": "9"}), "choices.0.max_cols: got '9': .* integer"),
        (tables.text({**CHOICE, "max_cols": 2**63}), "choices.0.max_cols: .* less than"),
        (tables.text(CHOICE, measured=[{**MEASURED, "rows": None}]), "measured.0.rows: got None"),
        (tables.text(CHOICE, device=None), "device: got None: .* string"),
    ],
    ids=lambda value: value[-40:],
)
def test_file_that_is_no_table_is_refused_with_what_was_got_and_what_to_do(tmp_path, text, said):
    path = tmp_path / "table.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(TuningError, match=rf"{path} cannot be used: .*{said}.*: make a table with softmaxctl tune"):
        tuning.load(path)


def test_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TuningError, match=r"cannot read .*none.json: No such file.*softmaxctl tune"):
        tuning.load(tmp_path / "none.json")


def test_shipped_tables_can_be_loaded():
    for found in tuning.shipped():
        assert found.table.runtime in ("cuda", "hip")
        assert found.table.measured
