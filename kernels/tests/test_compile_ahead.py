"""Kernels that are compiled ahead, beside everything else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import penstock_kernels
import pytest
import torch
import triton
import triton.language as tl
from absent import NOWHERE, Absent
from penstock_kernels import rms_norm
from penstock_kernels.compile_ahead import compile_ahead
from penstock_kernels.op import OPS, Op
from penstock_kernels.rms_norm.triton import _normalise_row
from triton.runtime import driver


class OnDevice(torch.Tensor):
    """A CPU tensor that passes for one on a GPU."""

    is_cuda = True


# Arguments that are numbers of what a step holds.
HELD = {"count", "sequences", "splits"}


def launched() -> Iterator[triton.JITFunction]:
    """Every kernel that is launched, of every module."""
    for found in pkgutil.walk_packages(penstock_kernels.__path__, "penstock_kernels."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            ours = isinstance(value, triton.JITFunction) and value.__module__ == found.name
            if ours and f"{name}[(" in inspect.getsource(module):
                yield value


def test_no_kernel_is_compiled_anew_for_what_a_step_holds() -> None:
    """Triton makes variants for numbers that 16 divides, unless told not to: one that is met for
    the first time beside running streams holds them up for more than a second."""
    arguments = [(k, p) for k in launched() for p in k.params if p.name in HELD]
    assert {p.name for _, p in arguments} == HELD
    assert not [(k.__name__, p.name) for k, p in arguments if not p.do_not_specialize]


@pytest.mark.gpu
def test_kernels_are_compiled_not_launched_and_right_afterwards() -> None:
    x, weight = torch.randn(3, 1032, device="cuda"), torch.randn(1032, device="cuda")
    with ThreadPoolExecutor(2) as pool:
        with compile_ahead(pool):
            for _ in range(3):  # asks once
                rms_norm(x, weight, 1e-5)
        assert len(pool._threads) == 1
        found = rms_norm(x, weight, 1e-5)
    wanted = torch.nn.functional.rms_norm(x, (1032,), weight, 1e-5)
    torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, wanted)


@triton.jit
def impossible(x, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.static_assert(SIZE == 3, "no such instruction")


@pytest.fixture
def no_gpu() -> Iterator[None]:
    before = driver._active  # asking for it makes one, which needs a GPU
    driver.set_active(Absent())  # type: ignore[arg-type]
    yield
    driver.set_active(before)


class GivenUp(ThreadPoolExecutor):
    """An executor that begins nothing more."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.cancel()
        return future


@pytest.mark.usefixtures("no_gpu")
def test_a_kernel_whose_compilation_was_cancelled_is_compiled_on_launch() -> None:
    """By the load that comes after one that failed, say."""
    pytest.importorskip("triton.runtime._async_compile")
    kernels = _normalise_row.device_caches[NOWHERE][0]
    known = set(kernels)
    with GivenUp(1) as pool, compile_ahead(pool):
        OPS["rms_norm"].triton(torch.ones(3, 520), torch.ones(520), 1e-5)
    (promised,) = (kernel for key, kernel in kernels.items() if key not in known)
    assert promised.result().asm["cubin"]


@pytest.mark.usefixtures("no_gpu")
def test_a_kernel_that_does_not_compile_ahead_falls_back_to_torch_on_launch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    def kernel(x: torch.Tensor) -> torch.Tensor:
        impossible[(1,)](x, SIZE=4)
        return x

    op = Op("tripled", tripled, without="thrice as long")
    op._triton = kernel
    x = torch.ones(2).as_subclass(OnDevice)
    try:
        with ThreadPoolExecutor(1) as pool, compile_ahead(pool):
            op.on(x)(x)
        for _ in range(2):
            assert op.on(x)(x).tolist() == [3, 3]
    finally:
        del OPS["tripled"]
    (record,) = caplog.records
    assert "kernel of tripled" in record.message and "thrice as long" in record.message
    assert "no such instruction" in record.message
