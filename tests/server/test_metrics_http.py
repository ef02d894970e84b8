from __future__ import annotations

import http.client
import socket

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families
from softmaxd_server.metrics_http import MetricsServer


@pytest.fixture
def ready():
    return {"is_ready": True}


@pytest.fixture
def server(ready):
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    serving = MetricsServer("127.0.0.1", 0, registry, lambda: ready["is_ready"])
    yield serving
    serving.close()


def _get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/metrics", "/metrics?name=x"])
def test_metrics_are_what_prometheus_can_read(server, path):
    status, text = _get(server.port, path)
    assert status == 200
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert ("things_total", 3) in [(sample.name, sample.value) for sample in samples]


def test_healthz_of_living_process_is_200(server, ready):
    ready["is_ready"] = False
    assert _get(server.port, "/healthz")[0] == 200


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
def test_readyz_follows_readiness(server, ready, is_ready, status):
    ready["is_ready"] = is_ready
    assert _get(server.port, "/readyz")[0] == status


def test_unknown_path_is_404_and_is_not_echoed(server):
    status, text = _get(server.port, "/secret<script>")
    assert status == 404
    assert "secret" not in text


def test_silent_connection_does_not_hold_up_a_probe(server):
    with socket.create_connection(("127.0.0.1", server.port)):
        assert _get(server.port, "/healthz")[0] == 200
