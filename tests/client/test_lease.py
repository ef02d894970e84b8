from __future__ import annotations

import gc
import weakref

import grpc
import numpy as np
import pytest
from softmaxd_client.errors import UnavailableError
from softmaxd_client.lease import Lease
from softmaxd_proto.v1 import softmax_pb2


class BrokenCall:
    """A RegisterMemory call that ends as soon as it is asked something."""

    class Ended(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.UNAVAILABLE

        def details(self):
            return "gone"

    def __init__(self, sent):
        self._sent = sent

    def __iter__(self):
        return self

    def __next__(self):
        next(self._sent)
        raise self.Ended

    def cancel(self):
        pass


def _ask_with_an_array(lease):
    """Let a call fail whose frame has an array; return what tells whether the array lives on."""
    array = np.zeros(3)
    with pytest.raises(UnavailableError, match="gone"):
        lease.region("key", softmax_pb2.RegisterMemoryRequest, 20.0)
    return weakref.ref(array)


def test_lease_whose_call_ended_keeps_nothing_of_the_caller():
    lease = Lease(BrokenCall)
    gc.disable()
    try:
        array = _ask_with_an_array(lease)
        gc.collect()
        assert array() is None
    finally:
        gc.enable()
    assert lease._open.error.__traceback__ is None
    with pytest.raises(UnavailableError):  # a new call, which ends as well
        lease.region("key", softmax_pb2.RegisterMemoryRequest, 20.0)
