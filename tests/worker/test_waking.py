"""What a worker begins early must neither fail nor hold up a load where it cannot be."""

from __future__ import annotations

import threading

import pytest
from penstock.worker import waking
from penstock_kernels.op import OPS


def joined(names: set[str]) -> None:
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join(60)


def test_a_host_without_a_driver_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    monkeypatch.setattr(waking, "DRIVER", "libnothing.so.1")
    waking.wake_driver(0)
    joined({"driver"})
    assert not failures


def test_the_driver_is_woken_for_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[int] = []
    monkeypatch.setattr(waking, "_retain_context", ranks.append)
    waking.wake_driver(3)
    joined({"driver"})
    assert ranks == [3]


def test_kernels_are_imported_beside_the_load() -> None:
    waking.import_kernels()
    joined({"kernels"})
    assert all(op._triton is not None for op in OPS.values())
