"""Time the GPU variants beside a copy of the same bytes, torch.softmax and Triton, all on one NVIDIA device.

Needs PyTorch, and the library that `make` builds from gpu_kernels.cpp; nothing of the server. Each contestant is a
captured graph of several calls, so that the figures are the device's and hold no launch of the host.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from figures import COPY, DTYPES, Case, Figure
from timing import take_turns

LIBRARY = Path(__file__).parents[1] / "build" / "gpu" / "libgpu_kernels.so"

# float32: 512 MiB in and out each, but for the ragged ones, which are as large or slightly smaller.
LARGE_SHAPES = (
    (2097152, 32),
    (524288, 128),
    (262144, 256),
    (65536, 1000),
    (65536, 1023),
    (65536, 1024),
    (16384, 4095),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 32768),
    (1024, 65536),
    (512, 131072),
    (256, 262144),
)
FEW_ROWS = (
    (1, 1024),
    (4, 32768),
    (4, 65536),
    (8, 151936),
    (16, 131072),
    (32, 151936),
    (1, 1048576),
    (4, 1048576),
    (1, 16777216),
)

ROUNDS = 21
# A matrix of this size, in and out, is no longer in the second-level cache (50 MB on an H200) when a call ends.
LARGE_BYTES = 500_000_000
LARGE_CALLS, SMALL_CALLS = 4, 20  # of one graph
TURN_SECONDS = 0.005
MAX_REPLAYS = 20
# A call that takes longer is a graph of its own: what lies between two graphs is some microseconds.
LONG_CALL_SECONDS = 0.001

# Relative, for softmaxd's own results. float32: the contract's bound. 16 bits: half a unit in the last place of
# rounding the result, and the float32 arithmetic before it.
TOLERANCE = {"float32": 1e-6, "float16": 2.0**-11 * 1.01, "bfloat16": 2.0**-8 * 1.01}
# Errors of results below these are relative to these.
SMALLEST_NORMAL = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
CHECKED_AT_ONCE = 2**24  # elements, since the check needs several times their memory in float64

Run = Callable[[], object]

# Read as they are: the server's packages need not be where a GPU is measured.
TUNINGS = Path(__file__).parents[1] / "server" / "softmaxd_server" / "tunings"


class KernelError(RuntimeError):
    """Raised when a variant does not start; the message is the runtime's name of the error."""


class Kernels:
    """The variants in libgpu_kernels.so.

    Args:
        path: Of the library.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        size, text, pointer, number = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int
        signatures = {
            "variant_name": (text, [size]),
            "max_columns": (size, [text]),
            "workspace_bytes": (size, [text, size, size, number]),
            "counter_bytes": (size, []),
            "error_name": (text, [number]),
            "start": (number, [text, pointer, pointer, size, size, number, pointer, pointer, pointer]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._counters = torch.zeros(self._library.counter_bytes(), dtype=torch.uint8, device="cuda")
        numbers = iter(range(100))
        self.names: list[str] = [
            name.decode() for name in iter(lambda: self._library.variant_name(next(numbers)), None)
        ]

    def names_for(self, cols: int) -> list[str]:
        """Return the variants that take rows of so many columns."""
        return [name for name in self.names if cols <= self._library.max_columns(name.encode())]

    def prepare(self, name: str, source: torch.Tensor, result: torch.Tensor, dtype: str) -> Run:
        """Return what starts a variant in torch's current stream, and raises KernelError if it does not start."""
        variant, (rows, cols), number = name.encode(), source.shape, DTYPES.index(dtype)
        workspace_bytes = max(1, self._library.workspace_bytes(variant, rows, cols, number))
        workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device="cuda")

        def run() -> None:
            matrix = (source.data_ptr(), result.data_ptr(), rows, cols, number)
            stream = torch.cuda.current_stream().cuda_stream
            pointers = (workspace.data_ptr(), self._counters.data_ptr(), stream)
            error = self._library.start(variant, *matrix, *pointers)
            if error != 0:
                raise KernelError(self._library.error_name(error).decode())

        return run


@dataclass(frozen=True)
class Graph:
    """Calls of one contestant, captured.

    Attributes:
        graph: The calls.
        calls: How many they are.
        replays: How many of it make a turn.
        run: What was captured: it owns the memory that the graph goes on to use.
    """

    graph: torch.cuda.CUDAGraph
    calls: int
    replays: int
    run: Run

    def turn(self) -> float:
        """Return the seconds of one call."""
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # Not timed: the device is busy with it while the host puts the others into the stream.
        self.graph.replay()
        start.record()
        for _ in range(self.replays):
            self.graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / (self.replays * self.calls)


def capture(run: Run, moved_bytes: int) -> Graph:
    """Capture a contestant, after two calls that load and compile what it needs and say how long it takes."""
    run()
    torch.cuda.synchronize()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    stop.record()
    stop.synchronize()
    seconds = start.elapsed_time(stop) / 1e3
    calls = LARGE_CALLS if moved_bytes >= LARGE_BYTES else SMALL_CALLS
    if seconds > LONG_CALL_SECONDS:
        calls = 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    replays = math.ceil(TURN_SECONDS / (calls * max(seconds, 1e-6)))
    return Graph(graph, calls, min(MAX_REPLAYS, replays), run)


