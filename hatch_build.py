"""Generate the protobuf and gRPC stubs when the distribution is built."""

from __future__ import annotations

import importlib.resources
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SOURCE = ROOT / "proto" / "softmaxd" / "v1"
PACKAGE = ROOT / "proto" / "softmaxd_proto" / "v1"
IMPORT_PATH = "softmaxd_proto/v1"
PLUGIN = "protoc-gen-mypy_grpc"


def generate_stubs() -> None:
    """Write `softmaxd_proto.v1.softmax_pb2` and `softmax_pb2_grpc` with their types.

    protoc's `VIRTUAL=DISK` search path gives the file the name that its Python module has, so the stubs import each
    other by their real place and nothing is rewritten afterwards.

    Raises:
        RuntimeError: protoc refused the file; its reason is on standard error.
    """
    from grpc_tools import protoc

    PACKAGE.mkdir(exist_ok=True)
    (PACKAGE / "__init__.py").write_text('"""Generated from proto/softmaxd/v1 at build; not in git."""\n')
    out = ROOT / "proto"
    well_known_types = importlib.resources.files("grpc_tools") / "_proto"
    arguments = [
        f"--proto_path={IMPORT_PATH}={SOURCE}",
        f"--proto_path={well_known_types}",
        f"--plugin={PLUGIN}={_find_plugin()}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_grpc_out={out}",
        *(f"{IMPORT_PATH}/{path.name}" for path in sorted(SOURCE.glob("*.proto"))),
    ]
    if protoc.main(["protoc", *arguments]) != 0:
        raise RuntimeError(f"protoc could not compile {SOURCE}; see above")


def _find_plugin() -> str:
    """Return where the plugin is: on PATH in a build's own environment, else beside this interpreter."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(PLUGIN) or shutil.which(PLUGIN, path=beside)
    if found is None:
        raise RuntimeError(f"{PLUGIN} is neither on PATH nor in {beside}: pip install mypy-protobuf")
    return found


class StubsBuildHook(BuildHookInterface[Any]):
    """Run `generate_stubs` before the files of a wheel, an editable install or an sdist are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate_stubs()
