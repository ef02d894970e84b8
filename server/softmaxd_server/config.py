"""The server's configuration: a flag wins over a `SOFTMAXD_*` environment variable, which wins over the default.

`Config` is the one table of options; the command line is made from its fields.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from softmaxd_server.errors import ConfigError

ENVIRONMENT_PREFIX = "SOFTMAXD_"
_MAX_PROTOBUF_BYTES = 2**31 - 1
_MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un, with its closing zero


class Config(BaseSettings):
    """Validated options that do not change while the server lives."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", min_length=1, description="Address for gRPC; 0.0.0.0 or [::] for all interfaces.")
    port: int = Field(50051, ge=0, le=65535, description="Port for gRPC; 0 takes a free one.")
    metrics_host: str = Field("127.0.0.1", min_length=1, description="Address for /metrics, /healthz and /readyz.")
    metrics_port: int = Field(9464, ge=-1, le=65535, description="Port for them; 0 takes a free one, -1 is off.")
    backend: Literal["auto", "hip", "cuda", "cpu", "numpy"] = Field(
        "auto", description="What computes; auto takes the first of hip, cuda, cpu, numpy that can be had."
    )
    device: str = Field(
        "all", description="GPUs to use, by index: 0, or 1,3; all takes every one. HIP_VISIBLE_DEVICES counts first."
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="Threads that compute on a CPU backend, or copy on a GPU backend; 0 asks CPU affinity and cgroup "
        "quota, and takes 8 at most to copy.",
    )
    tuning: Path | None = Field(
        None,
        description="Table by which a GPU's variants are chosen, made by softmaxctl tune; None takes the one that is "
        "shipped for the device, else what its size says.",
    )
    device_pool_bytes: int = Field(
        0, ge=0, le=2**62, description="Memory to hold at most on each GPU, in bytes; 0 takes 80 % of what is free."
    )
    max_message_bytes: int = Field(
        134217728, ge=1024, le=_MAX_PROTOBUF_BYTES, description="Largest request message, in bytes."
    )
    in_flight_bytes: int = Field(
        1073741824,
        ge=4096,
        description="Bytes of request messages and their answers to hold at once: a stream over it is read later, a "
        "unary request over it is refused. What shared and device memory hold does not count.",
    )
    keep_memory_bytes: int = Field(
        1073741824,
        ge=0,
        le=2**62,
        description="Free memory to keep for coming requests instead of giving it back to the system, in bytes; 0 "
        "leaves that to the C library.",
    )
    max_concurrent_streams: int = Field(
        10000, ge=1, le=2**31 - 1, description="Calls that one connection may have open; a client queues the rest."
    )
    unix_socket: Path | None = Field(
        None, description="Listen on this socket of the file system as well; clients name it unix:FILE."
    )
    allow_shared_memory: bool = Field(
        False, description="Take tensors in POSIX shared memory of this host from clients that register it."
    )
    shared_memory_bytes: int = Field(
        4294967296, ge=1, le=2**62, description="Shared memory of all clients to map at most at once, in bytes."
    )
    shared_memory_uids: str = Field(
        "", description="Users, besides the server's own, whose shared memory is taken, by number: 1000, or 1000,1001."
    )
    allow_device_memory: bool = Field(
        False, description="Take tensors in GPU memory that other processes of this host export by IPC handle."
    )
    grace: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="Seconds to finish what is in flight after SIGTERM."
    )
    inline_bytes: int = Field(
        66560,
        ge=0,
        description="Largest request message, in bytes, that a CPU backend computes on the event loop; larger ones "
        "go to a worker thread. A backend may set a lower bound.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level logged.")

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        device_indices(value)
        return value

    @field_validator("shared_memory_uids")
    @classmethod
    def _check_uids(cls, value: str) -> str:
        user_ids(value)
        return value

    @field_validator("unix_socket")
    @classmethod
    def _check_socket_path(cls, value: Path | None) -> Path | None:
        if value is not None and len(os.fsencode(value)) > _MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"a socket's path has up to {_MAX_SOCKET_PATH_BYTES} bytes: choose a shorter one")
        return value

    @field_validator("port", mode="before")
    @classmethod
    def _explain_service_link(cls, value: object) -> object:
        # Kubernetes sets SOFTMAXD_PORT=tcp://10.0.0.1:50051 in every pod beside a Service that is named softmaxd.
        if isinstance(value, str) and "://" in value:
            raise ValueError("this is Kubernetes' link to a Service: set enableServiceLinks: false or pass --port")
        return value


def device_indices(device: str) -> list[int]:
    """Return the indices that `Config.device` names; none stands for all devices.

    Raises:
        ValueError: It is neither "all" nor a list of indices.
    """
    if device == "all":
        return []
    names = [name.strip() for name in device.split(",")]
    if not _are_numbers(names) or len(set(names)) != len(names):
        raise ValueError("it must be all, or indices of devices, each once: 0 or 1,3")
    return [int(name) for name in names]


def user_ids(users: str) -> list[int]:
    """Return the user ids that `Config.shared_memory_uids` names.

    Raises:
        ValueError: It is not a list of numbers.
    """
    names = [name.strip() for name in users.split(",") if name.strip()]
    if not _are_numbers(names):
        raise ValueError("it must be numbers of users: 1000 or 1000,1001")
    return [int(name) for name in names]


def _are_numbers(names: Sequence[str]) -> bool:
    return all(name.isascii() and name.isdigit() for name in names)


def parse(arguments: Sequence[str]) -> tuple[Config, bool]:
    """Read flags and environment.

    Args:
        arguments: The command line without the program's name.

    Returns:
        The configuration, and whether `--print-config` was given.

    Raises:
        ConfigError: A flag is unknown or a value is not allowed.
        SystemExit: `--help` was asked for, and printed.
    """
    flags: dict[str, Any] = vars(_parser().parse_args(arguments))
    print_config = flags.pop("print_config")
    try:
        return Config(**flags), print_config
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(problem, flags) for problem in error.errors())) from error


def render(config: Config) -> str:
    """Return one `name = value` line for each option."""
    return "".join(f"{name} = {value}\n" for name, value in config.model_dump().items())


_METAVARS: dict[Any, str] = {Path | None: "FILE", bool: "true|false"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see softmaxd --help")


def _parser() -> _Parser:
    parser = _Parser(
        prog="softmaxd",
        description="Serve softmax over gRPC.",
        epilog=f"Each option can be set by the environment too: {ENVIRONMENT_PREFIX}MAX_MESSAGE_BYTES. A flag wins.",
        allow_abbrev=False,
    )
    for name, field in Config.model_fields.items():
        # A flag that is true or false may stand alone.
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if field.annotation is bool else {}
        parser.add_argument(
            _flag(name),
            metavar=_METAVARS.get(field.annotation, name.rpartition("_")[2].upper()),
            default=argparse.SUPPRESS,
            **switch,
            help=f"{field.description} Default: {field.default}.".replace("%", "%%"),
        )
    parser.add_argument("--print-config", action="store_true", help="Print the resulting configuration and exit.")
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _explain(problem: Any, flags: dict[str, Any]) -> str:
    """Say where a bad value came from, what it is and what is allowed."""
    name = str(problem["loc"][0])
    variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
    source = _flag(name) if name in flags or variable not in os.environ else variable
    reason = problem["msg"].removeprefix("Value error, ")
    return f"{source}: got {problem['input']!r}: {reason[0].lower()}{reason[1:]}"
