"""Files that another process shares, and what it can do to them: native/include/softmaxd/shared_mapping.h."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from softmaxd_native import InvalidArgument, SharedMapping

PAGE = mmap.PAGESIZE
MOST = 4096  # mappings of a process

# What the programs below begin with: they may be killed, so each is a process of its own.
BEGIN = """
import faulthandler, mmap, os, signal, sys, threading
import numpy as np
from softmaxd_native import CpuContext, SharedMapping

PAGE = mmap.PAGESIZE

def file(pages):
    fd = os.memfd_create("softmaxd-test")
    os.ftruncate(fd, pages * PAGE)
    return fd

def truncated_mapping(pages, left=0):
    fd = file(pages)
    mapping = SharedMapping(fd, pages * PAGE)
    os.ftruncate(fd, left * PAGE)
    os.close(fd)
    return mapping

def truncated_memory_of_others():
    fd = file(1)
    memory = mmap.mmap(fd, PAGE)
    os.ftruncate(fd, 0)
    return memory
"""


def run(program: str) -> tuple[int, str]:
    """Return the exit status, negative for a signal, and what was said."""
    command = [sys.executable, "-c", BEGIN + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def assert_survives(program: str) -> None:
    assert run(f"{program}\nprint('survived', end='')") == (0, "survived")


@pytest.fixture(params=["memfd", "shm"])
def make_file(request: pytest.FixtureRequest) -> Iterator[Callable[[int], int]]:
    """Make a file of so many bytes; return its descriptor."""
    made: list[int] = []

    def make(byte_size: int) -> int:
        if request.param == "memfd":
            fd = os.memfd_create("softmaxd-test")
        else:
            path = f"/dev/shm/softmaxd-test-{uuid.uuid4().hex}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(path)
        made.append(fd)
        os.ftruncate(fd, byte_size)
        return fd

    yield make
    for fd in made:
        with suppress(OSError):  # the test closed it
            os.close(fd)


def test_mapping_of_a_file_shares_what_either_side_writes(make_file: Callable[[int], int]) -> None:
    byte_size = 2 * PAGE + 100
    fd = make_file(byte_size)
    mapping = SharedMapping(fd, byte_size)
    view = memoryview(mapping)
    assert (view.nbytes, view.format, view.readonly, mapping.byte_size) == (byte_size, "B", False, byte_size)
    assert mapping.is_intact
    os.pwrite(fd, b"theirs", 2 * PAGE)
    assert bytes(view[2 * PAGE : 2 * PAGE + 6]) == b"theirs"
    view[PAGE - 2 : PAGE + 2] = b"ours"
    assert os.pread(fd, 4, PAGE - 2) == b"ours"
    os.close(fd)
    view[0:1] = b"x"
    assert view[0] == ord("x"), "the descriptor is not needed any more"
    assert mapping.is_intact


def test_mapping_of_a_part_has_the_files_start(make_file: Callable[[int], int]) -> None:
    fd = make_file(10 * PAGE)
    os.pwrite(fd, b"start", 0)
    mapping = SharedMapping(fd, 5)
    assert bytes(memoryview(mapping)) == b"start"


def test_truncated_file_reads_as_zeros_and_is_not_intact() -> None:
    assert_survives("""
fd = file(4)
os.pwrite(fd, b"\\x07" * 4 * PAGE, 0)
mapping = SharedMapping(fd, 4 * PAGE)
view = memoryview(mapping)
assert view[3 * PAGE] == 7
os.ftruncate(fd, PAGE)
assert view[PAGE - 1] == 7
assert mapping.is_intact, "no access has met a page that is gone"
assert view[3 * PAGE + 5] == 0
assert not mapping.is_intact
assert bytes(view) == bytes(4 * PAGE)
view[2 * PAGE] = 9
assert view[2 * PAGE] == 9
assert not mapping.is_intact
view.release()
mapping.close()
assert not mapping.is_intact
""")


def test_truncated_file_written_first_is_not_intact() -> None:
    assert_survives("""
