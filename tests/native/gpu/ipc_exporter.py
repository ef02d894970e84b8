"""Memory on an NVIDIA device that this process exports to another one: run as a program of its own, by the tests.

python ipc_exporter.py SOURCE RESULT [DEVICE]

Allocates as many bytes as the file SOURCE has, copies them to the device, and prints one line of JSON: "ipc_handle" in
hexadecimal digits, and "pci_bus_id". For each line of its standard input it copies what the memory holds by then to
the file RESULT, and prints a line. It frees the memory at the end of its input.

It uses nothing but the driver's library, as any client could.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

HANDLE_BYTES = 64  # of a CUipcMemHandle
BUS_ID_BYTES = 32


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


def main(source: str, result: str, device_index: str = "0") -> None:
    """See above."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with error {status}")

    call("cuInit", 0)
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), int(device_index))
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    bus_id = ctypes.create_string_buffer(BUS_ID_BYTES)
    call("cuDeviceGetPCIBusId", bus_id, BUS_ID_BYTES, device)

    data = Path(source).read_bytes()
    size = ctypes.c_size_t(len(data))
    memory = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(memory), size)
    call("cuMemcpyHtoD_v2", memory, data, size)
    call("cuCtxSynchronize")  # small copies return before they are done
    handle = _IpcHandle()
    call("cuIpcGetMemHandle", ctypes.byref(handle), memory)
    print(json.dumps({"ipc_handle": bytes(handle).hex(), "pci_bus_id": bus_id.value.decode()}), flush=True)  # noqa: T201 - what it is for

    held = ctypes.create_string_buffer(len(data))
    for _ in sys.stdin:
        call("cuMemcpyDtoH_v2", held, memory, size)
        Path(result).write_bytes(held.raw)
        print("copied", flush=True)  # noqa: T201 - what it is for
    call("cuMemFree_v2", memory)
    call("cuDevicePrimaryCtxRelease", device)


if __name__ == "__main__":
    main(*sys.argv[1:])
