"""The table of backends, and the choice of one.

To add a backend: implement `base.Backend` in a module and add a row to `BACKENDS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from softmaxd_server.backends.base import Backend
from softmaxd_server.backends.native import CpuBackend, GpuBackend
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.config import Config
from softmaxd_server.errors import BackendUnavailableError

_log = logging.getLogger(__name__)


def _open_untuned(make: Callable[[Config], Backend], config: Config) -> Backend:
    if config.tuning is not None:
        raise BackendUnavailableError(
            f"got --tuning {config.tuning}, and tuning tables are for GPUs: leave it out, or use --backend hip or cuda"
        )
    return make(config)


# Name -> how to open it; in the order in which `auto` tries them.
BACKENDS: dict[str, Callable[[Config], Backend]] = {
    "hip": partial(GpuBackend, "hip"),
    "cuda": partial(GpuBackend, "cuda"),
    "cpu": partial(_open_untuned, CpuBackend),
    "numpy": partial(_open_untuned, lambda config: NumpyBackend()),
}
AUTO = "auto"


def select(name: str = AUTO, config: Config | None = None) -> Backend:
    """Open a backend.

    Args:
        name: A name out of `BACKENDS`, or "auto" for the first that can be had.
        config: What the backends are told; None takes the defaults, whatever the environment says.

    Raises:
        BackendUnavailableError: It cannot be had; the message says why and what to do.
    """
    config = Config.model_construct() if config is None else config
    if name != AUTO:
        if name not in BACKENDS:
            raise BackendUnavailableError(f"got backend {name!r}, allowed are {AUTO}, {', '.join(BACKENDS)}")
        return BACKENDS[name](config)
    opened = (_open_or_log(candidate, config) for candidate in BACKENDS)
    backend = next((each for each in opened if each is not None), None)
    if backend is None:
        raise BackendUnavailableError(f"none of {', '.join(BACKENDS)} can be had; the log says why")
    _log.info("using backend %s", backend.name)
    return backend


def _open_or_log(name: str, config: Config) -> Backend | None:
    try:
        return BACKENDS[name](config)
    except BackendUnavailableError as error:
        _log.info("not using backend %s: %s", name, error)
        return None
