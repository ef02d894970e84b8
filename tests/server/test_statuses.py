from __future__ import annotations

import logging

import grpc
import pytest
from softmaxd_server import errors
from softmaxd_server.statuses import ALL_CODES, STATUS_CODES, status_of


def _leaves(kind):
    below = kind.__subclasses__()
    return [kind] if not below else [leaf for each in below for leaf in _leaves(each)]


@pytest.mark.parametrize("kind", _leaves(errors.RequestError) + _leaves(errors.ServingError))
def test_status_table_has_every_error_that_a_request_can_meet(kind):
    assert STATUS_CODES[kind] in ALL_CODES


def test_status_of_refusal_shows_its_message():
    error = errors.InvalidTensorError("got this, allowed is that")
    assert status_of(error) == (grpc.StatusCode.INVALID_ARGUMENT, "got this, allowed is that")


def test_status_of_fault_shows_only_an_id_that_the_log_has_too(caplog):
    with caplog.at_level(logging.ERROR):
        code, text = status_of(ValueError("secret detail"), "client\nid" + "x" * 1000)
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in text
    prefix, _, request_id = text.rpartition(" ")
    assert prefix == "internal error, request id"
    assert request_id in caplog.text
    assert "secret detail" in caplog.text
    assert "client\\nid" in caplog.text
    assert "x" * 200 not in caplog.text
