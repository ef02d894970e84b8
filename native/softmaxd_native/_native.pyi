from collections.abc import Sequence
from typing import Generic, TypeVar

from typing_extensions import Buffer

_Seconds = TypeVar("_Seconds")

# dtype, max_rows, max_cols, variant; None is each type, or no limit.
_Choice = tuple[str | None, int | None, int | None, str]

gpu_runtime: str | None
"""The GPU runtime that this build was made for, "hip" or "cuda"; None where it was built for the CPU alone."""

class InvalidArgument(ValueError): ...
class Unsupported(RuntimeError): ...
class DeviceError(RuntimeError): ...

# Only here: what both contexts have.
class _Context(Generic[_Seconds]):
    @property
    def threads(self) -> int: ...
    @property
    def variants(self) -> list[tuple[str, str]]: ...
    @property
    def pools(self) -> list[tuple[str, int, int, int]]: ...
    def plan(self, rows: int, cols: int, dtype: str, variant: str = "") -> tuple[str, int, int]: ...
    def softmax(
        self,
        source: Buffer,
        destination: Buffer,
        rows: int,
        cols: int,
        dtype: str,
        *,
        zero_masked_rows: bool = False,
        variant: str = "",
    ) -> _Seconds: ...
    def softmax_message(
        self,
        prefix: bytes,
        source: Buffer,
        rows: int,
        cols: int,
        dtype: str,
        *,
        zero_masked_rows: bool = False,
        variant: str = "",
    ) -> tuple[bytes, _Seconds]: ...

class CpuContext(_Context[float]):
    def __init__(self, threads: int = 0, target: str = "") -> None: ...
    @property
    def target(self) -> str: ...

class GpuContext(_Context[tuple[float, float, float]]):
    def __init__(
        self,
        *,
        devices: Sequence[int],
        choices: Sequence[_Choice] = (),
        threads: int = 0,
        device_pool_bytes: int = 0,
    ) -> None: ...
    def warm_up(self) -> None: ...
    def time_variant(self, variant: str, rows: int, cols: int, dtype: str) -> float: ...
    def candidates(self, cols: int) -> list[str]: ...
    @property
    def devices(self) -> list[tuple[int, str, int]]: ...

def targets() -> list[str]: ...
def gpu_devices() -> list[tuple[int, str, int]]: ...
def gpu_driver_version() -> int: ...
def check_choices(choices: Sequence[_Choice]) -> None: ...
