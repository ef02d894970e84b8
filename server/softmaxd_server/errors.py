"""What can go wrong in the server.

    SoftmaxdError
    ├── RequestError                 the request cannot be answered as it is
    │   ├── MalformedRequestError    the bytes are no request message
    │   ├── InvalidTensorError       data type, shape and payload do not fit together
    │   ├── MessageTooLargeError     over --max-message-bytes
    │   └── DeadlineError            the caller's deadline passed before the kernel started
    ├── ServingError                 the request is fine, the server cannot answer it now
    │   ├── DrainingError            the server is shutting down
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


class ServingError(SoftmaxdError):
    """Raised when the server cannot answer now."""


class DrainingError(ServingError):
    """Raised when a call is refused, or a quiet stream ended, because the server shuts down."""

    def __init__(self) -> None:
        super().__init__("the server is draining: what it has read it has answered, send the rest to another server")


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
