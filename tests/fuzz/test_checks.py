"""The checks of the fuzzing, on its seeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from softmaxd_proto import codec

from fuzz import checks
from fuzz.seeds import seeds


def test_seeds_pass_and_reach_answers_refusals_and_limits() -> None:
    outcomes = set()
    for seed in seeds():
        checks.check(seed)
        kind, _, message = checks.input_of(seed)
        try:
            _, payload = codec.decode(kind, message)
            outcomes.add("a view" if payload.obj is message else "a copy")
        except codec.MalformedMessageError as error:
            outcomes.add(str(error).split(" bytes ")[-1].split(",")[0].split(" of ")[0])
    assert outcomes >= {"a view", "a copy", "with more than 256 fields", "besides its payload"}


@given(st.binary(max_size=300))
def test_any_bytes_pass(data: bytes) -> None:
    checks.check(data)


def test_codec_that_differs_from_the_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_PAYLOAD_TAG", codec.tag(1))
    message = checks.KINDS[0](id="a", payload=b"b").SerializeToString()
    with pytest.raises(AssertionError):
        checks.check(b"\x04" + message)
