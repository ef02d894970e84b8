"""The table of backends, and the choice of one.

To add a backend: implement `base.Backend` in a module and add a row to `BACKENDS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from softmaxd_server.backends.base import Backend
from softmaxd_server.backends.native import CpuBackend, open_gpu
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.errors import BackendUnavailableError

_log = logging.getLogger(__name__)

# Name -> how to open it with a number of threads; in the order in which `auto` tries them.
BACKENDS: dict[str, Callable[[int], Backend]] = {
    "hip": lambda threads: open_gpu("hip"),
    "cuda": lambda threads: open_gpu("cuda"),
    "cpu": CpuBackend,
    "numpy": lambda threads: NumpyBackend(),
}
AUTO = "auto"


def select(name: str = AUTO, threads: int = 0) -> Backend:
    """Open a backend.

    Args:
        name: A name out of `BACKENDS`, or "auto" for the first that can be had.
        threads: Threads of a CPU backend; 0 takes what CPU affinity and cgroup quota leave.

    Raises:
        BackendUnavailableError: It cannot be had; the message says why and what to do.
    """
    if name != AUTO:
        if name not in BACKENDS:
            raise BackendUnavailableError(f"got backend {name!r}, allowed are {AUTO}, {', '.join(BACKENDS)}")
        return BACKENDS[name](threads)
    opened = (_open_or_log(candidate, threads) for candidate in BACKENDS)
    backend = next((each for each in opened if each is not None), None)
    if backend is None:
        raise BackendUnavailableError(f"none of {', '.join(BACKENDS)} can be had; the log says why")
    _log.info("using backend %s", backend.name)
    return backend


def _open_or_log(name: str, threads: int) -> Backend | None:
    try:
        return BACKENDS[name](threads)
    except BackendUnavailableError as error:
        _log.info("not using backend %s: %s", name, error)
        return None
