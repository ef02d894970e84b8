import json
import socket
import subprocess

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from softmaxd_client.cli import main
from softmaxd_client.commands import tune


@pytest.fixture
def softmaxctl(reference_server):
    def invoke(*arguments, target=reference_server.target):
        return CliRunner().invoke(main, list(map(str, arguments)), env={"SOFTMAXD_TARGET": target})

    return invoke


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def one_line(result):
    assert result.stderr.startswith("softmaxctl: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize("shape", [(5,), (500,), (33, 20), (2, 3, 60, 20), (3, 300), (0,), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["<f4", "<f2", ">f4"])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.usefixtures("small_blocks")
def test_run_any_file_gives_float64_values(softmaxctl, softmax64, tmp_path, shape, dtype, order):
    array = np.asarray(np.random.default_rng(0).normal(size=shape).astype(dtype), order=order)
    np.save(tmp_path / "in.npy", array)
    result = softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy")
    assert (result.exit_code, result.output) == (0, "")
    answer = np.load(tmp_path / "out.npy")
    assert (answer.shape, answer.dtype) == (array.shape, array.dtype)
    if array.size:
        np.testing.assert_allclose(answer.astype(np.float64), softmax64(array), rtol=2e-3, atol=2**-25)
    assert {path.name for path in tmp_path.iterdir()} == {"in.npy", "out.npy"}


def test_run_large_file_goes_in_messages_of_a_megabyte(softmaxctl, reference_server, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros((5000, 256), np.float32))
    assert softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy").exit_code == 0
    assert [tuple(request.shape) for request in reference_server.requests] == [(1000, 256)] * 5
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.float32(1 / 256))


def test_run_onto_its_own_input_replaces_it(softmaxctl, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros((3, 2), np.float32))
    assert softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "in.npy").exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "in.npy"), np.float32(0.5))


def test_run_bfloat16_file_is_read_as_such_when_told(softmaxctl, softmax64, tmp_path):
    array = np.random.default_rng(0).normal(size=(7, 9)).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "in.npy", array)
    source, output = tmp_path / "in.npy", tmp_path / "out.npy"
    refused = softmaxctl("run", source, "-o", output)
    assert refused.exit_code == 1
    assert "--dtype bfloat16" in one_line(refused)
    assert softmaxctl("run", source, "-o", output, "--dtype", "bfloat16").exit_code == 0
    answer = np.load(output).view(ml_dtypes.bfloat16)
    np.testing.assert_allclose(answer.astype(np.float64), softmax64(array), rtol=2**-8)


def test_run_dtype_that_the_file_has_not_is_refused(softmaxctl, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros(3, np.float32))
    result = softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy", "--dtype", "bfloat16")
    assert result.exit_code == 1
    assert "holds float32" in one_line(result)


def test_run_masked_rows_give_zeros_when_told(softmaxctl, tmp_path):
    np.save(tmp_path / "in.npy", np.full((2, 2), -np.inf, np.float32))
    result = softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy", "--zero-masked-rows")
    assert result.exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 0)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 2)), "float64; allowed: float32"),
        (np.float32(1), "without dimensions"),
        (np.array([None]), "Python objects"),
    ],
)
def test_run_unfit_file_is_refused_and_leaves_nothing(softmaxctl, tmp_path, array, words):
    np.save(tmp_path / "in.npy", array, allow_pickle=True)
    (tmp_path / "out.npy").write_bytes(b"as before")
    before = contents(tmp_path)
    result = softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy")
    assert result.exit_code == 1
    assert words in one_line(result)
    assert contents(tmp_path) == before


def test_run_no_npy_file_is_refused(softmaxctl, tmp_path):
    (tmp_path / "in.npy").write_text("hello")
    result = softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy")
    assert result.exit_code == 1
    one_line(result)


@pytest.mark.usefixtures("small_blocks")
def test_run_server_that_fails_midway_leaves_nothing(softmaxctl, reference_server, tmp_path):
    answers = iter(range(3))

    def answer(request):
        return reference_server.compute_for_stream(request) if next(answers, None) is not None else b"\xff"

    reference_server.stream_answer = answer
    np.save(tmp_path / "in.npy", np.zeros((100, 50), np.float32))
    before = contents(tmp_path)
    result = softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy")
    assert result.exit_code == 1
    assert "broke the contract" in one_line(result)
    assert len(reference_server.requests) > 3
    assert contents(tmp_path) == before


def test_run_no_server_leaves_nothing(softmaxctl, tmp_path, closed_port):
    np.save(tmp_path / "in.npy", np.zeros(3, np.float32))
    before = contents(tmp_path)
    result = softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy", "--target", f"127.0.0.1:{closed_port}")
    assert result.exit_code == 1
    assert "UNAVAILABLE" in one_line(result)
    assert contents(tmp_path) == before


def test_run_folder_that_is_not_there_is_one_line(softmaxctl, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros(3, np.float32))
    result = softmaxctl("run", tmp_path / "in.npy", "-o", tmp_path / "nowhere" / "out.npy")
    assert result.exit_code == 1
    assert "No such file or directory" in one_line(result)


