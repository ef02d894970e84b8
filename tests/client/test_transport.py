import numpy as np
import pytest
from softmaxd_client import ServerError


def change(server, **fields):
    """Compute the right answer, and then spoil it."""

    def answer(request, context=None):
        response = server.compute(request) if context else server.compute_for_stream(request)
        for name, value in fields.items():
            if name == "shape":
                response.shape[:] = value
            else:
                setattr(response, name, value)
        return response

    return answer


LIES = {
    "shape": ({"shape": [4, 1]}, r"shape \(4, 1\)"),
    "rank": ({"shape": [4]}, r"shape \(4,\)"),
    "data_type": ({"data_type": 2}, "data type 2"),
    "short_payload": ({"payload": bytes(12)}, "in 12 bytes"),
    "no_payload": ({"payload": b""}, "in 0 bytes"),
    "id": ({"id": "other"}, "for request 'other'"),
}


@pytest.mark.parametrize(("fields", "words"), LIES.values(), ids=LIES)
def test_softmax_mismatching_answer_raises_server_error(reference_server, client, fields, words):
    reference_server.script = [change(reference_server, **fields)]
    with pytest.raises(ServerError, match=f"broke the contract: .*{words}") as caught:
        client.softmax(np.zeros((2, 2), np.float32))
    assert caught.value.request_id == reference_server.requests[0].id


@pytest.mark.parametrize(("fields", "words"), LIES.values(), ids=LIES)
def test_stream_mismatching_answer_ends_it_with_server_error(reference_server, client, fields, words):
    reference_server.stream_answer = change(reference_server, **fields)
    with pytest.raises(ServerError, match=f"broke the contract: .*{words}"):
        list(client.stream([np.zeros((2, 2), np.float32)] * 3, return_errors=True))


@pytest.mark.parametrize(
    "message", [b"\xff\xff\xff", b"\x0a\x7f", b"\x7a" + bytes(100_000)], ids=["tag", "length", "large"]
)
def test_softmax_malformed_answer_raises_server_error(reference_server, client, message):
    reference_server.script = [lambda request, context: message]
    with pytest.raises(ServerError, match="broke the contract"):
        client.softmax([1.0])


def test_softmax_empty_answer_raises_server_error(reference_server, client):
    reference_server.script = [lambda request, context: b""]
    with pytest.raises(ServerError, match="for request ''"):
        client.softmax([1.0])


def test_softmax_large_unaligned_payload_gives_its_values(client):
    array = np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)
    np.testing.assert_allclose(client.softmax(array).sum(-1), 1, rtol=1e-5)
