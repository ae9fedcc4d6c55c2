"""What a worker begins early must neither fail nor hold up a load where it cannot be."""

from __future__ import annotations

import threading

import pytest
from penstock.worker.startup import compilers, cuda_context
from penstock_kernels.op import OPS


def joined(names: set[str]) -> None:
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join(60)


def test_missing_driver_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    monkeypatch.setattr(cuda_context, "DRIVER", "libnothing.so.1")
    cuda_context.begin_cuda_context(0)
    joined({"driver"})
    assert not failures


def test_driver_is_initialized_for_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[int] = []
    monkeypatch.setattr(cuda_context, "_retain_context", ranks.append)
    cuda_context.begin_cuda_context(3)
    joined({"driver"})
    assert ranks == [3]


def test_kernels_are_imported_during_the_load() -> None:
    compilers.import_kernels()
    joined({"kernels"})
    assert all(op._triton is not None for op in OPS.values())
