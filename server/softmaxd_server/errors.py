"""What can go wrong in the server.

    SoftmaxdError
    ├── RequestError                 the request cannot be answered as it is
    │   ├── MalformedRequestError    the bytes are no request message
    │   ├── InvalidTensorError       data type, shape and payload do not fit together
    │   ├── MessageTooLargeError     over --max-message-bytes
    │   ├── DeadlineError            the caller's deadline passed before the kernel started
    │   ├── UnknownRegionError       a slice of memory that is not registered, or not any more
    │   ├── InvalidRegionError       memory that cannot be registered as it was named
    │   ├── TransportOffError        the server was not started to take memory of that kind
    │   └── LostRegionError          registered memory is not there any more
    ├── ServingError                 the request is fine, the server cannot answer it now
    │   ├── DrainingError            the server is shutting down
    │   ├── OverloadedError          over --in-flight-bytes
    │   ├── RegionLimitError         over what may be registered at once
    │   └── OutOfMemoryError         no room for the answer
    └── StartError                   the server cannot start
        ├── ConfigError              a flag or an environment variable is wrong
        ├── BackendUnavailableError  the wanted backend is not to be had
        ├── TuningError              a tuning table cannot be read, written or used
        └── AddressError             a port cannot be bound

Every message says what was got, what is allowed and what to do. Requests' errors become gRPC statuses in `statuses`.
"""

from __future__ import annotations


class SoftmaxdError(Exception):
    """The base of every error that the server raises on purpose; its message may be shown to a client."""


class RequestError(SoftmaxdError):
    """Raised when a request cannot be answered as it is."""


class MalformedRequestError(RequestError):
    """Raised when bytes are not a request message."""


class InvalidTensorError(RequestError):
    """Raised when a tensor's data type, shape and payload are not allowed or do not fit together."""


class MessageTooLargeError(RequestError):
    """Raised when a request message exceeds the server's limit.

    Args:
        got_bytes: The message's size.
        max_message_bytes: The limit.
    """

    def __init__(self, got_bytes: int, max_message_bytes: int) -> None:
        super().__init__(
            f"the request message has {got_bytes} bytes, the server takes up to {max_message_bytes} "
            f"(--max-message-bytes={max_message_bytes}): send the rows in several messages, or raise the server's flag"
        )


class DeadlineError(RequestError):
    """Raised when a request's deadline passed before its kernel was started."""

    def __init__(self) -> None:
        super().__init__(
            "the deadline passed before the kernel started: allow more time or send fewer requests at once"
        )


class UnknownRegionError(RequestError):
    """Raised when a request names a region that is not registered."""

    def __init__(self) -> None:
        super().__init__(
            "the region is not registered, or not any more: a region lives as long as the RegisterMemory call that "
            "registered it; register it anew"
        )


class InvalidRegionError(RequestError):
    """Raised when memory cannot be registered as it was named."""


class TransportOffError(RequestError):
    """Raised when memory is registered of a kind that the server does not take.

    Args:
        kind: "shared_memory" or "device_memory".
        reason: Why it does not.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"the server takes no {kind.replace('_', ' ')}: {reason}; or send tensors inline")


class LostRegionError(RequestError):
    """Raised when registered shared memory was made smaller, or could not be given pages, during or before a use."""

    def __init__(self) -> None:
        super().__init__(
            "registered shared memory has no pages any more where the tensor is: the segment was truncated, or its "
            "file system is full; reserve the pages of a new segment (posix_fallocate), register it and send again"
        )


class ServingError(SoftmaxdError):
    """Raised when the server cannot answer now."""


class DrainingError(ServingError):
    """Raised when a call is refused, or a quiet stream ended, because the server shuts down."""

    def __init__(self) -> None:
        super().__init__("the server is draining: what it has read it has answered, send the rest to another server")


class OverloadedError(ServingError):
    """Raised when a request is refused because of those that are in flight.

    Args:
        got_bytes: The size of the request's message.
        in_flight_bytes: What is in flight already.
        allowed_bytes: The limit.
    """

    def __init__(self, got_bytes: int, in_flight_bytes: int, allowed_bytes: int) -> None:
        super().__init__(
            f"the server holds {in_flight_bytes} bytes of requests and answers, and takes up to {allowed_bytes} "
            f"(--in-flight-bytes={allowed_bytes}); this request of {got_bytes} bytes, and its answer, do not fit: try "
            "again later, or send it in blocks over SoftmaxStream, which waits for its turn"
        )


class RegionLimitError(ServingError):
    """Raised when no more memory may be registered; the message says which limit it is."""


class OutOfMemoryError(ServingError):
    """Raised when there is no memory for an answer.

    Args:
        wanted_bytes: The size of the answer's payload.
    """

    def __init__(self, wanted_bytes: int) -> None:
        super().__init__(
            f"the server has no memory for an answer of {wanted_bytes} bytes: send fewer rows, or try later"
        )


class StartError(SoftmaxdError):
    """Raised when the server cannot start."""


class ConfigError(StartError):
    """Raised when a flag or an environment variable has a value that is not allowed."""


class BackendUnavailableError(StartError):
    """Raised when a backend cannot be had on this machine or with what is installed."""


class TuningError(StartError):
    """Raised when a tuning table cannot be read, written or used."""


class AddressError(StartError):
    """Raised when an address cannot be listened on.

    Args:
        what: The flag that sets the port.
        address: `HOST:PORT`.
        reason: What the system said.
    """

    def __init__(self, what: str, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address} ({what}): {reason}: stop what holds it, or choose another port")
