import dataclasses
import json

import pytest
from softmaxd_client import ClientConfig, Keepalive, RetryPolicy


def test_config_default_options_retry_the_service():
    options = dict(ClientConfig().grpc_options())
    assert options["grpc.max_receive_message_length"] == -1
    assert options["grpc.enable_retries"] == 1
    (method,) = json.loads(options["grpc.service_config"])["methodConfig"]
    assert method["name"] == [{"service": "softmaxd.v1.SoftmaxService"}]
    assert method["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    assert 2 <= method["retryPolicy"]["maxAttempts"] <= 5


def test_config_without_retry_has_no_policy():
    options = dict(ClientConfig(retry=None).grpc_options())
    assert options["grpc.enable_retries"] == 0
    assert "grpc.service_config" not in options


def test_config_streams_are_not_tried_again_and_all_else_is_the_same():
    config = ClientConfig(channel_options=(("grpc.primary_user_agent", "me"),))
    unary, stream = dict(config.grpc_options()), dict(config.stream_grpc_options())
    assert stream["grpc.enable_retries"] == 0
    for retrying in ("grpc.enable_retries", "grpc.service_config", "grpc.per_rpc_retry_buffer_size"):
        unary.pop(retrying)
        stream.pop(retrying, None)
    assert stream == unary


def test_config_channel_options_replace_the_clients_own():
    options = ClientConfig(
        channel_options=(("grpc.keepalive_time_ms", 5), ("grpc.primary_user_agent", "me"))
    ).grpc_options()
    assert dict(options)["grpc.keepalive_time_ms"] == 5
    assert dict(options)["grpc.primary_user_agent"] == "me"
    assert len(options) == len(dict(options))


@pytest.mark.parametrize("value", [ClientConfig(), RetryPolicy(), Keepalive()])
def test_config_value_changed_is_refused(value):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, 1)
    assert value == type(value)()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (RetryPolicy, {"max_attempts": 1}),
        (RetryPolicy, {"max_attempts": 6}),
        (RetryPolicy, {"initial_backoff_seconds": 0.001}),
        (RetryPolicy, {"initial_backoff_seconds": 3, "max_backoff_seconds": 2}),
        (RetryPolicy, {"backoff_multiplier": 0.5}),
        (Keepalive, {"interval_seconds": 0}),
        (Keepalive, {"timeout_seconds": -1}),
    ],
)
def test_config_value_out_of_range_is_refused(kind, values):
    with pytest.raises(ValueError, match=r"allowed|not above"):
        kind(**values)
