"""The names of the ways that a tensor may travel, as the contract, the metrics and the regions have them."""

from __future__ import annotations

INLINE = "inline"
SHARED_MEMORY = "shared_memory"
DEVICE_MEMORY = "device_memory"
TRANSPORTS = (INLINE, SHARED_MEMORY, DEVICE_MEMORY)
