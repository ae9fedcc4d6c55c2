"""Tables of measured plans: which is found, which is ignored, and how one is written."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock_kernels.linear import table
from penstock_kernels.linear.plan import Gemv, Library, Plan, Problem, Skinny
from penstock_kernels.linear.table import Measured, merged, own_path, shipped_path, tuned, write

GPU = "Maker's GPU 9000"
ONE, TWO = Problem(4096, 4096, False), Problem(14336, 4096, True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache and a folder of shipped tables that are empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "SHIPPED", tmp_path / "shipped")
    tuned.cache_clear()
    yield
    tuned.cache_clear()


def measured(problem: Problem, plan: Plan, rows: int = 1) -> Measured:
    return Measured(problem, rows, plan, 1.234, 2.0)


def test_what_is_written_is_found_again() -> None:
    plans = [(ONE, 1, Gemv(2, 4, 4)), (ONE, 16, Skinny(64, 128, 2, 4, 5)), (TWO, 64, Library())]
    path = own_path(GPU)
    write(path, merged(path, GPU, [measured(p, plan, rows) for p, rows, plan in plans]))
    assert tuned(GPU) == {(p, rows): plan for p, rows, plan in plans}
    assert json.loads(path.read_text())["device"] == GPU
    assert [file.name for file in path.parent.iterdir()] == ["maker-s-gpu-9000.json"]


def test_the_users_own_plans_come_first_and_the_shipped_beside_them() -> None:
    shipped, own = shipped_path(GPU), own_path(GPU)
    old = [measured(ONE, Gemv(2, 4, 4)), measured(TWO, Gemv(1, 8, 0))]
    write(shipped, merged(shipped, GPU, old))
    write(own, merged(own, GPU, [measured(ONE, Gemv(8, 8, 2))]))
    assert tuned(GPU) == {(ONE, 1): Gemv(8, 8, 2), (TWO, 1): Gemv(1, 8, 0)}


def test_a_later_measurement_keeps_what_it_does_not_replace() -> None:
    path = own_path(GPU)
    write(path, merged(path, GPU, [measured(ONE, Gemv(2, 4, 4)), measured(TWO, Gemv(1, 8, 0))]))
    write(path, merged(path, GPU, [measured(ONE, Gemv(4, 4, 1))]))
    assert tuned(GPU) == {(ONE, 1): Gemv(4, 4, 1), (TWO, 1): Gemv(1, 8, 0)}


def test_without_tables_a_log_line_says_how_to_get_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.kernels"):
        assert tuned(GPU) == {}
        assert tuned(GPU) == {}
    (record,) = caplog.records
    assert GPU in record.message and "penstock tune" in record.message


def test_a_relative_cache_folder_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    monkeypatch.setenv("HOME", "/nowhere")
    assert own_path("A B") == Path("/nowhere/.cache/penstock/linear/a-b.json")


Change = Callable[[dict[str, Any]], Any]
BAD: dict[str, tuple[Change, str]] = {
    "other-gpu": (lambda t: t.update(device="NVIDIA H200"), "it is of 'NVIDIA H200'"),
    "no-device": (lambda t: t.pop("device"), "it lacks 'device'"),
    "no-entries": (lambda t: t.pop("entries"), "it lacks 'entries'"),
    "no-plan": (lambda t: t["entries"][0].pop("plan"), "it lacks 'plan'"),
    "kind": (lambda t: t["entries"][0].update(plan=["cutlass", 1]), "plan must be one of"),
    "numbers": (lambda t: t["entries"][0].update(plan=["gemv", 1]), "programs"),
    "no-number": (lambda t: t["entries"][0].update(plan=["gemv", 2, 4.0, 1]), "whole numbers"),
    "warps": (lambda t: t["entries"][0].update(plan=["gemv", 2, 3, 1]), "warps must be"),
    "tile": (lambda t: t["entries"][0].update(plan=["gemv", 3, 4, 1]), "gemv's tile"),
    "depth": (lambda t: t["entries"][0].update(plan=["skinny", 64, 8, 1, 4, 4]), "depth must"),
    "split": (lambda t: t["entries"][1].update(plan=["skinny", 64, 64, 2, 4, 4]), "not gated"),
    "gemv": (lambda t: t["entries"][1].update(plan=["gemv", 2, 4, 1]), "for one row"),
    "rows": (lambda t: t["entries"][0].update(rows=3), "rows one of"),
    "outputs": (lambda t: t["entries"][0].update(outputs=-5), "outputs and inputs must be"),
    "gated": (lambda t: t["entries"][0].update(gated="no"), "gated must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_ignored_with_one_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shipped, own = shipped_path(GPU), own_path(GPU)
    write(shipped, merged(shipped, GPU, [measured(ONE, Gemv(2, 4, 4))]))
    good = [measured(ONE, Gemv(8, 8, 2)), measured(TWO, Library(), 16)]
    content = json.loads(merged(own, GPU, good))
    change, reason = BAD[name]
    change(content)
    write(own, json.dumps(content))
    caplog.set_level(logging.WARNING, "penstock.kernels")
    for _ in range(2):
        assert tuned(GPU) == {(ONE, 1): Gemv(2, 4, 4)}
    (record,) = caplog.records
    assert str(own) in record.message and reason in record.message, record.message
    assert "penstock tune" in record.message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"device": "x"', "\xff\xfe"])
def test_what_is_no_table_is_ignored(text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = own_path(GPU)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    assert tuned(GPU) == {}
    assert str(path) in caplog.text
    # The next measurement replaces it.
    write(path, merged(path, GPU, [measured(ONE, Gemv(8, 8, 2))]))
    tuned.cache_clear()
    assert tuned(GPU) == {(ONE, 1): Gemv(8, 8, 2)}


def test_an_unreadable_table_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    own_path(GPU).mkdir(parents=True)
    assert tuned(GPU) == {}
    assert "directory" in caplog.text
