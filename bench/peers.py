"""The softmaxes that everyone uses on a CPU, each behind the same call.

A peer is prepared for one input and one output array and gives a function that computes once. Each writes into memory
that exists already, wherever the library lets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[], object]


class PeerUnavailableError(Exception):
    """Raised when a peer is not installed or does not take the dtype; the message says which."""


@dataclass(frozen=True)
class Peer:
    """A prepared peer.

    Attributes:
        run: Computes once.
        result: Returns what `run` computed, shape (rows, cols).
    """

    run: Run
    result: Callable[[], Array]


def _torch_tensor(array: Array) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch_softmax(x: Array, out: Array, threads: int) -> Peer:
    """Prepare torch.softmax with its `out` argument."""
    import torch

    torch.set_num_threads(threads)
    source, destination = _torch_tensor(x), _torch_tensor(out)
    return Peer(lambda: torch.softmax(source, -1, out=destination), lambda: out)


def onednn_softmax(x: Array, out: Array, threads: int) -> Peer:
    """Prepare oneDNN, as it is inside PyTorch; its result is a new tensor, from memory that malloc keeps."""
    import torch

    torch.set_num_threads(threads)
    if x.dtype.name == "float16":
        raise PeerUnavailableError("oneDNN's softmax in PyTorch takes no float16")
    source = _torch_tensor(x).to_mkldnn()
    last: list[Any] = [None]

    def run() -> None:
        last[0] = None  # so that malloc has the memory of the result before
        last[0] = torch.softmax(source, -1)

    return Peer(run, lambda: last[0].to_dense().float().numpy())


def onnxruntime_softmax(x: Array, out: Array, threads: int) -> Peer:
    """Prepare onnxruntime with input and output bound to the arrays."""
    import onnxruntime
    from onnx import TensorProto, helper

    if x.dtype.name != "float32":
        raise PeerUnavailableError(f"onnxruntime's CPU softmax takes no {x.dtype.name}")
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], axis=-1)],
        "softmax",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, x.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for bind, name, array in ((binding.bind_input, "x", x), (binding.bind_output, "y", out)):
        bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    return Peer(lambda: session.run_with_iobinding(binding), lambda: out)


def numpy_softmax(x: Array, out: Array, threads: int) -> Peer:
    """Prepare the four lines of numpy that everyone writes."""
    if x.dtype.name != "float32":
        raise PeerUnavailableError("numpy's arithmetic in 16 bits is not a softmax to compare with")

    def run() -> None:
        np.subtract(x, x.max(-1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(-1, keepdims=True), out=out)

    return Peer(run, lambda: out)


CPU_PEERS: dict[str, Callable[[Array, Array, int], Peer]] = {
    "torch": torch_softmax,
    "oneDNN": onednn_softmax,
    "onnxruntime": onnxruntime_softmax,
    "numpy": numpy_softmax,
}


def prepare(name: str, x: Array, out: Array, threads: int) -> Peer:
    """Prepare the peer called `name`.

    Raises:
        PeerUnavailableError: It is not installed, or takes no such dtype.
    """
    try:
        return CPU_PEERS[name](x, out, threads)
    except ImportError as error:
        raise PeerUnavailableError(f"{error.name} is not installed: pip install '.[bench]'") from error
