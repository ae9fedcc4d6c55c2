"""Who may import whom (ARCHITECTURE.md); anything else fails here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import rules
import rust
import tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RULES = rules.rules()
# Folder of each crate that has a rule.
CRATES = {
    "scheduler": "router/scheduler",
    "request": "router/request",
    "text": "router/text",
    "engine": "router/engine",
    "http": "router/http",
    "launcher": "launcher",
    "python": "python",
    "mock_shard": "tests/mock_shard",
    "codegen": "proto/codegen",
}
ROUTER = [name for name, folder in CRATES.items() if folder.startswith("router/")]
PACKAGE = ("python", "penstock")
PYTHON_FILES = [path for path in tree.tracked(".py") if path.parts[:2] == PACKAGE]
ROOMS = [path for path in PYTHON_FILES if path.parts[2] == "worker" and path.name != "__init__.py"]


def own(path: Path, depth: int) -> str:
    """The module or package that a file belongs to, `depth` folders below the root."""
    return path.with_suffix("").parts[depth]


def targets(name: str) -> str:
    """The part of penstock that a Python name belongs to; empty outside and for the root."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "penstock" else ""


@pytest.mark.parametrize("path", PYTHON_FILES, ids=str)
def test_python_imports_are_layered(path: Path) -> None:
    may = RULES[rules.PYTHON]
    importer = own(path, 2)
    assert importer in may, f"penstock.{importer} has no rule in {rules.PAGE}"
    for name in tree.imports(path):
        target = targets(name)
        allowed = target in ("", importer, "__version__") or target in may[importer]
        assert allowed, f"{path} imports {name}: penstock.{importer} may not import it"


@pytest.mark.parametrize("path", tree.tracked(".py"), ids=str)
def test_kernels_know_nothing_of_penstock(path: Path) -> None:
    if path.parts[0] == "kernels" and "penstock_kernels" in path.parts:
        foreign = {n for n in tree.imports(path) if n.split(".")[0] == "penstock"}
        assert not foreign, f"{path} imports {foreign}"


@pytest.mark.parametrize("path", ROOMS, ids=str)
def test_rooms_of_the_worker_are_layered(path: Path) -> None:
    may = RULES[rules.WORKER]
    importer = own(path, 3)
    assert importer in may, f"worker.{importer} has no rule in {rules.PAGE}"
    for name in tree.imports(path):
        if not name.startswith("penstock.worker."):
            continue
        room = name.removeprefix("penstock.worker.").split(".")[0]
        allowed = room == importer or room in may[importer]
        assert allowed, f"{path} imports {name}: worker.{importer} may not import worker.{room}"


def test_only_the_service_and_its_messages_name_proto_types() -> None:
    users = {
        path.as_posix()
        for path in PYTHON_FILES
        if any(targets(name) == "rpc" for name in tree.imports(path))
    }
    worker = "python/penstock/worker"
    assert users <= {f"{worker}/service.py", f"{worker}/protocol/messages.py"}, users


def test_every_crate_of_the_workspace_has_a_rule_or_stands_outside() -> None:
    members = set(tomllib.loads(tree.read(Path("Cargo.toml")))["workspace"]["members"])
    assert members - {"bench/load"} == set(CRATES.values())
    assert set(RULES[rules.CRATES]) == set(CRATES)


@pytest.mark.parametrize("crate", CRATES)
def test_crate_dependencies_are_layered(crate: str) -> None:
    manifest = tomllib.loads(tree.read(Path(CRATES[crate]) / "Cargo.toml"))
    ours = {name for name in manifest.get("dependencies", {}) if name.startswith("penstock")}
    names = {
        "penstock" if name == "launcher" else f"penstock-{name}"
        for name in RULES[rules.CRATES][crate]
    }
    assert ours <= names, f"{crate} depends on {ours - names}"


def test_the_scheduler_depends_on_std_alone() -> None:
    manifest = tomllib.loads(tree.read(Path("router/scheduler/Cargo.toml")))
    assert not manifest.get("dependencies"), "penstock-scheduler is std only"


@pytest.mark.parametrize("crate", [name for name in ROUTER if name != "scheduler"])
def test_modules_of_a_crate_form_no_circle(crate: str) -> None:
    imports = rust.modules(Path(CRATES[crate]) / "src")
    assert sum(map(len, imports.values())) > 3, "no imports were found"
    assert not (found := rust.circle(imports)), " -> ".join([*found, found[0]])


def test_families_of_the_http_api_are_layered() -> None:
    may = RULES[rules.HTTP]
    imports = rust.modules(Path("router/http/src"))
    for name, allowed in may.items():
        found = imports[name] & set(may) - allowed
        assert not found, f"http::{name} may not import {found}"


def test_a_circle_is_found() -> None:
    assert rust.circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert rust.circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_only_the_shard_module_names_proto_types_in_rust() -> None:
    pattern = re.compile(r"\b(generated|proto)::")
    users = {
        path.as_posix()
        for path in tree.tracked(".rs")
        if re.match(r"router/\w+/src/", path.as_posix()) and pattern.search(tree.read(path))
    }
    may = ("router/engine/src/shard/", "router/http/src/kserve/grpc.rs")
    outside = {u for u in users if not u.startswith(may)}
    assert not outside, outside


@pytest.mark.parametrize("main", tree.tracked("/tests/all/main.rs"), ids=str)
def test_a_test_program_has_every_file_of_its_folder(main: Path) -> None:
    files = {
        own(path, len(main.parts) - 1)
        for path in tree.tracked(".rs")
        if path.is_relative_to(main.parent)
    }
    named = set(re.findall(r"^mod (\w+);", tree.read(main), re.M))
    assert not (lost := files - named - {"main"}), f"{main} lacks {lost}"
