"""Kernels for one architecture, and what happens where they do not work."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from penstock_kernels.op import ArchKernel

CPU = torch.device("cpu")


def arch_kernel(monkeypatch: pytest.MonkeyPatch, launch: Any, applies: bool = True) -> ArchKernel:
    module: Any = SimpleNamespace(launch=launch)
    monkeypatch.setitem(sys.modules, "an_arch_kernel", module)
    return ArchKernel("an_arch_kernel", lambda device: applies)


def test_it_says_whether_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = arch_kernel(monkeypatch, lambda number: number > 3)
    assert kernel.launch(CPU, 5)
    assert not kernel.launch(CPU, 2)


def test_other_devices_do_not_import_it() -> None:
    assert not ArchKernel("no_such_module", lambda device: False).launch(CPU)


def test_one_that_cannot_be_built_is_given_up_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel = ArchKernel("no_such_module", lambda device: True)
    with caplog.at_level(logging.WARNING, "penstock.kernels"):
        assert not kernel.launch(CPU)
        assert not kernel.launch(CPU)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no_such_module cannot be built" in caplog.text


def test_errors_of_the_work_itself_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch() -> bool:
        raise ValueError("17 is too many")

    with pytest.raises(ValueError, match="17 is too many"):
        arch_kernel(monkeypatch, launch).launch(CPU)


def test_plans_learn_whether_it_is_available(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert arch_kernel(monkeypatch, bool).available(CPU)
    assert not arch_kernel(monkeypatch, bool, applies=False).available(CPU)
    kernel = ArchKernel("no_such_module", lambda device: True)
    with caplog.at_level(logging.WARNING, "penstock.kernels"):
        assert not kernel.available(CPU)
        assert not kernel.available(CPU)
    assert len(caplog.records) == 1

    def launch() -> bool:
        raise ImportError("a name of another version")

    failed = arch_kernel(monkeypatch, launch)
    assert failed.available(CPU)
    assert not failed.launch(CPU)
    assert not failed.available(CPU)
