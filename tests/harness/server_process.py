"""A real server in a process of its own, on free ports."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from types import TracebackType

_LISTENING = re.compile(r"listening on (?P<target>[^ ,]+)(?: and unix:[^,]+)?, metrics on (?P<metrics>http://[^/ ]+)/")
START_SECONDS = 60
STOP_SECONDS = 60


class ServerProcess:
    """`softmaxd` as a user starts it; ready when made, drained when left.

    Args:
        flags: Further flags; the ports are free ones.

    Attributes:
        target: HOST:PORT of gRPC.
        metrics_url: http://HOST:PORT of the metrics port.
    """

    def __init__(self, *flags: str) -> None:
        self._lines: list[str] = []
        self._listening = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "softmaxd_server", "--port", "0", "--metrics-port", "0", *flags],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(START_SECONDS) or not hasattr(self, "target"):
            self._process.kill()
            raise RuntimeError(f"the server did not start:\n{self.log}")

    @property
    def log(self) -> str:
        """What it wrote to standard error until now."""
        return "".join(self._lines)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def stop(self) -> int:
        """Send SIGTERM, wait for the drain, return the exit code."""
        self._process.terminate()
        code = self._process.wait(STOP_SECONDS)
        self._reader.join()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.stop()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            if match := _LISTENING.search(line):
                self.target = match["target"]
                self.metrics_url = match["metrics"]
                self._listening.set()
        self._listening.set()  # the end of the log: nothing more will come
