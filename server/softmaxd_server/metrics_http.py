"""HTTP for Prometheus and for probes: /metrics, /healthz, /readyz."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

_log = logging.getLogger(__name__)
_TEXT = "text/plain; charset=utf-8"
_POLL_SECONDS = 0.1


class MetricsServer:
    """Serves one registry from daemon threads, so that a busy event loop still answers probes.

    Args:
        host: The address to listen on.
        port: 0 takes a free one.
        registry: What /metrics shows.
        is_ready: Whether /readyz says 200; called from the threads.

    Raises:
        OSError: The address cannot be listened on.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry, is_ready: Callable[[], bool]) -> None:
        self._http = _HttpServer((host.strip("[]"), port), registry, is_ready)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL_SECONDS,), name="softmaxd-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._http.server_address[1])

    def close(self) -> None:
        """Stop listening; blocks for up to 0.1 s."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, is_ready: Callable[[], bool]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.registry = registry
        self.is_ready = is_ready
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request to the metrics port failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = 10  # a connection that says nothing gives its thread back
    server: _HttpServer

    def do_GET(self) -> None:  # the name is http.server's
        answer = _ROUTES.get(self.path.partition("?")[0], _not_found)
        status, content_type, body = answer(self)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "softmaxd"

    def log_message(self, format: str, *args: Any) -> None:
        pass  # a probe a second is no news


_Answer = tuple[int, str, bytes]


def _metrics(handler: _Handler) -> _Answer:
    encode, content_type = choose_encoder(handler.headers.get("Accept", ""))
    return 200, content_type, encode(handler.server.registry)


def _healthz(handler: _Handler) -> _Answer:
    return 200, _TEXT, b"alive\n"


def _readyz(handler: _Handler) -> _Answer:
    return (200, _TEXT, b"ready\n") if handler.server.is_ready() else (503, _TEXT, b"warming up or draining\n")


def _not_found(handler: _Handler) -> _Answer:
    return 404, _TEXT, b"not found: /metrics, /healthz and /readyz are here\n"


_ROUTES: dict[str, Callable[[_Handler], _Answer]] = {
    "/metrics": _metrics,
    "/healthz": _healthz,
    "/readyz": _readyz,
}
