"""The Python client of softmaxd: `SoftmaxClient` for threads, `aio.SoftmaxClient` for an event loop.

from softmaxd_client import SoftmaxClient

with SoftmaxClient("127.0.0.1:50051") as client:
    probabilities = client.softmax(logits)
"""

from softmaxd_proto import __version__

from softmaxd_client import aio
from softmaxd_client.client import SoftmaxClient
from softmaxd_client.config import ClientConfig, Keepalive, RetryPolicy
from softmaxd_client.errors import (
    ClientClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    InvalidTensorError,
    RequestCancelledError,
    ResourceExhaustedError,
    ServerError,
    SoftmaxdError,
    UnavailableError,
)
from softmaxd_client.info import Device, Execution, Pool, ServerInfo, Variant
from softmaxd_client.tensors import TensorLike

__all__ = [
    "ClientClosedError",
    "ClientConfig",
    "DeadlineExceededError",
    "Device",
    "Execution",
    "InvalidArgumentError",
    "InvalidTensorError",
    "Keepalive",
    "Pool",
    "RequestCancelledError",
    "ResourceExhaustedError",
    "RetryPolicy",
    "ServerError",
    "ServerInfo",
    "SoftmaxClient",
    "SoftmaxdError",
    "TensorLike",
    "UnavailableError",
    "Variant",
    "__version__",
    "aio",
]
