"""The real server in its own process, the real client, real tensors."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.metrics import samples, scrape
from harness.real_tensors import RealTensor, load
from harness.reference import DTYPES, assert_close, masked_scores
from harness.server_process import ServerProcess
from softmaxd_client import InvalidArgumentError, ResourceExhaustedError, SoftmaxClient
from softmaxd_client import aio as softmaxd_aio

BACKENDS = ("cpu", "numpy")
SOFTMAXCTL = Path(sys.executable).parent / "softmaxctl"


@pytest.fixture(scope="module", params=BACKENDS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with ServerProcess("--backend", request.param) as process:
        assert f"backend {request.param} " in process.log
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[SoftmaxClient]:
    with SoftmaxClient(server.target) as client:
        yield client


def softmaxctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run([SOFTMAXCTL, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("tensor", load(), ids=lambda tensor: tensor.name)
def test_real_tensor_gives_the_expected_sums(client: SoftmaxClient, tensor: RealTensor) -> None:
    result = client.softmax(tensor.array)
    tensor.check(result)
    assert_close(result, tensor.array)


def test_digits_give_the_stored_softmax(client: SoftmaxClient) -> None:
    [digits] = [tensor for tensor in load() if tensor.name == "digits_mlp_logits_f32"]
    expected = np.load(Path(__file__).parents[1] / "data" / "digits_mlp_softmax_f64.npy")
    np.testing.assert_allclose(client.softmax(digits.array), expected, rtol=1e-6)


def test_worked_examples_give_the_known_digits(client: SoftmaxClient) -> None:
    two = client.softmax(np.array([[1, 2, 3], [1, 1, 1]], np.float32))
    np.testing.assert_allclose(two, [[0.0900, 0.2447, 0.6652], [1 / 3, 1 / 3, 1 / 3]], atol=5e-5)
    one = client.softmax(np.array([1, 2, 3, 4], np.float32))
    np.testing.assert_allclose(one, [0.0320586, 0.0871443, 0.236883, 0.643914], rtol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unary_stream_and_aio_give_the_same_bits(server: ServerProcess, client: SoftmaxClient, dtype: str) -> None:
    rng = np.random.default_rng(5)
    with np.errstate(over="ignore"):
        arrays = [
            masked_scores(rng, rows, cols).astype(DTYPES[dtype]) for rows, cols in ((1, 7), (300, 900), (2, 70_000))
        ]
    unary = [client.softmax(array) for array in arrays]
    streamed = list(client.stream(arrays))

    async def ask() -> list[np.ndarray]:
        async with softmaxd_aio.SoftmaxClient(server.target) as aio_client:
            return [await aio_client.softmax(array) for array in arrays]

    for array, *results in zip(arrays, unary, streamed, asyncio.run(ask()), strict=True):
        assert_close(results[0], array)
        assert len({result.tobytes() for result in results}) == 1


def test_one_bad_tensor_ends_neither_the_stream_nor_the_server(client: SoftmaxClient) -> None:
    with pytest.raises(InvalidArgumentError):
        # The client refuses most mistakes itself; a rank that only the server bounds gets there.
        client.softmax(np.zeros((1,) * 60, np.float32))
    assert client.softmax(np.zeros(2, np.float32)).tolist() == [0.5, 0.5]


def test_message_over_the_limit_names_the_flag() -> None:
    with (
        ServerProcess("--backend", "numpy", "--max-message-bytes", "65536") as small,
        SoftmaxClient(small.target) as client,
    ):
        for size in (20_000, 40_000, 4_000_000):
            with pytest.raises(ResourceExhaustedError, match="--max-message-bytes"):
                client.softmax(np.zeros(size, np.float32))
        assert client.softmax(np.zeros(2, np.float32)).tolist() == [0.5, 0.5]


def test_selftest_passes_and_says_what_ran(server: ServerProcess) -> None:
    done = softmaxctl("selftest", "--rows", "4", "--cols", "32768", "--target", server.target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("Result check passed.")
    for word in ("rows", "cols", "variant", "tile"):
        assert word in done.stdout.lower()


def test_selftest_with_an_impossible_tolerance_fails(server: ServerProcess) -> None:
    done = softmaxctl("--target", server.target, "selftest", "--rows", "4", "--cols", "999", "--tolerance", "1e-12")
    assert done.returncode == 1
    assert "Result check failed." in done.stdout


def test_run_streams_a_file_larger_than_many_messages(server: ServerProcess, tmp_path: Path) -> None:
    x = np.random.default_rng(6).standard_normal((3000, 1000), dtype=np.float32)
    np.save(tmp_path / "in.npy", x)
    done = softmaxctl("run", str(tmp_path / "in.npy"), "-o", str(tmp_path / "out.npy"), "--target", server.target)
    assert done.returncode == 0, done.stderr
    assert_close(np.load(tmp_path / "out.npy"), x)


def test_info_and_ping_answer(server: ServerProcess) -> None:
    info = softmaxctl("info", "--json", "--target", server.target)
    assert info.returncode == 0, info.stderr
    assert json.loads(info.stdout)["backend"] in BACKENDS
    assert softmaxctl("ping", "--target", server.target).returncode == 0


def test_metrics_count_what_was_answered(server: ServerProcess, client: SoftmaxClient) -> None:
    def count() -> float:
        series = ("softmaxd_request_seconds_count", ("code", "OK"), ("method", "Softmax"), ("transport", "inline"))
        return samples(scrape(server.metrics_url))[series]

    before = count()
    for _ in range(7):
        client.softmax(np.zeros((2, 3), np.float32))
    assert count() == before + 7


def test_sigterm_drains_and_exits_with_0() -> None:
    with ServerProcess("--backend", "numpy") as process:
        with SoftmaxClient(process.target) as client:
            client.softmax(np.zeros(3, np.float32))
        assert process.stop() == 0


def test_server_without_its_packages_says_what_to_install() -> None:
    code = "import sys; sys.modules['pydantic'] = None; import softmaxd_server.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "softmaxd: pydantic is not installed; the server needs: pip install 'softmaxd[server]'\n"


@pytest.mark.parametrize("name", ["hip", "cuda"])
def test_backend_that_cannot_be_had_is_said_in_one_line_and_auto_moves_on(name: str) -> None:
    command = [sys.executable, "-m", "softmaxd_server", "--port", "0", "--metrics-port", "-1", "--backend", name]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "listening on" in line:
            process.terminate()
            pytest.skip(f"backend {name} can be had here")
        assert process.wait(30) == 1
        assert process.stderr.read() == ""
    reason = line.removeprefix("softmaxd: ").strip()
    assert re.match(rf"backend {name}: (no \w+ device \(\w+\)|softmaxd_native was built .*): .*--backend cpu$", reason)
    with ServerProcess("--backend", "auto") as auto:
        assert f"not using backend {name}: {reason}" in auto.log
        with SoftmaxClient(auto.target) as client:
            assert client.softmax(np.zeros(2, np.float32)).tolist() == [0.5, 0.5]
