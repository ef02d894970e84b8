"""A client with nothing of softmaxd but the stubs that protoc makes: run by test_plain_stubs.py in a Python of its own.

    python -I plain_client.py STUBS TARGET FOLDER

FOLDER has job.json and, for each tensor in it, its bytes as NAME.in; the results become NAME.out. What else happened is
printed as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import grpc

OURS = ("softmaxd_proto", "softmaxd_client", "softmaxd_server", "softmaxd_native")


def main() -> None:
    stubs, target, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    for name in OURS:
        sys.modules[name] = None  # type: ignore[assignment] # to import it is an error from now on
    sys.path.insert(0, stubs)
    pb2 = importlib.import_module("softmaxd.v1.softmax_pb2")
    pb2_grpc = importlib.import_module("softmaxd.v1.softmax_pb2_grpc")
    job = json.loads((folder / "job.json").read_text())
    with grpc.insecure_channel(target) as channel:  # with gRPC's own limits: 4 MB a message
        stub = pb2_grpc.SoftmaxServiceStub(channel)
        for tensor in job["unary"]:
            (folder / f"{tensor['name']}.out").write_bytes(unary(pb2, stub, folder, tensor))
        answers = list(stub.SoftmaxStream(blocks(pb2, folder, job["stream"], job["bad_request"])))
    (folder / f"{job['stream']['name']}.out").write_bytes(b"".join(answer.payload for answer in answers))
    report = {
        "statuses": [[answer.id, answer.status.code, answer.status.message] for answer in answers],
        "largest_answer": max(answer.ByteSize() for answer in answers),
        "stubs": str(Path(pb2.__file__).parent),
        "ours": [name for name, module in sys.modules.items() if name.startswith(OURS) and module is not None],
    }
    print(json.dumps(report))  # noqa: T201 # its output


def unary(pb2: Any, stub: Any, folder: Path, tensor: dict[str, Any]) -> bytes:
    """Return the softmax of a tensor, which came in one answer with the request's fields."""
    request = pb2.SoftmaxRequest(
        id=tensor["name"],
        data_type=pb2.DataType.Value(tensor["data_type"]),
        shape=tensor["shape"],
        payload=(folder / f"{tensor['name']}.in").read_bytes(),
    )
    answer = stub.Softmax(request)
    assert (answer.id, answer.data_type, list(answer.shape)) == (request.id, request.data_type, tensor["shape"])
    assert answer.execution.variant
    return bytes(answer.payload)


def blocks(pb2: Any, folder: Path, tensor: dict[str, Any], bad_request: int) -> Iterator[Any]:
    """Cut a tensor into requests of so many rows; the request of that index lacks a byte, and comes again whole."""
    data = (folder / f"{tensor['name']}.in").read_bytes()
    rows, *row_shape = tensor["shape"]
    row_bytes = len(data) // rows
    assert row_bytes == tensor["itemsize"] * prod(row_shape)
    for index, start in enumerate(range(0, rows, tensor["rows_in_block"])):
        block = data[start * row_bytes : (start + tensor["rows_in_block"]) * row_bytes]
        fields = {
            "data_type": pb2.DataType.Value(tensor["data_type"]),
            "shape": [len(block) // row_bytes, *row_shape],
        }
        if index == bad_request:
            yield pb2.SoftmaxStreamRequest(id="bad", payload=block[:-1], **fields)
        yield pb2.SoftmaxStreamRequest(id=f"block {index}", payload=block, **fields)


if __name__ == "__main__":
    main()
