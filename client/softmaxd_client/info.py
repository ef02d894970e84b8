"""What a server says of itself and of an answer, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass

from softmaxd_proto import dtypes
from softmaxd_proto.v1 import softmax_pb2


@dataclass(frozen=True)
class Execution:
    """What ran for one answer.

    Attributes:
        variant: The variant, by the name it has in `ServerInfo.variants`; empty where nothing had to run.
        tile_columns: Columns that are reduced at once.
        tile_count: Tiles in one row.
    """

    variant: str
    tile_columns: int
    tile_count: int

    @classmethod
    def from_message(cls, message: softmax_pb2.Execution) -> Execution:
        """Read the contract's message."""
        return cls(message.variant, message.tile_columns, message.tile_count)


@dataclass(frozen=True)
class Device:
    """A device that the server computes on.

    Attributes:
        name: A product name, or the instruction set of a CPU.
        parallelism: Threads or multiprocessors that compute.
    """

    name: str
    parallelism: int


@dataclass(frozen=True)
class Variant:
    """A way of computing softmax that the server has.

    Attributes:
        name: Its method.
        note: What it does and when it is chosen.
    """

    name: str
    note: str


@dataclass(frozen=True)
class Pool:
    """The use of one pool of the server's memory.

    Attributes:
        name: What it holds.
        used_bytes: Bytes in use by requests now.
        reserved_bytes: Bytes kept, used or not.
        allocations: Allocations since the start; constant in a steady state.
    """

    name: str
    used_bytes: int
    reserved_bytes: int
    allocations: int


@dataclass(frozen=True)
class ServerInfo:
    """A server's description.

    Attributes:
        version: The version of softmaxd.
        backend: hip, cuda, cpu or numpy.
        devices: What it computes on.
        variants: What it can choose from.
        data_types: The names of the element types that it takes.
        max_message_bytes: The largest request message that it takes, in bytes.
        pools: The memory that it keeps.
        tuning: What chooses between the variants: a tuning table, its device and its date, or "built-in"; empty where
            the backend is not tuned.
    """

    version: str
    backend: str
    devices: tuple[Device, ...]
    variants: tuple[Variant, ...]
    data_types: tuple[str, ...]
    max_message_bytes: int
    pools: tuple[Pool, ...]
    tuning: str = ""

    @classmethod
    def from_message(cls, message: softmax_pb2.GetServerInfoResponse) -> ServerInfo:
        """Read the contract's message; element types that this client does not know are left out."""
        return cls(
            version=message.version,
            backend=message.backend,
            devices=tuple(Device(device.name, device.parallelism) for device in message.devices),
            variants=tuple(Variant(variant.name, variant.note) for variant in message.variants),
            data_types=tuple(
                dtypes.BY_NUMBER[number].name for number in message.data_types if number in dtypes.BY_NUMBER
            ),
            max_message_bytes=message.limits.max_message_bytes,
            pools=tuple(
                Pool(pool.name, pool.used_bytes, pool.reserved_bytes, pool.allocations) for pool in message.pools
            ),
            tuning=message.tuning,
        )
