from typing_extensions import Buffer

class InvalidArgument(ValueError): ...
class Unsupported(RuntimeError): ...

class CpuContext:
    def __init__(self, threads: int = 0, target: str = "") -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def target(self) -> str: ...
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
    ) -> float: ...
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
    ) -> tuple[bytes, float]: ...

def targets() -> list[str]: ...
