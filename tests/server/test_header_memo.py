"""A message whose header is known is answered as one that was never seen."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.dataplane import STREAM, UNARY, Dataplane

LIMIT = 10_000


@pytest.fixture
def dataplane():
    return Dataplane(NumpyBackend(), LIMIT)


@pytest.fixture
def parses(monkeypatch):
    """Count the messages that are parsed in full."""
    count = 0
    decode = Dataplane._decode

    def counted(self, exchange, message):
        nonlocal count
        count += 1
        return decode(self, exchange, message)

    monkeypatch.setattr(Dataplane, "_decode", counted)
    return lambda: count


def without_times(exchange, outcome):
    """Return all of an outcome that a clock does not change."""
    answer = exchange.response.FromString(outcome.answer)
    assert answer.SerializeToString() == outcome.answer  # what the generated class would write
    return outcome.id, type(outcome.error), str(outcome.error), answer


def serve_both(dataplane, exchange, message):
    """Answer with a dataplane that may know the header, and with a new one; return both outcomes."""
    outcomes = (each.serve(exchange, message, perf_counter()) for each in (dataplane, Dataplane(NumpyBackend(), LIMIT)))
    return [without_times(exchange, outcome) for outcome in outcomes]


@pytest.mark.parametrize("exchange", [UNARY, STREAM], ids=["unary", "stream"])
def test_known_header_is_not_parsed_again_whatever_id_and_values(dataplane, parses, make_request, exchange):
    first = make_request(np.zeros((2, 3)), id="first", kind=exchange.request).SerializeToString()
    dataplane.serve(exchange, first, perf_counter())
    assert parses() == 1
    for request_id in ("", "a", "grüße", "x" * 127):
        x = np.random.default_rng(len(request_id)).standard_normal((2, 3))
        request = make_request(x, id=request_id, kind=exchange.request)
        outcome = dataplane.serve(exchange, request.SerializeToString(), perf_counter())
        answer = exchange.response.FromString(outcome.answer)
        assert outcome.id == answer.id == request_id
        assert answer.SerializeToString() == outcome.answer
        expected = NumpyBackend().softmax(np.float32(x))
        assert answer.payload == expected.tobytes()
    assert parses() == 1


@pytest.mark.parametrize("times", [1, 2, 3])
def test_empty_id_that_is_written_out_is_not_in_the_answer(dataplane, make_request, times):
    message = b"\x0a\x00" * times + make_request().SerializeToString()
    for _ in range(2):
        known, fresh = serve_both(dataplane, UNARY, message)
        assert known == fresh


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [3, 2]},
        {"data_type": softmax_pb2.DATA_TYPE_FLOAT16, "shape": [4, 3]},
        {"options": softmax_pb2.SoftmaxOptions(zero_masked_rows=True)},
        {"shape": [3, 3]},
        {"id": "x" * 128},
    ],
    ids=str,
)
def test_another_header_is_parsed(dataplane, parses, make_request, fields):
    dataplane.serve(UNARY, make_request(np.zeros((2, 3))).SerializeToString(), perf_counter())
    message = make_request(np.zeros((2, 3)), **fields).SerializeToString()
    known, new = serve_both(dataplane, UNARY, message)
    assert known == new
    assert parses() == 3


def test_id_that_is_not_utf8_is_refused_though_the_rest_is_known(dataplane, make_request):
    rest = make_request().SerializeToString()
    dataplane.serve(UNARY, rest, perf_counter())
    known, new = serve_both(dataplane, UNARY, b"\x0a\x01\xff" + rest)
    assert known == new
    assert known[1].__name__ == "MalformedRequestError"


def test_message_over_the_limit_is_refused_though_its_header_is_known(make_request):
    message = make_request(np.zeros((1, 100))).SerializeToString()
    dataplane = Dataplane(NumpyBackend(), len(message))
    assert dataplane.serve(UNARY, message, perf_counter()).error is None
    longer = make_request(np.zeros((1, 100)), id="a").SerializeToString()
    assert type(dataplane.serve(UNARY, longer, perf_counter()).error).__name__ == "MessageTooLargeError"


def test_payload_tag_inside_another_field_is_not_taken_for_the_payload(dataplane, make_request):
    # At the end stands an unknown field whose value looks like a payload of the right size.
    genuine = make_request(np.float32([[1, 2]]), id="").SerializeToString()
    unknown = b"\x82\x01\x0a\x7a\x08" + np.float32([3, 4]).tobytes()
    dataplane.serve(UNARY, genuine + unknown, perf_counter())
    other = genuine + b"\x82\x01\x0a\x7a\x08" + np.float32([5, 9]).tobytes()
    known, new = serve_both(dataplane, UNARY, other)
    assert known == new
    np.testing.assert_allclose(np.frombuffer(known[3].payload, np.float32), [0.26894143, 0.73105857], rtol=1e-6)


@pytest.mark.parametrize("exchange", [UNARY, STREAM], ids=["unary", "stream"])
def test_id_behind_other_fields_is_answered_each_time(dataplane, make_request, exchange):
    request_id = exchange.request(id="a").SerializeToString()
    message = make_request(kind=exchange.request).SerializeToString()
    for order in (message + request_id, message[:2] + request_id + message[2:], request_id + message[:2] + request_id):
        for _ in range(2):
            known, new = serve_both(dataplane, exchange, order)
            assert known == new


def test_id_that_is_taken_back_by_an_empty_one_is_not_answered(dataplane, make_request):
    message = b"\x0a\x01a" + make_request().SerializeToString()
    taken_back = message[:5] + b"\x0a\x00" + message[5:]
    for _ in range(2):
        known, new = serve_both(dataplane, UNARY, taken_back)
        assert known == new
        assert known[0] == known[3].id == ""


_FIELDS = st.sampled_from(
    [
        b"\x0a\x00",  # id ""
        b"\x0a\x01a",
        b"\x0a\x02\xc3\xbc",
        b"\x0a\x01\xff",
        b"\x10\x01",  # float32
        b"\x10\x02",
        b"\x1a\x02\x01\x02",  # shape [1, 2], packed
        b"\x18\x01",
        b"\x18\x02",
        b"\x22\x02\x08\x01",  # zero_masked_rows
        b"\x7a\x08" + np.float32([1, 2]).tobytes(),
        b"\x7a\x08" + np.float32([-np.inf, -np.inf]).tobytes(),
        b"\x7a\x04" + np.float16([1, 2]).tobytes(),
        b"\x7a\x00",
        b"\x82\x01\x0a\x7a\x08" + np.float32([3, 4]).tobytes(),  # unknown
    ]
)
_MESSAGES = st.lists(_FIELDS, min_size=3, max_size=7).map(b"".join)


@given(st.lists(_MESSAGES, min_size=2, max_size=6))
def test_no_message_changes_the_answer_to_another(messages):
    dataplane = Dataplane(NumpyBackend(), LIMIT)
    for message in messages * 2:
        known, new = serve_both(dataplane, UNARY, message)
        assert known == new


def test_more_shapes_than_are_remembered_are_all_answered(dataplane, make_request):
    for cols in range(1, 600):
        answer = dataplane.serve(UNARY, make_request(np.zeros((1, cols))).SerializeToString(), perf_counter()).answer
        assert len(softmax_pb2.SoftmaxResponse.FromString(answer).payload) == 4 * cols