def test_info_prints_what_the_server_says(softmaxctl):
    output = softmaxctl("info").stdout
    for words in (
        "9.8.7",
        "numpy",
        "a CPU [x86] x 4",
        "float32, float16, bfloat16",
        "float64: numpy, always",
        "workspace",
    ):
        assert words in output


def test_info_prints_the_tuning_where_there_is_one(softmaxctl, reference_server):
    assert "tuning" not in softmaxctl("info").stdout
    reference_server.tuning = "table.json (a GPU [0], 2026-12-01)"
    assert reference_server.tuning in softmaxctl("info").stdout


def test_info_json_is_json(softmaxctl):
    described = json.loads(softmaxctl("info", "--json").stdout)
    assert described["backend"] == "numpy"
    assert described["devices"] == [{"name": "a CPU [x86]", "parallelism": 4}]


def test_ping_prints_milliseconds(softmaxctl):
    text, unit = softmaxctl("ping").stdout.split()
    assert float(text) > 0
    assert unit == "ms"
    assert json.loads(softmaxctl("ping", "--json").stdout)["seconds"] > 0


def test_target_is_taken_before_and_after_the_subcommand(softmaxctl, reference_server, closed_port):
    nowhere = f"127.0.0.1:{closed_port}"
    assert softmaxctl("--target", reference_server.target, "ping", target=nowhere).exit_code == 0
    assert softmaxctl("ping", "--target", reference_server.target, target=nowhere).exit_code == 0
    assert softmaxctl("--target", nowhere, "ping", "--target", reference_server.target).exit_code == 0
    assert softmaxctl("ping", target=reference_server.target).exit_code == 0
    assert softmaxctl("ping", target=nowhere).exit_code == 1


def test_target_not_given_is_the_default_port_of_this_machine():
    assert "127.0.0.1:50051" in CliRunner().invoke(main, ["--help"]).stdout


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_selftest_right_answer_passes(softmaxctl, dtype):
    result = softmaxctl("selftest", "--rows", 12, "--cols", 345, "--dtype", dtype, "--seed", 7)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[-1] == "Result check passed."
    printed = dict(line.split(": ", 1) for line in lines[:-1])
    assert printed.pop("first outputs").count(" ") == 7
    assert float(printed.pop("max error")) < 5e-3
    assert float(printed.pop("max row-sum error")) < 5e-3
    assert printed == {
        "rows": "12",
        "cols": "345",
        "dtype": dtype,
        "backend": "numpy",
        "variant": "float64",
        "tile": "4096",
        "tile count": "3",
    }


@pytest.mark.parametrize("spoiled", [0.2, np.nan])
def test_selftest_wrong_answer_fails(softmaxctl, reference_server, spoiled):
    def wrong(request, context):
        response = reference_server.compute(request)
        response.payload = np.float32(spoiled).tobytes() + response.payload[4:]
        return response

    reference_server.script = [wrong]
    result = softmaxctl("selftest", "--rows", 3, "--cols", 100)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "Result check failed."


def test_selftest_tolerance_that_is_too_small_fails(softmaxctl):
    result = softmaxctl("selftest", "--rows", 3, "--cols", 100, "--tolerance", 0)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "Result check failed."


@pytest.fixture
def commands(monkeypatch):
    """The commands that are run, each of which exits with 3."""
    commands = []

    def run(command, *, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(tune.subprocess, "run", run)
    return commands


def test_tune_runs_the_server_package_and_exits_as_it_does(softmaxctl, commands):
    assert softmaxctl("tune", "--backend", "hip", "--device", 2, "--output", "t.json").exit_code == 3
    (command,) = commands
    assert command[1:3] == ["-m", "softmaxd_server.tune"]
    assert command[3:] == ["--backend", "hip", "--device", "2", "--output", "t.json"]


def test_tune_without_the_server_package_says_what_to_install(softmaxctl, commands, monkeypatch):
    monkeypatch.setattr(tune.importlib.util, "find_spec", lambda name: None)
    result = softmaxctl("tune", "--backend", "hip", "--output", "t.json")
    assert result.exit_code == 1
    assert "pip install 'softmaxd[server]' and softmaxd-native" in one_line(result)
    assert commands == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["tune", "--output", "t.json"],
        ["tune", "--backend", "cpu", "--output", "t.json"],
        ["run"],
        ["run", "/not/there.npy", "-o", "out.npy"],
        ["selftest", "--rows", "0"],
        ["selftest", "--dtype", "float64"],
        ["ping", "--timeout", "0"],
        ["--wrong"],
    ],
    ids=str,
)
def test_usage_that_is_wrong_is_one_line_and_exit_code_two(softmaxctl, arguments):
    result = softmaxctl(*arguments)
    assert result.exit_code == 2
    assert "--help" in one_line(result)


def test_timeout_that_passes_is_one_line(softmaxctl, reference_server):
    reference_server.script = [reference_server.hang]
    result = softmaxctl("selftest", "--rows", 1, "--cols", 1, "--timeout", 0.05)
    assert result.exit_code == 1
    assert "DEADLINE_EXCEEDED" in one_line(result)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_and_version_exit_with_zero(softmaxctl, arguments):
    result = softmaxctl(*arguments)
    assert result.exit_code == 0
    assert "softmaxctl" in result.stdout
