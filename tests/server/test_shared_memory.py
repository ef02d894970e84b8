from __future__ import annotations

import os
import secrets
from types import SimpleNamespace

import numpy as np
import pytest
import softmaxd_native
from harness.segments import FOLDER, TENSORS_START, Segment
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.errors import InvalidRegionError
from softmaxd_server.shared_memory import SharedMemoryOpener

SIZE = 2 * TENSORS_START
ME = frozenset((os.geteuid(),))


@pytest.fixture
def segment():
    with Segment(SIZE) as made:
        yield made


@pytest.fixture
def opener():
    return SharedMemoryOpener(NumpyBackend(), softmaxd_native, ME)


def named(segment, **fields):
    return softmax_pb2.SharedMemory(**{"name": segment.name, "token": segment.token, **fields})


def maps_of(name):
    """Return the lines of this process's maps that are of a segment."""
    with open("/proc/self/maps") as maps:
        return [line for line in maps if name in line]


def refusal(opener, message, byte_size=SIZE):
    with pytest.raises(InvalidRegionError) as caught:
        opener.open(message, byte_size)
    return str(caught.value)


def test_segment_is_seen_from_both_sides_until_it_is_released(opener, segment):
    region = opener.open(named(segment), SIZE)
    segment.array((4,), np.dtype("f4"))[:] = [1, 2, 3, 4]
    view = region.memory[TENSORS_START : TENSORS_START + 16]
    assert np.frombuffer(view, "f4").tolist() == [1, 2, 3, 4]
    view[:4] = np.float32(9).tobytes()
    assert segment.array((1,), np.dtype("f4")).tolist() == [9]
    view.release()
    assert region.is_intact()
    assert len(maps_of(segment.name)) == 2  # ours, and the segment's own
    region.release()
    assert len(maps_of(segment.name)) == 1


def test_same_segment_has_the_same_identity_and_another_one_another(opener, segment):
    with Segment(SIZE) as other:
        opened = [opener.open(named(each), SIZE) for each in (segment, segment, other)]
        first, second, third = (region.identity for region in opened)
        assert first == second != third
        for region in opened:
            region.release()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "softmaxd-",
        "other-segment",
        "/softmaxd-a",
        "softmaxd-/../etc",
        "softmaxd-..",
        "softmaxd-a/b",
        "softmaxd-a\0b",
        "softmaxd-a\n",
        "softmaxd-é",
        "softmaxd-" + "a" * 65,
    ],
)
def test_name_beyond_the_prefix_is_refused_without_an_echo(opener, segment, name):
    said = refusal(opener, named(segment, name=name))
    assert "softmaxd- and 1 to 64" in said
    assert not name or name == "softmaxd-" or name not in said


def _absent(segment, opener):
    return named(segment, name=f"softmaxd-{secrets.token_hex(8)}"), opener


def _wrong_token(segment, opener):
    return named(segment, token=bytes(16)), opener


def _of_another_user(segment, opener):
    return named(segment), SharedMemoryOpener(NumpyBackend(), softmaxd_native, frozenset((os.geteuid() + 1,)))


def _too_small(segment, opener):
    os.ftruncate(segment.descriptor, SIZE - 1)
    return named(segment), opener


def _link(segment, opener):
    link = FOLDER / f"softmaxd-{secrets.token_hex(8)}"
    link.symlink_to(segment.path)
    return named(segment, name=link.name), opener


def _fifo(segment, opener):
    path = FOLDER / f"softmaxd-{secrets.token_hex(8)}"
    os.mkfifo(path)
    return named(segment, name=path.name), opener


def _folder(segment, opener):
    path = FOLDER / f"softmaxd-{secrets.token_hex(8)}"
    path.mkdir()
    return named(segment, name=path.name), opener


def test_whatever_does_not_fit_gets_one_and_the_same_refusal(opener):
    said = set()
    for spoil in (_absent, _wrong_token, _of_another_user, _too_small, _link, _fifo, _folder):
        with Segment(SIZE) as segment:
            message, its_opener = spoil(segment, opener)
            try:
                text = refusal(its_opener, message)
            finally:
                path = FOLDER / message.name
                if path != segment.path and (path.exists() or path.is_symlink()):
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            assert message.name not in text
            assert len(maps_of(segment.name)) == 1  # the segment's own
            said.add(text)
    [text] = said
    for part in ("--shared-memory-uids", "token", "--ipc=host"):
        assert part in text


def test_users_besides_the_server_s_own_are_taken_where_they_are_named(segment):
    opener = SharedMemoryOpener(NumpyBackend(), softmaxd_native, frozenset((12345, os.geteuid())))
    opener.open(named(segment), SIZE).release()


@pytest.mark.parametrize("size", [0, 15])
def test_segment_without_room_for_its_token_is_refused(opener, segment, size):
    assert f"byte_size of {size}" in refusal(opener, named(segment), size)


@pytest.mark.parametrize("token", [b"", b"a" * 15, b"a" * 17])
def test_token_of_another_length_is_refused(opener, segment, token):
    assert f"{len(token)} bytes, wanted are 16" in refusal(opener, named(segment, token=token))


def test_backend_registers_what_is_mapped_and_a_failure_leaves_nothing(segment):
    calls = []

    def register(memory):
        calls.append(memory.nbytes)
        raise MemoryError("no more pages")

    opener = SharedMemoryOpener(SimpleNamespace(register_memory=register), softmaxd_native, ME)
    with pytest.raises(MemoryError):
        opener.open(named(segment), SIZE)
    assert calls == [SIZE]
    assert len(maps_of(segment.name)) == 1


def test_release_unregisters_with_the_backend_before_it_unmaps(segment):
    seen = []
    backend = SimpleNamespace(
        register_memory=lambda memory: seen.append("register"),
        unregister_memory=lambda memory: seen.append(("unregister", memory.nbytes, len(maps_of(segment.name)))),
    )
    region = SharedMemoryOpener(backend, softmaxd_native, ME).open(named(segment), SIZE)
    region.release()
    assert seen == ["register", ("unregister", SIZE, 2)]
