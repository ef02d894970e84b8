"""How a client connects, waits and tries again: values, never changed once made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

SERVICE = "softmaxd.v1.SoftmaxService"

DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_IN_FLIGHT = 8
# gRPC itself allows no more, and clips a larger number silently.
MAX_RETRY_ATTEMPTS = 5
# gRPC loses a call whose retry waits about a millisecond: it then hangs up to its deadline (grpc/grpc issue 41036, seen
# with grpcio 1.85 at 0.001 and 0.0013 seconds, not at 0.002).
MIN_BACKOFF_SECONDS = 0.01
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a request is sent again when the server was UNAVAILABLE.

    Softmax has no state, so sending a request twice is safe. The waits vary by a fifth either way. `stream()` is not
    tried again: see `ClientConfig.stream_grpc_options`.

    Attributes:
        max_attempts: Attempts in all, the first included: 2 to 5.
        initial_backoff_seconds: The wait before the second attempt, >= 0.01.
        max_backoff_seconds: The longest wait, >= the initial one.
        backoff_multiplier: The growth of the wait from attempt to attempt, >= 1.

    Raises:
        ValueError: An attribute is out of its range.
    """

    max_attempts: int = 4
    initial_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 2.0
    backoff_multiplier: float = 2.0

    def __post_init__(self) -> None:
        if not 2 <= self.max_attempts <= MAX_RETRY_ATTEMPTS:
            raise ValueError(
                f"max_attempts is {self.max_attempts}; allowed: 2 to {MAX_RETRY_ATTEMPTS}, or retry=None for just one"
            )
        if not MIN_BACKOFF_SECONDS <= self.initial_backoff_seconds <= self.max_backoff_seconds:
            raise ValueError(
                f"the backoff runs from {self.initial_backoff_seconds} to {self.max_backoff_seconds} seconds; "
                f"allowed: from {MIN_BACKOFF_SECONDS} on, and no less at the end than at the start"
            )
        if self.backoff_multiplier < 1:
            raise ValueError(f"backoff_multiplier is {self.backoff_multiplier}; allowed: 1 or more")

    def backoffs(self) -> Iterator[float]:
        """Yield the seconds to wait before the second attempt, the third, and so on to the last."""
        for retry in range(self.max_attempts - 1):
            yield min(self.initial_backoff_seconds * self.backoff_multiplier**retry, self.max_backoff_seconds)


@dataclass(frozen=True, kw_only=True)
class Keepalive:
    """How a connection that went dead without a word is found during a call.

    Attributes:
        interval_seconds: The quiet time after which the client asks whether the server is there. gRPC servers close the
            connection of a client that asks more often than every 5 minutes, unless they are told otherwise.
        timeout_seconds: How long it waits for the answer before it gives the connection up.

    Raises:
        ValueError: A time is not above 0.
    """

    interval_seconds: float = 300.0
    timeout_seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.interval_seconds <= 0 or self.timeout_seconds <= 0:
            raise ValueError(f"{self} has a time that is not above 0")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """How a client connects and tries again.

    Attributes:
        retry: When to send a request again, unless it is part of a `stream()`; None for never.
        keepalive: When to ask whether the server is still there.
        channel_options: gRPC channel arguments, set after (and so instead of) the client's own.
    """

    retry: RetryPolicy | None = field(default_factory=RetryPolicy)
    keepalive: Keepalive = field(default_factory=Keepalive)
    channel_options: tuple[tuple[str, int | str], ...] = ()

    def grpc_options(self) -> list[tuple[str, int | str]]:
        """Return the channel arguments that say all of this to gRPC."""
        options: dict[str, int | str] = {
            # An answer is as large as its own request, so the request is the bound.
            "grpc.max_receive_message_length": -1,
            "grpc.max_send_message_length": -1,
            "grpc.keepalive_time_ms": round(self.keepalive.interval_seconds * 1000),
            "grpc.keepalive_timeout_ms": round(self.keepalive.timeout_seconds * 1000),
            # A server that comes back is found within seconds; gRPC's own waits grow to two minutes.
            "grpc.initial_reconnect_backoff_ms": 100,
            "grpc.min_reconnect_backoff_ms": 100,
            "grpc.max_reconnect_backoff_ms": 5000,
            "grpc.enable_retries": int(self.retry is not None),
        }
        if self.retry is not None:
            options["grpc.service_config"] = _service_config(self.retry)
            # A request larger than this is never sent again; gRPC's own 256 KiB would leave out all but small tensors.
            options["grpc.per_rpc_retry_buffer_size"] = _INT32_MAX
        return list({**options, **dict(self.channel_options)}.items())

    def stream_grpc_options(self) -> list[tuple[str, int | str]]:
        """Return the arguments of a channel for streams, which has no retries.

        gRPC loses messages of a stream that it tries again: of 300 streams of 4 messages on a server that was
        UNAVAILABLE twice, 17 (of 64 bytes) to 43 (of 1 MiB) reached the server without one of them (grpcio 1.85). Its
        retries of its own accord, for requests that a server never looked at, send in the same way. A tensor that
        `softmax` sends in blocks is tried again by the client: see `retries`.
        """
        return replace(self, retry=None).grpc_options()


def _service_config(retry: RetryPolicy) -> str:
    """Return the gRPC service config that retries every method of the service."""
    policy = {
        "maxAttempts": retry.max_attempts,
        "initialBackoff": f"{retry.initial_backoff_seconds:.9f}s",
        "maxBackoff": f"{retry.max_backoff_seconds:.9f}s",
        "backoffMultiplier": retry.backoff_multiplier,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return json.dumps({"methodConfig": [{"name": [{"service": SERVICE}], "retryPolicy": policy}]})
