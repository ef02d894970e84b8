import copy
import pickle

import grpc
import pytest
from softmaxd_client import errors

EXPECTED = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgumentError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhaustedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.CANCELLED: errors.RequestCancelledError,
}
FAILURES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_error_table_every_code_gives_its_class(code):
    error = errors.from_status(code, "why", "id-1")
    assert type(error) is EXPECTED.get(code, errors.ServerError)
    assert (error.code, error.details, error.request_id) == (code, "why", "id-1")
    assert str(error) == f"{code.name}: why (request id-1)"
    assert type(errors.from_status(code.value[0], "why")) is type(error)


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_softmax_server_status_raises_its_class(reference_server, client, code):
    # Retried ones fail each time.
    reference_server.script = [reference_server.fail(code)] * 4
    with pytest.raises(errors.ServerError, match="as the test asked") as caught:
        client.softmax([1.0])
    assert type(caught.value) is EXPECTED.get(code, errors.ServerError)
    assert caught.value.code is code
    assert caught.value.request_id == reference_server.requests[0].id != ""


def test_error_number_beyond_the_known_is_unknown():
    assert errors.from_status(4711, None).code is grpc.StatusCode.UNKNOWN


def test_server_error_copied_is_equal():
    error = errors.from_status(grpc.StatusCode.UNAVAILABLE, "why", "id-1")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)


def test_invalid_tensor_error_is_a_value_error():
    assert issubclass(errors.InvalidTensorError, ValueError)
    assert not issubclass(errors.InvalidTensorError, errors.ServerError)
