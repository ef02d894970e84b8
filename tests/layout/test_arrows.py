"""The arrows of the design, held by walking every import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "softmaxd_proto": ROOT / "proto" / "softmaxd_proto",
    "softmaxd_client": ROOT / "client" / "softmaxd_client",
    "softmaxd_server": ROOT / "server" / "softmaxd_server",
    "softmaxd_native": ROOT / "native" / "softmaxd_native",
}
ALLOWED = {
    "softmaxd_proto": set(),
    "softmaxd_client": {"softmaxd_proto"},
    "softmaxd_server": {"softmaxd_proto", "softmaxd_native"},
    "softmaxd_native": set(),
}
# Inside the server, from where the arrows start to where they end; a module may import only what stands later, and
# modules of one line may import each other.
SERVER_ORDER = (
    ("__main__", "tune"),
    ("app",),
    ("softmax_servicer", "softmax_stream", "memory_servicer", "health", "metrics_http"),
    ("statuses", "admission"),
    ("dataplane",),
    ("header_memo", "validation", "shared_memory", "device_memory"),
    ("regions",),
    ("backends",),
    ("measuring",),
    ("tuning",),
    ("metrics", "config", "errors", "cpus", "malloc", "transports"),
)


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of each module that a file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: a relative import"
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def modules(package: str) -> list[Path]:
    """Return the files of a package, the generated ones left out."""
    return [path for path in sorted(PACKAGES[package].rglob("*.py")) if "v1" not in path.parts]


def server_layer(module: str) -> int | None:
    """Return the line of SERVER_ORDER in which `softmaxd_server.<module>` stands."""
    parts = module.split(".")
    if len(parts) < 2 or parts[0] != "softmaxd_server":
        return None
    return next((i for i, names in enumerate(SERVER_ORDER) if parts[1] in names), None)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_along_the_arrows(package: str) -> None:
    assert modules(package), f"{package} has no modules"
    for path in modules(package):
        for name in imports(path):
            other = name.split(".")[0]
            if other in PACKAGES and other != package:
                assert other in ALLOWED[package], f"{path.relative_to(ROOT)} imports {name}"


def test_server_modules_import_only_later_layers() -> None:
    for path in modules("softmaxd_server"):
        relative = path.relative_to(PACKAGES["softmaxd_server"]).with_suffix("")
        if relative.parts == ("__init__",):
            continue
        layer = server_layer(f"softmaxd_server.{relative.parts[0]}")
        assert layer is not None, f"{path.relative_to(ROOT)} has no place in SERVER_ORDER: give it one"
        for name in imports(path):
            other = server_layer(name)
            assert other is None or other >= layer, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("inner", ["backends", "dataplane.py", "validation.py", "metrics.py", "errors.py", "config.py"])
def test_modules_without_a_transport_import_no_grpc(inner: str) -> None:
    place = PACKAGES["softmaxd_server"] / inner
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    assert paths
    for path in paths:
        assert not [name for name in imports(path) if name.split(".")[0] in ("grpc", "grpc_health")], path


def test_only_backends_know_the_native_module() -> None:
    for path in modules("softmaxd_server"):
        if "backends" not in path.parts:
            assert not [name for name in imports(path) if name.startswith("softmaxd_native")], path


def test_the_client_has_no_compiled_part() -> None:
    for package in ("softmaxd_proto", "softmaxd_client"):
        assert not list(PACKAGES[package].rglob("*.so"))
