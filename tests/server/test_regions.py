from __future__ import annotations

from types import SimpleNamespace

import pytest
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_server import regions as module
from softmaxd_server.errors import InvalidTensorError, RegionLimitError, TransportOffError, UnknownRegionError
from softmaxd_server.regions import Lease, Region, Regions, Slice
from softmaxd_server.transports import DEVICE_MEMORY, SHARED_MEMORY


class Opener:
    """Opens bytearrays, and counts what is released."""

    def __init__(self, kind=SHARED_MEMORY, error=None):
        self.kind, self.error, self.released = kind, error, 0

    def open(self, named, byte_size):
        if self.error is not None:
            raise self.error
        return Region(self.kind, byte_size, memoryview(bytearray(byte_size)), named, lambda: True, self._release)

    def _release(self):
        self.released += 1


@pytest.fixture
def opener():
    return Opener()


@pytest.fixture
def regions(opener):
    return Regions({SHARED_MEMORY: opener}, 1000)


def wanted(region, offset=0, byte_size=1):
    return softmax_pb2.MemorySlice(region=region, offset=offset, byte_size=byte_size)


def test_region_is_lent_until_it_is_retired(regions, opener):
    region = regions.register(SHARED_MEMORY, "a", 100)
    with regions.borrow(wanted(region, 10, 90)) as lent:
        assert (lent.offset, lent.byte_size, lent.view().nbytes) == (10, 90, 90)
    assert opener.released == 0
    regions.retire(region)
    assert opener.released == 1
    with pytest.raises(UnknownRegionError), regions.borrow(wanted(region)):
        pass


def test_retired_region_lives_until_its_last_borrower_gives_it_back(regions, opener):
    region = regions.register(SHARED_MEMORY, "a", 100)
    with regions.borrow(wanted(region)), regions.borrow(wanted(region)):
        regions.retire(region)
        assert opener.released == 0
        assert regions.use()[SHARED_MEMORY] == (1, 100)
        with pytest.raises(UnknownRegionError), regions.borrow(wanted(region)):
            pass
    assert opener.released == 1
    assert regions.use()[SHARED_MEMORY] == (0, 0)


@pytest.mark.parametrize(
    ("offset", "byte_size"), [(0, 101), (100, 1), (2**64 - 1, 1), (1, 2**64 - 1), (2**63, 2**63), (101, 0)], ids=str
)
def test_slice_that_ends_beyond_its_region_is_refused_and_gives_it_back(regions, opener, offset, byte_size):
    region = regions.register(SHARED_MEMORY, "a", 100)
    with (
        pytest.raises(InvalidTensorError, match=rf"{byte_size} bytes at offset {offset}.* 100"),
        regions.borrow(wanted(region, offset, byte_size)),
    ):
        pass
    regions.retire(region)
    assert opener.released == 1


def test_slice_that_ends_where_its_region_does_is_lent(regions):
    region = regions.register(SHARED_MEMORY, "a", 100)
    with regions.borrow(wanted(region, 100, 0)) as lent:
        assert lent.byte_size == 0


def test_ids_are_long_and_differ(regions):
    ids = {regions.register(SHARED_MEMORY, "a", 1) for _ in range(20)}
    assert len(ids) == 20
    assert {len(region) for region in ids} == {16}


def test_kind_that_is_not_allowed_is_refused_with_its_flag(regions):
    with pytest.raises(TransportOffError, match="--allow-device-memory"):
        regions.register(DEVICE_MEMORY, "a", 1)
    assert regions.kinds == (SHARED_MEMORY,)


def test_more_bytes_than_allowed_are_refused_until_some_are_let_go(regions):
    first = regions.register(SHARED_MEMORY, "a", 600)
    with pytest.raises(RegionLimitError, match=r"401 bytes beside 600 .*allowed are 1000.*--shared-memory-bytes=1000"):
        regions.register(SHARED_MEMORY, "b", 401)
    regions.register(SHARED_MEMORY, "b", 400)
    regions.retire(first)
    regions.register(SHARED_MEMORY, "c", 600)


def test_bytes_of_device_memory_are_not_bounded_by_those_of_shared_memory():
    opener = Opener(DEVICE_MEMORY)
    regions = Regions({DEVICE_MEMORY: opener}, 1000)
    regions.register(DEVICE_MEMORY, "a", 2000)
    assert regions.use()[DEVICE_MEMORY] == (1, 2000)


def test_memory_that_cannot_be_opened_counts_for_nothing(regions, opener):
    opener.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        regions.register(SHARED_MEMORY, "a", 1000)
    assert regions.use()[SHARED_MEMORY] == (0, 0)
    opener.error = None
    regions.register(SHARED_MEMORY, "a", 1000)


def test_more_regions_than_allowed_are_refused(regions, monkeypatch):
    monkeypatch.setattr(module, "MAX_REGIONS", 2)
    for _ in range(2):
        regions.register(SHARED_MEMORY, "a", 1)
    with pytest.raises(RegionLimitError, match="2 regions"):
        regions.register(SHARED_MEMORY, "a", 1)


def test_lease_holds_no_more_regions_than_allowed(regions, monkeypatch):
    monkeypatch.setattr(module, "MAX_REGIONS_PER_LEASE", 2)
    lease = Lease(regions)
    first = lease.register(SHARED_MEMORY, "a", 1)
    lease.register(SHARED_MEMORY, "b", 1)
    with pytest.raises(RegionLimitError, match="has registered 2 regions"):
        lease.register(SHARED_MEMORY, "c", 1)
    lease.unregister(first)
    lease.register(SHARED_MEMORY, "c", 1)


def test_end_of_a_lease_lets_its_regions_go_and_no_others(regions, opener):
    lease, other = Lease(regions), Lease(regions)
    ids = [lease.register(SHARED_MEMORY, "a", 1) for _ in range(3)]
    kept = other.register(SHARED_MEMORY, "b", 1)
    lease.unregister(ids[0])
    lease.end()
    lease.end()
    assert opener.released == 3
    with regions.borrow(wanted(kept)):
        pass
    with pytest.raises(UnknownRegionError):
        lease.register(SHARED_MEMORY, "c", 1)
    assert regions.use()[SHARED_MEMORY] == (1, 1)


def test_lease_lets_go_only_of_its_own_regions(regions):
    mine, theirs = Lease(regions), Lease(regions)
    region = theirs.register(SHARED_MEMORY, "a", 1)
    with pytest.raises(UnknownRegionError):
        mine.unregister(region)
    theirs.unregister(region)
    with pytest.raises(UnknownRegionError):
        theirs.unregister(region)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, 10), (0, 10), False),  # the same bytes: in place
        ((0, 10), (10, 10), False),
        ((10, 10), (0, 10), False),
        ((0, 10), (9, 10), True),
        ((9, 10), (0, 10), True),
        ((0, 10), (4, 2), True),
    ],
)
def test_slices_overlap_in_part_only_where_they_share_some_bytes(first, second, expected):
    def of(identity, span):
        region = SimpleNamespace(identity=identity)
        return Slice(region, *span)

    assert of("a", first).overlaps_in_part(of("a", second)) is expected
    assert of("a", first).overlaps_in_part(of("b", second)) is False