mapping = truncated_mapping(2)
memoryview(mapping)[PAGE] = 1
assert not mapping.is_intact
""")


def test_truncated_file_leaves_other_mappings_as_they_are() -> None:
    assert_survives("""
fd = file(1)
os.pwrite(fd, b"kept", 0)
others = [SharedMapping(fd, PAGE) for _ in range(3)]
truncated = truncated_mapping(1)
others += [SharedMapping(fd, PAGE) for _ in range(3)]
memoryview(truncated)[0] = 1
assert not truncated.is_intact
assert all(other.is_intact and bytes(memoryview(other)[:4]) == b"kept" for other in others)
memoryview(others[0])[:4] = b"seen"
assert os.pread(fd, 4, 0) == b"seen"
""")


def test_softmax_by_several_threads_on_truncated_files_survives() -> None:
    assert_survives("""
context = CpuContext(3)
rows, cols = 64, PAGE
mappings = [truncated_mapping(rows * 4, left=5) for _ in range(6)]

def compute(source, destination):
    for _ in range(5):
        context.softmax(source, destination, rows, cols, "float32")

threads = [threading.Thread(target=compute, args=(mappings[i % 3], mappings[i])) for i in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not any(mapping.is_intact for mapping in mappings)
zeros = SharedMapping(file(rows * 4), rows * cols * 4)
fresh = truncated_mapping(rows * 4)
context.softmax(fresh, zeros, rows, cols, "float32")
assert (np.frombuffer(zeros, np.float32) == 1 / cols).all()
assert zeros.is_intact and not fresh.is_intact
""")


def test_mappings_made_and_closed_while_others_are_truncated_survive() -> None:
    assert_survives("""
def work():
    for _ in range(300):
        mapping = truncated_mapping(2, left=1)
        intact = SharedMapping(file_of_ones, PAGE)
        assert memoryview(mapping)[PAGE] == 0
        assert memoryview(intact)[PAGE - 1] == 1
        assert intact.is_intact and not mapping.is_intact
        mapping.close()
        intact.close()

file_of_ones = file(1)
os.pwrite(file_of_ones, b"\\x01" * PAGE, 0)
failed = []
threading.excepthook = failed.append
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed
""")


@pytest.mark.parametrize(
    "before",
    [
        "",
        "mapping = SharedMapping(file(1), PAGE)",
        "SharedMapping(file(1), PAGE).close()",
        "memory = truncated_memory_of_others()",  # made before: it lies above
        "faulthandler.enable()",
    ],
)
def test_bus_error_elsewhere_still_kills(before: str) -> None:
    status, said = run(f"""
memory = None
{before}
kept = truncated_mapping(1)
memoryview(kept)[0]
print("survived the first")
sys.stdout.flush()
memory = memory or truncated_memory_of_others()
memory[0]
print("survived the second")
""")
    assert status == -signal.SIGBUS
    assert "survived the first" in said
    assert "survived the second" not in said
    assert ("Fatal Python error: Bus error" in said) == ("faulthandler" in before)


def test_bus_error_where_a_closed_mapping_was_kills() -> None:
    status, said = run("""
addresses = set()
for _ in range(50):
    mapping = truncated_mapping(1)
    addresses.add(np.frombuffer(mapping, np.uint8).ctypes.data)
    mapping.close()
    memory = truncated_memory_of_others()
    if np.frombuffer(memory, np.uint8).ctypes.data in addresses:
        print("the same address")
        sys.stdout.flush()
        memory[0]
""")
    assert (status, said) == (-signal.SIGBUS, "the same address\n")


@pytest.mark.parametrize(
    ("handler", "status", "said"),
    [
        ("signal.SIG_DFL", -signal.SIGBUS, ""),
        ("signal.SIG_IGN", 0, "survived"),
        ("lambda *_: print('handled ', end='')", 0, "handled survived"),
    ],
)
def test_bus_signal_of_another_process_goes_where_it_went(handler: str, status: int, said: str) -> None:
    assert run(f"""
signal.signal(signal.SIGBUS, {handler})
mapping = SharedMapping(file(1), PAGE)
os.kill(os.getpid(), signal.SIGBUS)
print("survived", end="")
""") == (status, said)


def test_close_of_a_closed_mapping_does_nothing(make_file: Callable[[int], int]) -> None:
    mapping = SharedMapping(make_file(PAGE), PAGE)
    mapping.close()
    mapping.close()
    assert (mapping.byte_size, mapping.is_intact) == (PAGE, True)
    with pytest.raises(ValueError, match="the mapping is closed"):
        memoryview(mapping)


def test_close_while_there_are_buffers_is_refused(make_file: Callable[[int], int]) -> None:
    fd = make_file(PAGE)
    mapping = SharedMapping(fd, PAGE)
    view = memoryview(mapping)
    array = np.frombuffer(mapping, np.uint8)
    with pytest.raises(InvalidArgument, match=r"while Python has buffers of it \(2\): release its memoryviews first"):
        mapping.close()
    view.release()
    with pytest.raises(InvalidArgument, match=r"\(1\)"):
        mapping.close()
    os.pwrite(fd, b"\x05", 3)
    assert array[3] == 5, "it is mapped still"
    del array
    mapping.close()


def test_mapping_whose_buffer_is_the_last_that_refers_to_it_lives(make_file: Callable[[int], int]) -> None:
    fd = make_file(PAGE)
    view = memoryview(SharedMapping(fd, PAGE))
    gc.collect()
    os.pwrite(fd, b"\x05", 3)
    assert view[3] == 5


def test_mapping_that_nothing_refers_to_is_unmapped(make_file: Callable[[int], int]) -> None:
    fd = make_file(PAGE)
    inode = str(os.fstat(fd).st_ino)

    def mapped() -> bool:
        with open("/proc/self/maps") as maps:
            return any(inode in line.split() and "softmaxd-test" in line for line in maps)

    mapping = SharedMapping(fd, PAGE)
    assert mapped()
    del mapping
    gc.collect()
    assert not mapped()


def test_more_mappings_than_there_may_be_are_refused(make_file: Callable[[int], int]) -> None:
    fd = make_file(PAGE)
    mappings = [SharedMapping(fd, PAGE)]
    with pytest.raises(MemoryError, match=f"there are {MOST} shared mappings already; close one first"):
        mappings.extend(SharedMapping(fd, PAGE) for _ in range(MOST))
    mappings.pop().close()
    last = SharedMapping(fd, PAGE)
    os.pwrite(fd, b"\x05", 3)
    assert memoryview(last)[3] == 5


@pytest.mark.parametrize(
    ("byte_size", "message"),
    [
        (0, "byte_size is 0; a shared mapping has 1 byte or more"),
        (PAGE + 1, f"byte_size is {PAGE + 1}, but the file has {PAGE} bytes"),
        (1 << 60, f"byte_size is {1 << 60}, but the file has {PAGE} bytes"),
        (2**64 - 1, "but the file has"),
    ],
)
def test_size_that_the_file_has_not_is_refused(byte_size: int, message: str, make_file: Callable[[int], int]) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SharedMapping(make_file(PAGE), byte_size)


def test_file_that_cannot_be_mapped_is_refused(make_file: Callable[[int], int]) -> None:
    fd = make_file(PAGE)
    read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    with pytest.raises(InvalidArgument, match=rf"{PAGE} bytes of file descriptor \d+ cannot be mapped: Permission"):
        SharedMapping(read_only, PAGE)
    os.close(read_only)
    with pytest.raises(InvalidArgument, match=r"file descriptor \d+ cannot be mapped: Bad file descriptor"):
        SharedMapping(read_only, PAGE)
    with pytest.raises(InvalidArgument, match=r"file descriptor -1 cannot be mapped"):
        SharedMapping(-1, PAGE)
