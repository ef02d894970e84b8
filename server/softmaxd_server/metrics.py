"""What Prometheus is told. All label sets are closed: every series exists from the start.

The event loop's thread writes plain numbers, and the scraper's thread reads them: a scrape may miss the request that is
being counted, never count it twice. prometheus_client's own Histogram and Counter take a lock and look through the
buckets one by one; the observations and counts of a request cost 4.5 us in a tight loop and 10 us between gRPC
calls, where caches are cold (h2load, 4 KB tensors, 2-core Xeon). These cost 1 us and 2 us.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from softmaxd_server.transports import INLINE, TRANSPORTS

# Each with the ways that its tensors may travel.
METHODS = {"Softmax": TRANSPORTS, "SoftmaxStream": TRANSPORTS, "GetServerInfo": (INLINE,)}
PHASES = ("queue", "upload", "kernel", "download")
BUCKETS_SECONDS = (*(float(f"{digit}e{exponent}") for exponent in range(-5, 1) for digit in (1, 2, 5)), 10.0)
_BUCKET_NAMES = (*map(floatToGoString, BUCKETS_SECONDS), "+Inf")

PoolUse = tuple[str, int, int, int]
"""A pool's name, bytes in use, bytes kept, allocations since the start."""
RegionUse = tuple[int, int]
"""How many regions there are, and their bytes."""


class SecondsHistogram:
    """Counts durations by `BUCKETS_SECONDS`; for one writing thread."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * len(_BUCKET_NAMES)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the series to a family; called from any thread."""
        cumulative = accumulate(self._counts.copy())
        family.add_metric(labels, list(zip(_BUCKET_NAMES, cumulative, strict=True)), self._sum)


class Metrics:
    """The metrics of one server, in a registry of its own. Only the event loop's thread may change them.

    Args:
        codes: The names of every status code that a request can end with.

    Attributes:
        registry: What is scraped.
        request_seconds: Method -> transport -> status code -> the time from a message's arrival to its answer.
        phase_seconds: Phase -> the time that it took.
        request_bytes: Bytes of request messages so far.
        response_bytes: Bytes of answers so far.
        requests_in_flight: Requests that wait for their answer.
        streams_open: Open SoftmaxStream calls.
    """

    def __init__(self, codes: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        self.request_seconds = {
            method: {transport: {code: SecondsHistogram() for code in codes} for transport in transports}
            for method, transports in METHODS.items()
        }
        self.phase_seconds = {phase: SecondsHistogram() for phase in PHASES}
        self.request_bytes = 0
        self.response_bytes = 0
        self.requests_in_flight = 0
        self.streams_open = 0
        self.registry.register(_RequestCollector(self))
        ProcessCollector(registry=self.registry)

    def describe_backend(
        self,
        version: str,
        backend: str,
        device: str,
        pools: Callable[[], Iterable[PoolUse]],
        regions: Callable[[], Mapping[str, RegionUse]],
        in_flight_bytes: Callable[[], int],
    ) -> None:
        """Add what is known once the backend is open; call it once.

        Args:
            version: Of softmaxd.
            backend: The backend's name.
            device: The devices' names.
            pools: Asked at each scrape, from the scraper's thread, as are the others.
            regions: Gives the use of registered memory by its kind.
            in_flight_bytes: Gives the bytes of requests and answers that are held.
        """
        info = Info("softmaxd", "What serves.", registry=self.registry)
        info.info({"version": version, "backend": backend, "device": device})
        self.registry.register(_MemoryCollector(pools, regions, in_flight_bytes))


class _RequestCollector(Collector):
    """Turns the numbers of `Metrics` into families when they are scraped."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        metrics = self._metrics
        requests = HistogramMetricFamily(
            "softmaxd_request_seconds",
            "From a request message's arrival to its answer; one observation for each message of a stream.",
            labels=("method", "transport", "code"),
        )
        for method, by_transport in metrics.request_seconds.items():
            for transport, by_code in by_transport.items():
                for code, seconds in by_code.items():
                    seconds.add_to(requests, (method, transport, code))
        phases = HistogramMetricFamily(
            "softmaxd_phase_seconds",
            "The phases of an answered request, without its coding; a backend without a phase does not observe it.",
            labels=("phase",),
        )
        for phase, seconds in metrics.phase_seconds.items():
            seconds.add_to(phases, (phase,))
        return (
            requests,
            phases,
            CounterMetricFamily("softmaxd_request_bytes", "Bytes of request messages.", metrics.request_bytes),
            CounterMetricFamily("softmaxd_response_bytes", "Bytes of answers.", metrics.response_bytes),
            GaugeMetricFamily(
                "softmaxd_requests_in_flight", "Requests without their answer.", metrics.requests_in_flight
            ),
            GaugeMetricFamily("softmaxd_streams_open", "Open SoftmaxStream calls.", metrics.streams_open),
        )


class _MemoryCollector(Collector):
    """Reads the use of memory when it is scraped."""

    def __init__(
        self,
        pools: Callable[[], Iterable[PoolUse]],
        regions: Callable[[], Mapping[str, RegionUse]],
        in_flight_bytes: Callable[[], int],
    ) -> None:
        self._pools, self._regions, self._in_flight_bytes = pools, regions, in_flight_bytes

    def collect(self) -> Iterable[Metric]:
        held = GaugeMetricFamily("softmaxd_pool_bytes", "Bytes of a memory pool.", labels=("pool", "state"))
        allocations = CounterMetricFamily(
            "softmaxd_pool_allocations", "Allocations by a memory pool.", labels=("pool",)
        )
        for name, used_bytes, reserved_bytes, allocated in self._pools():
            held.add_metric((name, "used"), used_bytes)
            held.add_metric((name, "reserved"), reserved_bytes)
            allocations.add_metric((name,), allocated)
        regions = GaugeMetricFamily("softmaxd_regions", "Registered regions of memory.", labels=("kind",))
        region_bytes = GaugeMetricFamily("softmaxd_region_bytes", "Bytes of registered regions.", labels=("kind",))
        for kind, (count, byte_size) in self._regions().items():
            regions.add_metric((kind,), count)
            region_bytes.add_metric((kind,), byte_size)
        in_flight = GaugeMetricFamily(
            "softmaxd_in_flight_bytes",
            "Bytes of requests and answers that are held; --in-flight-bytes bounds them.",
            self._in_flight_bytes(),
        )
        return held, allocations, regions, region_bytes, in_flight
