"""The real server on a real GPU, the real client, real tensors. `make test-gpu` names the backend and runs this."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from harness.metrics import samples, scrape
from harness.real_tensors import RealTensor, load
from harness.reference import DTYPES, assert_close, masked_scores
from harness.server_process import ServerProcess
from softmaxd_client import ResourceExhaustedError, SoftmaxClient

BACKEND = os.environ.get("SOFTMAXD_TEST_GPU", "")
PHASES = ("upload", "kernel", "download")
PLAIN = {"basic", "five_pass"}

pytestmark = pytest.mark.skipif(not BACKEND, reason="needs a GPU; make test-gpu sets SOFTMAXD_TEST_GPU")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--backend", BACKEND) as process:
        assert f"backend {BACKEND} " in process.log
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[SoftmaxClient]:
    with SoftmaxClient(server.target) as client:
        yield client


def check_variant(client: SoftmaxClient, x: np.ndarray) -> np.ndarray:
    """Compute; assert that a variant ran that gives a row the same bits as the others that may be chosen."""
    result, execution = client.softmax_with_execution(x)
    assert execution.variant in {variant.name for variant in client.info().variants} - PLAIN
    assert execution.tile_count * execution.tile_columns >= x.shape[-1]
    return result


def test_server_says_which_backend_device_and_variants_it_has(client: SoftmaxClient) -> None:
    info = client.info()
    print(f"backend {info.backend}, devices {[device.name for device in info.devices]}")  # noqa: T201 # for the log
    assert info.backend == BACKEND
    assert all(device.name and device.parallelism > 1 for device in info.devices)
    assert {variant.name for variant in info.variants} > PLAIN
    assert info.tuning


@pytest.mark.parametrize("tensor", load(), ids=lambda tensor: tensor.name)
def test_real_tensor_gives_the_expected_sums(client: SoftmaxClient, tensor: RealTensor) -> None:
    result = check_variant(client, tensor.array)
    tensor.check(result)
    assert_close(result, tensor.array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (70_000, 3), (300, 4096), (33, 4097), (5, 300_001), (2, 3_000_000)])
def test_masked_scores_are_right_by_the_expected_variant(
    client: SoftmaxClient, dtype: str, rows: int, cols: int
) -> None:
    with np.errstate(over="ignore"):
        x = masked_scores(np.random.default_rng(cols), rows, cols).astype(DTYPES[dtype])
    assert_close(check_variant(client, x), x)


def test_rows_that_are_masked_or_not_finite_are_as_documented(client: SoftmaxClient) -> None:
    x = np.zeros((4, 5000), np.float32)
    x[0], x[1, 7], x[2, 8] = -np.inf, np.nan, np.inf
    result = client.softmax(x)
    assert np.isnan(result[:3]).all()
    np.testing.assert_allclose(result[3], 1 / 5000, rtol=1e-6)
    assert (client.softmax(x[:1], zero_masked_rows=True) == 0).all()


@pytest.mark.parametrize(("rows", "cols"), [(1, 1024), (1024, 4096), (2, 3_000_000)])
def test_phases_by_device_events_are_plausible_beside_the_request(
    server: ServerProcess, client: SoftmaxClient, rows: int, cols: int
) -> None:
    x = np.random.default_rng(1).standard_normal((rows, cols), dtype=np.float32)
    client.softmax(x)
    before = samples(scrape(server.metrics_url))
    for _ in range(10):
        client.softmax(x)
    after = samples(scrape(server.metrics_url))
    seconds = {
        phase: after["softmaxd_phase_seconds_sum", ("phase", phase)]
        - before["softmaxd_phase_seconds_sum", ("phase", phase)]
        for phase in PHASES
    }
    whole = ("softmaxd_request_seconds_sum", ("code", "OK"), ("method", "Softmax"), ("transport", "inline"))
    print(f"{rows} x {cols}: {seconds}, requests {after[whole] - before[whole]}")  # noqa: T201 # for the log
    assert min(seconds.values()) > 0
    assert sum(seconds.values()) <= after[whole] - before[whole]
    # No bus moves 64 GB/s both ways at once, and no kernel reads and writes 10 TB/s.
    assert seconds["upload"] + seconds["download"] >= 10 * x.nbytes / 64e9
    assert seconds["kernel"] >= 10 * min(x.nbytes, 1 << 20) / 10e12
    count = "softmaxd_phase_seconds_count"
    assert all(after[count, ("phase", phase)] - before[count, ("phase", phase)] == 10 for phase in PHASES)


def test_tensor_over_the_device_pool_is_refused_and_the_server_goes_on() -> None:
    with (
        ServerProcess("--backend", BACKEND, "--device", "0", "--device-pool-bytes", str(100 << 20)) as small,
        SoftmaxClient(small.target) as client,
    ):
        fits = np.random.default_rng(2).standard_normal((1, 10_000_000), dtype=np.float32)
        for _ in range(2):
            with pytest.raises(ResourceExhaustedError, match="send fewer rows"):
                client.softmax(np.zeros((1, 30_000_000), np.float32))
            assert_close(client.softmax(fits), fits)