def largest_relative_error(result: torch.Tensor, expected: torch.Tensor, smallest_normal: float) -> float:
    """Return the largest |result - p| / p, p being `expected` in float64; NaN where a result is."""
    step = max(1, CHECKED_AT_ONCE // result.shape[1])
    worst = [
        ((got.double() - p).abs() / p.clamp_min(smallest_normal)).max()
        for got, p in zip(result.split(step), expected.split(step), strict=True)
    ]
    return float(torch.stack(worst).max())


class GpuRace:
    """The contestants on device 0.

    Args:
        library: The variants' library.
    """

    backend = "cuda"

    def __init__(self, library: Path) -> None:
        self._kernels = Kernels(library)
        self.device = torch.cuda.get_device_name()
        self.setup = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
        tables = [json.loads(path.read_text()) for path in TUNINGS.glob("*.json")]
        self._rules = next((table["choices"] for table in tables if table["device"] == self.device), [])
        self._triton_row: ModuleType | None = None
        try:
            import triton
            import triton_row
        except ImportError:
            self.setup += ", no Triton"
        else:
            self.setup += f", Triton {triton.__version__}"
            self._triton_row = triton_row

    def shapes(self, dtype: str) -> tuple[tuple[int, int], ...]:
        """Return the shapes that are timed where none are asked for; large ones have the same bytes in every dtype."""
        times = 1 if dtype == "float32" else 2
        return (*((rows * times, cols) for rows, cols in LARGE_SHAPES), *FEW_ROWS)

    def measure(self, rows: int, cols: int, dtype: str) -> Case:
        """Check and time all contestants at one shape; what refuses, or is wrong, is not timed."""
        torch.manual_seed(1)
        source = (torch.randn(rows, cols, device="cuda") * 3).to(getattr(torch, dtype))
        result = torch.empty_like(source)
        expected = torch.softmax(source.double(), dim=-1)
        figures: dict[str, Figure] = {}
        graphs: dict[str, Graph] = {}
        for figure, prepare in self._contestants(source, result, dtype):
            figures[figure.who] = figure
            try:
                graph = capture(prepare(), 2 * source.nbytes)
            except Exception as error:  # a peer's library raises what it likes; the others go on
                if figure.kind == "copy":
                    raise
                reason = str(error).partition("\n")[0]
                figures[figure.who] = replace(figure, fault=f"refused: {type(error).__name__}: {reason}")
                continue
            result.fill_(torch.nan)
            graph.graph.replay()
            figures[figure.who] = checked = check(figure, source, result, expected, dtype)
            if not checked.fault:
                graphs[figure.who] = graph
        timings = take_turns({name: graph.turn for name, graph in graphs.items()}, ROUNDS)
        for name, timing in timings.items():
            figures[name] = figures[name].timed(timing, timings[COPY])
        return Case(rows, cols, dtype, tuple(figures.values()), self._chosen(rows, cols, dtype))

    def _chosen(self, rows: int, cols: int, dtype: str) -> str | None:
        """Return the variant that the shipped tuning table names, None where there is no table for the device."""
        for rule in self._rules:
            most_cols, most_rows = rule["max_cols"] or cols, rule["max_rows"] or rows
            if rule["dtype"] in {dtype, None} and cols <= most_cols and rows <= most_rows:
                return str(rule["variant"])
        return None

    def _contestants(
        self, source: torch.Tensor, result: torch.Tensor, dtype: str
    ) -> list[tuple[Figure, Callable[[], Run]]]:
        """Return who takes the shape, and what prepares each."""
        cols = source.shape[1]
        contestants: list[tuple[Figure, Callable[[], Run]]] = [
            (Figure(COPY, "copy"), lambda: lambda: result.copy_(source))
        ]
        for name in self._kernels.names_for(cols):
            prepare = partial(self._kernels.prepare, name, source, result, dtype)
            contestants.append((Figure(name, "softmaxd"), prepare))
        contestants.append((Figure("torch", "peer"), lambda: lambda: torch.softmax(source, -1, out=result)))
        if (row := self._triton_row) is not None and cols <= row.MAX_COLUMNS:
            contestants.append((Figure("Triton", "peer"), lambda: lambda: row.softmax(source, result)))
        return contestants


def check(figure: Figure, source: torch.Tensor, result: torch.Tensor, expected: torch.Tensor, dtype: str) -> Figure:
    """Return the figure with its error; with a fault where a result that was NaN before is not what it should be.

    Raises:
        RuntimeError: The copy is wrong, and so is everything.
    """
    if figure.kind == "copy":
        if not torch.equal(result, source):
            raise RuntimeError(f"the copy of {tuple(source.shape)} is not its source")
        return figure
    error = largest_relative_error(result, expected, SMALLEST_NORMAL[dtype])
    if math.isnan(error):
        return replace(figure, fault=f"wrong: {int(result.isnan().sum())} elements are NaN or were not written")
    fault = ""
    if figure.kind == "softmaxd" and error > TOLERANCE[dtype]:
        fault = f"wrong: off by {error:.2g}, allowed are {TOLERANCE[dtype]:.2g}"
    return replace(figure, error=error, fault=fault)
