"""A client that has only what protoc makes of the .proto, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.reference import DTYPES, assert_close, masked_scores
from harness.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).parent / "plain_client.py"
GRPC_DEFAULT_BYTES = 4 * 1024 * 1024
INVALID_ARGUMENT = 3
LARGE_SHAPE = (2048, 2048)  # 16 MiB of float32
ROWS_IN_BLOCK = 500  # 4,096,000 bytes
BAD_REQUEST = 2


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--backend", "cpu") as process:
        yield process


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What protoc writes with nothing but its Python plugins."""
    out = tmp_path_factory.mktemp("stubs")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'proto'}"]
    outs = [f"--python_out={out}", f"--grpc_python_out={out}"]
    subprocess.run([*protoc, *outs, "softmaxd/v1/softmax.proto"], check=True, cwd=ROOT / "proto")
    return out


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    """One small tensor of each type, and a large one."""
    rng = np.random.default_rng(11)
    with np.errstate(over="ignore"):
        small = {name: masked_scores(rng, 30, 700).astype(dtype).reshape(5, 6, 700) for name, dtype in DTYPES.items()}
    return {**small, "large": masked_scores(rng, *LARGE_SHAPE)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray]) -> Path:
    """The client's job."""
    folder = tmp_path_factory.mktemp("job")
    for name, x in tensors.items():
        (folder / f"{name}.in").write_bytes(x.tobytes())
    described = [
        {"name": name, "data_type": f"DATA_TYPE_{x.dtype.name.upper()}", "shape": x.shape, "itemsize": x.itemsize}
        for name, x in tensors.items()
    ]
    *unary, large = described
    job = {"unary": unary, "stream": {**large, "rows_in_block": ROWS_IN_BLOCK}, "bad_request": BAD_REQUEST}
    (folder / "job.json").write_text(json.dumps(job))
    return folder


@pytest.fixture(scope="module")
def report(server: ServerProcess, stubs: Path, folder: Path) -> dict[str, Any]:
    """What the client printed; its results are in the folder."""
    # -I: neither this folder nor the environment adds to what it imports; softmaxd's modules it shuts out itself.
    command = [sys.executable, "-I", "-W", "error", CLIENT, stubs, server.target, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def read(folder: Path, name: str, like: np.ndarray) -> np.ndarray:
    """Read one of the client's results."""
    return np.frombuffer((folder / f"{name}.out").read_bytes(), like.dtype).reshape(like.shape)


def test_client_has_no_code_of_softmaxd(report: dict[str, Any], stubs: Path) -> None:
    assert report["ours"] == []
    assert Path(report["stubs"]) == stubs / "softmaxd" / "v1"


@pytest.mark.parametrize("dtype", DTYPES)
def test_unary_answer_has_the_values(
    report: dict[str, Any], folder: Path, tensors: dict[str, np.ndarray], dtype: str
) -> None:
    assert_close(read(folder, dtype, tensors[dtype]), tensors[dtype])


def test_large_tensor_in_blocks_within_the_default_limits_has_the_values(
    report: dict[str, Any], folder: Path, tensors: dict[str, np.ndarray]
) -> None:
    assert_close(read(folder, "large", tensors["large"]), tensors["large"])
    block_bytes = ROWS_IN_BLOCK * tensors["large"].strides[0]
    assert block_bytes < report["largest_answer"] < GRPC_DEFAULT_BYTES < tensors["large"].nbytes


def test_bad_request_of_a_stream_gets_an_error_answer_and_the_stream_goes_on(report: dict[str, Any]) -> None:
    blocks = [f"block {index}" for index in range(-(-LARGE_SHAPE[0] // ROWS_IN_BLOCK))]
    assert [request_id for request_id, _, _ in report["statuses"]] == [*blocks[:2], "bad", *blocks[2:]]
    codes = {request_id: code for request_id, code, _ in report["statuses"]}
    assert codes == {**dict.fromkeys(blocks, 0), "bad": INVALID_ARGUMENT}
    [message] = [message for request_id, _, message in report["statuses"] if request_id == "bad"]
    assert "got a payload of 4095999 bytes, expected 4096000" in message
