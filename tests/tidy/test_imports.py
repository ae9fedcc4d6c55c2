"""Who may import whom (ARCHITECTURE.md); anything else fails here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Package of penstock -> packages of penstock that it may import.
PYTHON_MAY = {
    "worker": {
        "models", "layers", "attention", "sampling", "grammar", "weights", "rpc", "parallel",
        "config", "cache", "quant", "cpu",
    },
    "models": {"layers", "attention", "parallel", "config", "weights", "cache"},
    "layers": {"quant", "attention", "parallel", "config", "cache", "weights"},
    "attention": {"parallel", "config", "cache"},
    "weights": {"parallel", "config"},
    "sampling": {"parallel"},
    "grammar": set(),
    "quant": {"parallel", "config", "cpu"},
    "cpu": set(),
    "parallel": set(),
    "config": set(),
    "cache": {"config"},
}  # fmt: skip
# Room of penstock.worker -> rooms that it may import, by its first name after `worker`.
WORKER_MAY = {
    "protocol": set(),
    "sampling": {"protocol"},
    "logprobs": {"protocol"},
    "tables": {"protocol"},
    "state": {"protocol", "sampling", "logprobs", "tables"},
    "batch": {"protocol", "sampling", "state"},
    "grammar_masks": {"protocol", "state"},
    "run": {"protocol", "sampling", "logprobs", "state", "batch", "grammar_masks"},
    "startup": {"protocol", "sampling", "logprobs", "state", "batch", "run"},
    "service": {"protocol", "sampling", "run", "startup"},
    "logs": set(),
    "__main__": {"service", "logs"},
}
RUST_MAY = {
    "router/scheduler": set(),
    "router": {"penstock-scheduler"},
    "launcher": {"penstock-router", "penstock-scheduler"},
    "python": {"penstock", "penstock-router"},
    "tests/mock_shard": {"penstock-router"},
    "proto/codegen": set(),
}


def package(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "penstock" else ""


@pytest.mark.parametrize("path", tree.tracked(".py"), ids=str)
def test_python_imports_are_layered(path: Path) -> None:
    if path.parts[0] == "kernels" and "penstock_kernels" in path.parts:
        foreign = {n for n in tree.imports(path) if n.split(".")[0] == "penstock"}
        assert not foreign, f"{path} imports {foreign}: kernels know nothing of penstock"
    if path.parts[:2] != ("python", "penstock") or len(path.parts) < 3:
        return
    own = path.with_suffix("").parts[2]
    if own not in PYTHON_MAY:
        return
    for name in tree.imports(path):
        target = package(name)
        allowed = target in ("", own) or target in PYTHON_MAY[own] or target not in PYTHON_MAY
        assert allowed, f"{path} imports {name}: penstock.{own} may not import penstock.{target}"


@pytest.mark.parametrize("path", tree.tracked(".py"), ids=str)
def test_rooms_of_the_worker_are_layered(path: Path) -> None:
    if path.parts[:3] != ("python", "penstock", "worker") or path.name == "__init__.py":
        return
    own = path.with_suffix("").parts[3]
    for name in tree.imports(path):
        room = name.removeprefix("penstock.worker.").split(".")[0]
        allowed = room == own or room not in WORKER_MAY or room in WORKER_MAY[own]
        assert allowed, f"{path} imports {name}: worker.{own} may not import worker.{room}"


def test_only_the_service_and_its_messages_name_proto_types() -> None:
    users = {
        path.as_posix()
        for path in tree.tracked(".py")
        if path.parts[:2] == ("python", "penstock") and path.parts[2] != "rpc"
        if any(package(name) == "rpc" for name in tree.imports(path))
    }
    worker = "python/penstock/worker"
    assert users <= {f"{worker}/service.py", f"{worker}/protocol/messages.py"}, users


@pytest.mark.parametrize("crate", RUST_MAY, ids=str)
def test_crate_dependencies_are_layered(crate: str) -> None:
    manifest = tomllib.loads(tree.read(Path(crate) / "Cargo.toml"))
    ours = {name for name in manifest.get("dependencies", {}) if name.startswith("penstock")}
    assert ours <= RUST_MAY[crate], f"{crate} depends on {ours - RUST_MAY[crate]}"


def test_the_scheduler_depends_on_std_alone() -> None:
    manifest = tomllib.loads(tree.read(Path("router/scheduler/Cargo.toml")))
    assert not manifest.get("dependencies"), "penstock-scheduler is std only"


def test_only_the_shard_module_names_proto_types_in_rust() -> None:
    pattern = re.compile(r"\b(generated|proto)::")
    users = {
        path.as_posix()
        for path in tree.tracked(".rs")
        if path.as_posix().startswith("router/src/") and pattern.search(tree.read(path))
    }
    may = ("router/src/shard/", "router/src/http/kserve/grpc.rs")
    outside = {u for u in users if not u.startswith(may)}
    assert not outside, outside
