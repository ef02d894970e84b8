"""The backend on GPUs: on those that can be had here, and on devices that the CPU simulates ("simt").

The simulated device runs the real device core and kernels; what it cannot show is said in tests/native/simt.
"""

from __future__ import annotations

import asyncio
import logging
import time

import grpc
import numpy as np
import pytest
from harness import simulated_gpu, tables
from harness.metrics import samples, scrape
from harness.reference import assert_close
from softmaxd_proto import dtypes
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_proto.v1.softmax_pb2_grpc import SoftmaxServiceStub
from softmaxd_server import tuning
from softmaxd_server.backends.base import Work
from softmaxd_server.errors import BackendUnavailableError, TuningError

FLOAT32 = dtypes.BY_NAME["float32"]
PIECE_BYTES = 1 << 20  # what native/src/gpu moves at once
# Rows of 1 KiB to 1 MiB go in blocks, the last ones whole: longer than a piece.
SMALL = [(1, 7), (3, 16), (20, 5), (2, 300)]
WIDE = [(1, PIECE_BYTES // 4 + 1), (1, PIECE_BYTES // 4 + 40_000)]
LARGE = [(700, 1000), (70_000, 32), (9, 200_000), (17, PIECE_BYTES // 4)]


def values(seed, shape, dtype="float32"):
    return (np.random.default_rng(seed).standard_normal(shape) * 4).astype(dtypes.BY_NAME[dtype].numpy)


def scraped(server):
    """Return the metrics as Prometheus sees them."""
    return samples(scrape(f"http://127.0.0.1:{server.metrics_port}"))


def allocations(server):
    """Return softmaxd_pool_allocations by pool."""
    name = "softmaxd_pool_allocations_total"
    return {dict(labels)["pool"]: value for (found, *labels), value in scraped(server).items() if found == name}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_blocks_and_long_rows_are_right(gpu, dtype):
    backend = gpu(threads=3)
    shapes = [*SMALL, *WIDE] if backend.name == simulated_gpu.NAME else [*SMALL, *WIDE, *LARGE]
    for seed, shape in enumerate(shapes):
        x = values(seed, shape, dtype)
        assert_close(backend.softmax(x), x)


@pytest.mark.parametrize("longest", [100, 4096])
def test_variant_of_plain_schemes_changes_where_the_tuning_table_says(gpu, tuning_file, longest):
    table = tuning_file({"max_cols": longest, "variant": "basic"}, {"variant": "five_pass"})
    backend = gpu(tuning=table)
    assert backend.tuning == f"{table.name} (simulated device 0, 2026-12-01)"
    assert backend.plan(Work(5, longest, FLOAT32, False)) == ("basic", longest, 1)
    plan = backend.plan(Work(5, longest + 1, FLOAT32, False))
    assert plan.variant == "five_pass"
    assert (plan.tile_count - 1) * plan.tile_columns < longest + 1 <= plan.tile_count * plan.tile_columns
    for cols in (longest, longest + 1):
        x = values(4, (5, cols))
        got = backend.softmax(x)
        assert (
            got.tobytes() == backend.softmax(x, variant=backend.plan(Work(5, cols, FLOAT32, False)).variant).tobytes()
        )
        assert_close(got, x)


@pytest.mark.parametrize(
    ("rows", "variant"),
    [
        (3, "split_row"),
        (749, "split_row"),
        (1499, "split_row"),
        (1500, "reread_row"),
        (1501, "reread_row"),
        (10_000, "reread_row"),
    ],
)
def test_plan_names_what_the_simulated_device_launches(monkeypatch, open_backend, tuning_file, rows, variant):
    # One thread has two blocks under way: 1499 rows go in blocks of 749, and the last one is shorter.
    table = tuning_file({"max_rows": 749, "variant": "split_row"}, {"variant": "reread_row"})
    backend = open_backend("simt", threads=1, tuning=table)
    assert backend.plan(Work(rows, 300, FLOAT32, False)).variant == variant
    launch, other = ("LaunchTogether", "Launch") if variant == "split_row" else ("Launch", "LaunchTogether")
    x = values(11, (rows, 300))
    monkeypatch.setenv("SIMT_FAIL", launch)
    with pytest.raises(RuntimeError, match=f"{variant}, {rows} x 300 float32"):
        backend.softmax(x)
    if rows <= 1501:  # the others take long there
        monkeypatch.setenv("SIMT_FAIL", other)
        assert_close(backend.softmax(x), x)


def test_table_by_which_rows_decide_between_bits_is_refused(gpu, tuning_file):
    with pytest.raises(TuningError, match=r"table_0.json: rows of float32 .* basic or by warp_row.*softmaxctl tune"):
        gpu(tuning=tuning_file(*tables.TORN))


def test_table_with_an_unknown_variant_is_refused_and_the_known_ones_are_named(gpu, tuning_file):
    with pytest.raises(TuningError, match=r"no variant 'magic'; there are: basic, .*reread_row.*softmaxctl tune"):
        gpu(tuning=tuning_file({"variant": "magic"}))


def test_table_of_another_device_is_used_with_a_warning(gpu, tuning_file, caplog):
    table = tuning_file(*tables.PLAIN, device="another")
    backend = gpu(tuning=table)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{table} was made for another (simt), and is used for" in warning.getMessage()
    assert backend.tuning == f"{table.name} (another, 2026-12-01)"
    assert backend.plan(Work(5, 100, FLOAT32, False)).variant == "basic"


def test_shipped_table_of_the_device_is_used_and_no_other_one(monkeypatch, open_backend, tuning_file, tmp_path, caplog):
    monkeypatch.setattr(tuning, "_SHIPPED", tmp_path)
    tuning_file({"variant": "reread_row"}, device="simulated device 9")
    tuning_file({"variant": "reread_row"}, runtime="cuda")
    assert open_backend("simt").tuning == "built-in"
    table = tuning_file(*tables.PLAIN)
    backend = open_backend("simt")
    assert backend.tuning == f"shipped {table.name} (simulated device 0, 2026-12-01)"
    assert backend.plan(Work(5, 100, FLOAT32, False)).variant == "basic"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    asked = tuning_file({"variant": "reread_row"})
    assert open_backend("simt", tuning=asked).plan(Work(5, 100, FLOAT32, False)).variant == "reread_row"
    monkeypatch.setenv("SIMT_DEVICES", "2")  # two names: the table is of one of them
    assert open_backend("simt").tuning == "built-in"


def test_variant_is_timed_and_pools_are_as_before(gpu):
    backend = gpu(threads=1)
    for variant in backend.candidates(100):
        assert 0 < backend.time_variant(variant, 3, 100, "bfloat16") < 1
    before = backend.pools()
    assert all(pool.used_bytes == 0 for pool in before)
    backend.time_variant("warp_row", 3, 100, "float16")
    assert backend.pools() == before


def test_variant_that_cannot_be_timed_is_refused_and_pools_are_as_before(gpu):
    backend = gpu(threads=1)
    for variant, rows, cols, said in (
        ("warp_row", 1, 1025, "up to 1024"),
        ("magic", 1, 1, "there are: basic"),
        ("warp_row", 0, 5, "nothing to time"),
    ):
        with pytest.raises(ValueError, match=said):
            backend.time_variant(variant, rows, cols, "float32")
    before = backend.pools()
    with pytest.raises(MemoryError, match="reread_row, 1000000000 x 100000 float32"):
        backend.time_variant("reread_row", 1_000_000_000, 100_000, "float32")
    assert [pool.used_bytes for pool in backend.pools()] == [pool.used_bytes for pool in before]


@pytest.mark.parametrize("call", ["MemcpyAsync", "Launch", "EventSynchronize"])
def test_simulated_device_fault_while_timing_gives_memory_back(monkeypatch, open_backend, call):
    backend = open_backend("simt", threads=1)
    monkeypatch.setenv("SIMT_FAIL", call)
    with pytest.raises(RuntimeError, match=r"simtErrorLaunchFailure \(warp_row, 3 x 100 float32, device 0\)"):
        backend.time_variant("warp_row", 3, 100, "float32")
    monkeypatch.delenv("SIMT_FAIL")
    assert all(pool.used_bytes == 0 for pool in backend.pools())
    assert backend.time_variant("warp_row", 3, 100, "float32") > 0


def test_answer_says_how_long_each_phase_took_and_no_more_than_the_whole(gpu):
    backend = gpu()
    for shape in SMALL + WIDE:
        x = values(1, shape)
        start = time.perf_counter()
        _, phases = backend.answer(b"", memoryview(x.tobytes()), Work(*shape, FLOAT32, False))
        whole = time.perf_counter() - start
        assert set(phases) == {"upload", "kernel", "download"}
        assert min(phases["upload"], phases["kernel"]) > 0
        # The device's clock and the host's are two.
        assert phases["download"] >= 0
        assert sum(phases.values()) <= whole * 1.05


def test_devices_can_be_chosen_and_one_that_is_not_there_is_named(gpu):
    assert len(gpu(device="0").devices) == 1
    with pytest.raises(BackendUnavailableError, match=r"there is no device 99; there are 0 to \d+"):
        gpu(device="99")


async def test_10000_requests_of_mixed_sizes_allocate_nothing(gpu, serve, dial, make_request, read_answer):
    backend = gpu(threads=2)
    server = await serve(backend)
    stub = SoftmaxServiceStub(dial(server))
    shapes = [*SMALL * 200, WIDE[0]] if backend.name == simulated_gpu.NAME else [*SMALL * 40, *WIDE, *LARGE]
    distinct = list(dict.fromkeys(shapes))
    requests = {shape: make_request(values(5, shape)) for shape in distinct}
    first = {shape: await stub.Softmax(request) for shape, request in requests.items()}
    for shape, answer in first.items():
        assert_close(read_answer(answer), read_answer(requests[shape]))
    before = allocations(server)
    assert before == {name: allocated for name, _, _, allocated in backend.pools()}
    left = [shapes[i % len(shapes)] for i in range(10_000)]

    async def client() -> None:
        while left:
            shape = left.pop()
            answer = await stub.Softmax(requests[shape])
            assert answer.payload == first[shape].payload

    await asyncio.gather(*(client() for _ in range(8)))
    assert allocations(server) == before
    assert all(used == 0 for _, used, _, _ in backend.pools())


async def test_request_that_does_not_fit_is_resource_exhausted_and_the_server_goes_on(
    gpu, serve, dial, make_request, read_answer
):
    reserved = next(pool.reserved_bytes for pool in gpu(threads=2).pools() if pool.name == "device:0")
    backend = gpu(threads=2, device_pool_bytes=reserved + 2 * PIECE_BYTES)
    stub = SoftmaxServiceStub(dial(await serve(backend)))
    fits = make_request(values(6, WIDE[0]))
    too_large = make_request(np.zeros((1, reserved // 4 + PIECE_BYTES)))  # also once all that is idle is given back
    for _ in range(2):
        assert_close(read_answer(await stub.Softmax(fits)), read_answer(fits))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Softmax(too_large)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{len(too_large.payload)} bytes: send fewer rows" in caught.value.details()
    assert all(used == 0 for _, used, _, _ in backend.pools())


async def test_phases_are_in_the_metrics(gpu, serve, dial, make_request):
    server = await serve(gpu())
    stub = SoftmaxServiceStub(dial(server))
    for _ in range(5):
        await stub.Softmax(make_request(values(8, (3, 50))))
    found = scraped(server)
    for phase in ("upload", "kernel", "download"):
        assert found["softmaxd_phase_seconds_count", ("phase", phase)] == 5


def test_simulated_device_without_memory_gives_idle_buffers_back_before_it_refuses(monkeypatch, open_backend):
    reserved = open_backend("simt", threads=1).pools()[0].reserved_bytes
    # Room for the lanes and one long row; a row of another size class fits only in its place.
    monkeypatch.setenv("SIMT_DEVICE_BYTES", str(2 * reserved + 3 * PIECE_BYTES))
    backend = open_backend("simt", threads=1, device_pool_bytes=1 << 40)
    for shape in (WIDE[0], (1, PIECE_BYTES // 2), WIDE[0]):
        x = values(9, shape)
        assert_close(backend.softmax(x), x)
    with pytest.raises(MemoryError, match="simtErrorMemoryAllocation"):
        backend.softmax(np.zeros((1, reserved // 4 + PIECE_BYTES), np.float32))
    x = values(9, SMALL[0])
    assert_close(backend.softmax(x), x)


def test_no_simulated_device_is_said_in_one_line(monkeypatch, open_backend):
    monkeypatch.setenv("SIMT_DEVICES", "0")
    with pytest.raises(BackendUnavailableError, match=r"no SIMT device \(simtErrorNoDevice\)"):
        open_backend("simt")


@pytest.mark.parametrize("device", ["all", "1,0"])
def test_simulated_devices_are_all_used_and_listed(monkeypatch, open_backend, device):
    monkeypatch.setenv("SIMT_DEVICES", "2")
    backend = open_backend("simt", device=device, threads=1)
    backend.warm_up()
    assert {product.name for product in backend.devices} == {"simulated device 0", "simulated device 1"}
    assert {pool.name for pool in backend.pools()} == {"device:0", "pinned:0", "device:1", "pinned:1"}


@pytest.mark.parametrize("call", ["MemcpyAsync", "Launch", "EventSynchronize"])
async def test_simulated_device_fault_is_an_internal_error_and_the_next_request_is_answered(
    monkeypatch, open_backend, serve, dial, make_request, read_answer, caplog, call
):
    backend = open_backend("simt", threads=2)
    stub = SoftmaxServiceStub(dial(await serve(backend)))
    requests = [make_request(values(10, shape)) for shape in (SMALL[0], WIDE[0])]
    for request in requests:
        monkeypatch.setenv("SIMT_FAIL", call)
        with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Softmax(request)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "simt" not in caught.value.details()
        assert "simtErrorLaunchFailure" in caplog.text
        monkeypatch.delenv("SIMT_FAIL")
        assert_close(read_answer(await stub.Softmax(request)), read_answer(request))
    assert all(used == 0 for _, used, _, _ in backend.pools())


async def test_server_info_describes_the_gpu(gpu, serve, dial):
    backend = gpu()
    info = await SoftmaxServiceStub(dial(await serve(backend))).GetServerInfo(softmax_pb2.GetServerInfoRequest())
    assert info.backend == backend.name
    assert [variant.name for variant in info.variants] == [variant.name for variant in backend.variants]
    assert info.devices[0].name
    assert info.tuning == backend.tuning
    assert info.tuning
    assert {pool.name for pool in info.pools} >= {"device:0", "pinned:0"}
