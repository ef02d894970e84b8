"""NVIDIA Triton Inference Server with a numpy softmax in its python backend: triton_model/.

    python3 -m venv build/triton && build/triton/bin/pip install nvidia-pytriton==0.7.0 'tritonclient[grpc]'
    build/triton/bin/python bench/triton_peer.py

Runs in that virtual environment, whose packages it needs. The binary is the one inside nvidia-pytriton (glibc >= 2.35),
run as it is: pytriton's own `bind` would send each tensor on to another process. Prints the port of gRPC; ends with
SIGTERM.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
import pytriton

MODELS = Path(__file__).parent / "triton_model"
PACKAGE = Path(pytriton.__file__).parent
LIBRARIES = PACKAGE.parent / "nvidia_pytriton.libs"
START_SECONDS = 60
STOP_SECONDS = 10


def free_port() -> int:
    """Return a port that nobody listens on; Triton cannot choose one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def lay_out_backends(folder: Path) -> None:
    """Link the python backend and its stub for this version of Python, which the package keeps apart, into a folder."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    backend = folder / "python"
    backend.mkdir()
    parts = (PACKAGE / "tritonserver/backends/python", PACKAGE / "tritonserver/python_backend_stubs" / version)
    for part in parts:
        for file in part.iterdir():
            (backend / file.name).symlink_to(file)


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        lay_out_backends(Path(folder))
        flags = {
            "model-repository": MODELS,
            "backend-directory": folder,
            "grpc-address": "127.0.0.1",
            "grpc-port": port,
            "allow-http": "false",
            "allow-metrics": "false",
            "exit-timeout-secs": STOP_SECONDS,
            "log-info": "false",
        }
        server = subprocess.Popen(
            [PACKAGE / "tritonserver/bin/tritonserver", *(f"--{name}={value}" for name, value in flags.items())],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # The stub finds numpy by the first python on the path.
            env=os.environ
            | {"LD_LIBRARY_PATH": str(LIBRARIES), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(START_SECONDS)
            print(port, flush=True)
            server.wait()
        finally:
            server.terminate()
            try:
                server.wait(2 * STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


if __name__ == "__main__":
    main()
