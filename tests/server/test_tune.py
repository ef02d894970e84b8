from __future__ import annotations

import os
import subprocess
import sys

import pytest
from harness import simulated_gpu
from softmaxd_proto import dtypes
from softmaxd_server import tune, tuning
from softmaxd_server.backends import native
from softmaxd_server.backends.base import Work
from softmaxd_server.errors import TuningError
from softmaxd_server.measuring import Shape


def test_table_that_is_made_on_a_device_is_taken_there(open_backend, tmp_path, capsys):
    backend = open_backend("simt", threads=1)
    path = tmp_path / "table.json"
    tune.tune(backend, path, [Shape("float32", 2, 40), Shape("float32", 2, 1100)])
    printed = capsys.readouterr().out
    table = tuning.load(path)
    assert (table.runtime, table.device, table.driver) == ("simt", "simulated device 0", "1")
    assert [(each.rows, each.cols) for each in table.measured] == [(2, 40), (2, 1100)]
    lines = printed.splitlines()
    assert "simulated device 0" in lines[0]
    assert lines[1].split() == ["dtype", "rows", "cols", *backend.candidates(1)]
    assert lines[2].split()[:3] == ["float32", "2", "40"]
    assert lines[-1].endswith(f"softmaxd --tuning {path}")
    tuned = open_backend("simt", tuning=path)
    assert tuned.tuning == f"table.json (simulated device 0, {table.date})"
    chosen = [tuned.plan(Work(2, cols, dtypes.BY_NAME["float32"], False)).variant for cols in (40, 1100)]
    assert set(chosen) <= {choice.variant for choice in table.choices}


def test_nothing_that_fits_is_an_error_and_no_table(open_backend, tmp_path):
    with pytest.raises(TuningError, match="nothing fits on simulated device 0"):
        tune.tune(open_backend("simt", threads=1), tmp_path / "table.json", [Shape("float32", 1 << 40, 1 << 10)])
    assert list(tmp_path.iterdir()) == []


def test_place_that_is_not_there_is_known_before_anything_is_measured(tmp_path):
    for output in (tmp_path, tmp_path / "nowhere" / "table.json"):
        with pytest.raises(SystemExit) as caught:
            tune.main(["--backend", "cuda", "--output", str(output)])
        assert f"cannot write the tuning table {output}" in str(caught.value)


def test_command_on_a_device_that_is_not_there_says_so_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "load", simulated_gpu.load)
    with pytest.raises(SystemExit) as caught:
        tune.main(["--backend", "cuda", "--output", str(tmp_path / "table.json")])
    assert str(caught.value).startswith("softmaxctl tune: backend cuda: softmaxd_native was built for simt")


def test_command_without_the_servers_packages_says_what_to_install(tmp_path):
    (tmp_path / "pydantic").mkdir()
    (tmp_path / "pydantic" / "__init__.py").write_text("raise ModuleNotFoundError(name='pydantic')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "softmaxd_server.tune"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "softmaxctl tune: pydantic is not installed; tuning needs: pip install 'softmaxd[server]'\n"
