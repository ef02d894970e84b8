from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from softmaxd_client import segments
from softmaxd_client.segments import TENSOR_OFFSET, TOKEN_BYTES, Segment, SegmentPool, remove_orphans

FOLDER = Path("/dev/shm")
FLOAT32 = np.dtype("f4")


@pytest.fixture
def pool():
    made = SegmentPool(1 << 20)
    yield made
    made.close()


def address_of(array):
    return array.__array_interface__["data"][0]


def segment_of(pool, array):
    found = pool.find(address_of(array), array.nbytes)
    return None if found is None else found[0]


def test_segment_starts_with_its_token_and_has_its_pages():
    segment = Segment(10_000)
    path = FOLDER / segment.name
    status = path.stat()
    assert path.read_bytes()[:TOKEN_BYTES] == segment.token
    assert (status.st_size, status.st_mode & 0o777) == (TENSOR_OFFSET + 10_000, 0o600)
    assert status.st_blocks * 512 >= status.st_size
    request = segment.registration()
    named = request.shared_memory
    assert (named.name, named.token, request.byte_size) == (segment.name, segment.token, segment.byte_size)
    segment.close()
    segment.close()
    assert not path.exists()


def test_segments_have_names_and_tokens_of_their_own():
    made = [Segment(1) for _ in range(5)]
    assert len({segment.name for segment in made}) == len({segment.token for segment in made}) == 5
    for segment in made:
        segment.close()


def test_segment_without_room_is_an_error_and_leaves_nothing(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = set(FOLDER.iterdir())
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Segment(1 << 20)
    assert set(FOLDER.iterdir()) == before


@pytest.mark.parametrize("shape", [(3,), (2, 0, 5), (2, 3, 4)], ids=str)
def test_lent_array_has_its_shape_and_lies_in_a_segment(pool, shape):
    array = pool.lend(shape, FLOAT32)
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == (shape, FLOAT32, True, True)
    array[...] = 1.5
    segment, offset = pool.find(address_of(array), array.nbytes)
    assert offset == TENSOR_OFFSET
    content = (FOLDER / segment.name).read_bytes()[offset : offset + array.nbytes]
    assert content == array.tobytes()


def test_parts_of_an_array_are_found_and_what_goes_beyond_it_is_not(pool):
    array = pool.lend((4, 256), FLOAT32)
    part = array[1:3]
    segment, offset = pool.find(address_of(part), part.nbytes)
    assert offset == TENSOR_OFFSET + 1024
    assert segment_of(pool, array) is segment
    assert pool.find(address_of(array), array.nbytes + 1) is None
    assert pool.find(address_of(array) - 1, 4) is None
    assert segment_of(pool, np.zeros(4)) is None


def test_many_arrays_are_each_found_in_their_own_segment(pool):
    arrays = [pool.lend((100 + index,), FLOAT32) for index in range(20)]
    assert len({segment_of(pool, array).name for array in arrays}) == 20


def test_segment_is_lent_again_once_no_array_is_left(pool):
    array = pool.lend((256,), FLOAT32)
    name = segment_of(pool, array).name
    view = array[10:]
    del array
    gc.collect()
    other = pool.lend((256,), FLOAT32)
    assert segment_of(pool, other).name != name
    del view
    gc.collect()
    assert segment_of(pool, pool.lend((200,), FLOAT32)).name == name


def test_segment_is_not_lent_to_an_array_of_less_than_half_its_size(pool):
    array = pool.lend((1024,), FLOAT32)
    name = segment_of(pool, array).name
    del array
    gc.collect()
    assert segment_of(pool, pool.lend((511,), FLOAT32)).name != name


def test_idle_segments_beyond_the_bound_are_discarded_oldest_first(pool):
    small = pool.lend((1024,), FLOAT32)
    large = pool.lend((200_000,), FLOAT32)
    other = pool.lend((190_000,), FLOAT32)
    names = [segment_of(pool, array).name for array in (small, large, other)]
    del small
    gc.collect()
    del large
    gc.collect()
    assert pool.discarded() == []
    del other
    gc.collect()
    discarded = [segment.name for segment in pool.discarded()]
    assert discarded == [names[1], names[0]]
    assert [(FOLDER / name).exists() for name in names] == [False, False, True]
    assert pool.discarded() == []


def test_segment_that_the_server_may_still_write_to_is_not_lent_again(pool):
    array = pool.lend((256,), FLOAT32)
    segment = segment_of(pool, array)
    pool.enter(segment)
    del array
    gc.collect()
    assert pool.discarded() == [segment]
    again = pool.lend((256,), FLOAT32)
    assert segment_of(pool, again) is not segment
    pool.enter(segment_of(pool, again))
    pool.leave(segment_of(pool, again))
    del again
    gc.collect()
    assert pool.discarded() == []


def test_close_removes_all_segments_and_leaves_their_arrays(pool):
    array = pool.lend((256,), FLOAT32)
    idle = pool.lend((256,), FLOAT32)
    names = [segment_of(pool, each).name for each in (array, idle)]
    del idle
    gc.collect()
    pool.close()
    array[...] = 3
    assert array.sum() == 768
    assert not any((FOLDER / name).exists() for name in names)
    del array
    gc.collect()


def test_pool_in_many_threads_never_lends_a_segment_twice(pool):
    wrong = []

    def use(number):
        for _ in range(200):
            array = pool.lend((64,), FLOAT32)
            array[...] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


_KILLED = """
import os, signal
from softmaxd_client.segments import Segment
segment = Segment(1000)
print(segment.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_orphans_of_a_killed_process_are_removed_and_those_in_use_are_not():
    mine = Segment(1000)
    killed = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, check=False, timeout=60)
    orphan = FOLDER / killed.stdout.strip()
    stranger = FOLDER / "softmaxd-not-one-of-the-client"
    stranger.touch()
    try:
        assert orphan.exists()
        remove_orphans()
        assert not orphan.exists()
        assert (FOLDER / mine.name).exists()
        assert stranger.exists()
    finally:
        stranger.unlink()
        mine.close()


def test_names_of_orphans_are_those_that_segments_get():
    segment = Segment(1)
    assert segments._OURS.fullmatch(segment.name)
    segment.close()
