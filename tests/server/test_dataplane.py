from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.dataplane import STREAM, UNARY, Dataplane
from softmaxd_server.errors import (
    DeadlineError,
    InvalidTensorError,
    MalformedRequestError,
    MessageTooLargeError,
    OutOfMemoryError,
)

LIMIT = 100_000


class NeverBackend(NumpyBackend):
    name = "never"

    def answer(self, prefix, source, work):
        raise AssertionError("the backend was called")


@pytest.fixture
def dataplane():
    return Dataplane(NumpyBackend(), LIMIT)


@pytest.fixture
def idle_dataplane():
    return Dataplane(NeverBackend(), LIMIT)


def test_bad_tensor_is_refused_with_what_was_got_and_what_is_allowed(idle_dataplane, bad_tensor, make_request):
    fields, said = bad_tensor
    outcome = idle_dataplane.serve(UNARY, make_request(id="a", **fields).SerializeToString(), perf_counter())
    assert isinstance(outcome.error, InvalidTensorError)
    assert outcome.id == "a"
    assert outcome.answer == b""
    for part in said:
        assert part in str(outcome.error)


@pytest.mark.parametrize("kind", [UNARY, STREAM], ids=["unary", "stream"])
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\xff", b"\x0a\x01\xff", b"\xff" * 40_000], ids=len)
def test_malformed_message_is_refused_with_its_kind(idle_dataplane, kind, message):
    outcome = idle_dataplane.serve(kind, message, perf_counter())
    assert isinstance(outcome.error, MalformedRequestError)
    assert outcome.id == ""
    assert kind.request.DESCRIPTOR.full_name in str(outcome.error)


def test_message_over_the_limit_is_refused_and_keeps_its_id(idle_dataplane, make_request):
    message = make_request(np.zeros((1, LIMIT)), id="big").SerializeToString()
    outcome = idle_dataplane.serve(UNARY, message, perf_counter())
    assert isinstance(outcome.error, MessageTooLargeError)
    assert outcome.id == "big"
    assert f"{len(message)} bytes" in str(outcome.error)
    assert f"--max-message-bytes={LIMIT}" in str(outcome.error)


def test_message_at_the_limit_is_answered(make_request):
    message = make_request(np.zeros((1, 1000))).SerializeToString()
    assert Dataplane(NumpyBackend(), len(message)).serve(UNARY, message, perf_counter()).error is None
    assert Dataplane(NumpyBackend(), len(message) - 1).serve(UNARY, message, perf_counter()).error is not None


def test_passed_deadline_skips_the_kernel(idle_dataplane, make_request):
    now = perf_counter()
    outcome = idle_dataplane.serve(UNARY, make_request().SerializeToString(), now, expires=now)
    assert isinstance(outcome.error, DeadlineError)


@pytest.mark.parametrize("shape", [[0], [0, 5], [5, 0], [2, 0, 3], [2**62, 2**62, 0]], ids=str)
def test_tensor_without_elements_gets_an_empty_answer_without_a_kernel(idle_dataplane, make_request, shape):
    message = make_request(id="e", shape=shape, payload=b"").SerializeToString()
    outcome = idle_dataplane.serve(UNARY, message, perf_counter())
    assert outcome.error is None
    answer = softmax_pb2.SoftmaxResponse.FromString(outcome.answer)
    assert (answer.id, list(answer.shape), answer.payload) == ("e", shape, b"")
    assert not answer.HasField("execution")
    assert outcome.phase_seconds == {}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3,), (4, 6), (2, 3, 4), (100, 200)], ids=str)
def test_answer_has_the_fields_of_its_request_and_the_values_of_the_backend(
    dataplane, make_request, read_answer, dtype, shape
):
    x = np.random.default_rng(1).standard_normal(shape)
    request = make_request(x, dtype, id="grüße", kind=softmax_pb2.SoftmaxStreamRequest)
    arrived = perf_counter()
    outcome = dataplane.serve(STREAM, request.SerializeToString(), arrived)
    passed_seconds = perf_counter() - arrived
    answer = softmax_pb2.SoftmaxStreamResponse.FromString(outcome.answer)
    assert (answer.id, answer.data_type, list(answer.shape)) == ("grüße", request.data_type, list(shape))
    assert not answer.HasField("status")
    expected = NumpyBackend().softmax(read_answer(request))
    assert read_answer(answer).tobytes() == expected.tobytes()
    assert answer.execution.variant == "row_block"
    assert answer.execution.tile_columns == shape[-1]
    assert answer.execution.tile_count == 1
    phases = (outcome.queue_seconds, outcome.phase_seconds["kernel"])
    assert min(phases) > 0
    assert sum(phases) <= passed_seconds


def test_masked_row_option_reaches_the_backend(dataplane, make_request, read_answer):
    request = make_request([[-np.inf] * 2], options=softmax_pb2.SoftmaxOptions(zero_masked_rows=True))
    outcome = dataplane.serve(UNARY, request.SerializeToString(), perf_counter())
    np.testing.assert_array_equal(read_answer(softmax_pb2.SoftmaxResponse.FromString(outcome.answer)), [[0, 0]])


def test_payload_that_is_not_last_on_the_wire_is_read(dataplane, make_request, read_answer):
    whole = make_request(np.zeros((100, 100)), id="x")
    payload = softmax_pb2.SoftmaxRequest(payload=whole.payload).SerializeToString()
    whole.ClearField("payload")
    outcome = dataplane.serve(UNARY, payload + whole.SerializeToString(), perf_counter())
    answer = softmax_pb2.SoftmaxResponse.FromString(outcome.answer)
    np.testing.assert_array_equal(read_answer(answer), np.full((100, 100), np.float32(0.01)))


@pytest.mark.parametrize(
    ("raised", "expected"), [(MemoryError(), OutOfMemoryError), (RuntimeError("odd"), RuntimeError)], ids=repr
)
def test_failing_backend_gives_an_outcome_with_the_error(faulty, make_request, raised, expected):
    faulty.error = raised
    outcome = Dataplane(faulty, LIMIT).serve(UNARY, make_request(id="f").SerializeToString(), perf_counter())
    assert type(outcome.error) is expected
    assert outcome.id == "f"


def test_description_has_backend_limit_and_types():
    info = Dataplane(NumpyBackend(), 4321).describe()
    assert info.backend == "numpy"
    assert info.limits.max_message_bytes == 4321
    assert len(info.data_types) == 3
    assert [variant.name for variant in info.variants] == ["row_block"]
    assert info.devices[0].parallelism == 1
    assert info.version
