"""Processes that compile kernels for a worker: what they made is read, what they did not, made."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock.worker.startup import compilers as worker_compilers
from penstock.worker.startup.compilers import Compilers, job_of
from penstock.worker.startup.warmup import Warmup
from penstock_kernels.compile_ahead import CompileFn, compile_ahead
from penstock_kernels.op import OPS

triton = pytest.importorskip("triton")

from absent import Absent  # noqa: E402 (needs Triton)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of Triton's, which processes inherit, on a machine that passes for a GPU's."""
    driver = triton.runtime.driver
    before = driver._active
    driver.set_active(Absent())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    yield tmp_path
    driver.set_active(before)


@pytest.fixture
def compilers(cache: Path) -> Iterator[Compilers]:
    made = Compilers()
    yield made
    made.close()


def compiled(size: int, elsewhere: Callable[[str, CompileFn], object]) -> None:
    """Has a kernel of rms_norm's compiled, which is another one for each size."""
    with ThreadPoolExecutor(2) as pool, compile_ahead(pool, elsewhere):
        OPS["rms_norm"].triton(torch.ones(3, size), torch.ones(size), 1e-5)


def compilation(size: int) -> tuple[str, CompileFn]:
    """The key of such a kernel, and what builds it."""
    asked: list[tuple[str, CompileFn]] = []
    compiled(size, lambda *some: asked.append(some))
    (one,) = asked
    return one


def assembled(cache: Path) -> int:
    return len(list(cache.rglob("*.cubin")))


def left_over(process: int) -> list[str]:
    """Its children, as soon as there are none, or after a while."""
    until = time.monotonic() + 10
    while children := Path(f"/proc/{process}/task/{process}/children").read_text().split():
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    return children


def test_kernels_compiled_by_another_process_are_only_read(
    compilers: Compilers, cache: Path
) -> None:
    result: list[tuple[bool, int]] = []

    def elsewhere(key: str, build: CompileFn) -> None:
        for _ in range(2):  # the second time it is there
            result.append((compilers.compile(key, build), assembled(cache)))

    compiled(1032, elsewhere)
    assert result == [(True, 1), (False, 1)]
    assert assembled(cache) == 1  # the same: what the kernel's thread built was there
    assert left_over(compilers.process.pid) == []


def test_worker_compiles_after_its_compiler_processes_end(
    compilers: Compilers, cache: Path
) -> None:
    compilers.process.kill()
    compilers.process.wait()
    result: list[bool] = []
    compiled(2056, lambda *asked: result.append(compilers.compile(*asked)))
    assert result == [False]
    assert assembled(cache) == 1


def test_compile_error_returns_no_result(compilers: Compilers) -> None:
    """The processes survive it: another kernel is compiled."""
    _, build = compilation(4104)
    src = closed_over(build, "src")
    first, kind = next(iter(src.signature.items()))
    src.signature[first] = "no type"
    assert not compilers.compile("another", build)
    src.signature[first] = kind
    assert compilers.compile("another", build)


def closed_over(build: CompileFn, name: str) -> Any:
    return inspect.getclosurevars(build).nonlocals[name]


def test_hung_compiler_process_is_not_awaited(
    compilers: Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(worker_compilers, "SECONDS", 0.1)
    result: list[bool] = []
    compiled(16_400, lambda *asked: result.append(compilers.compile(*asked)))
    assert result == [False]


@triton.jit
def misnamed(x) -> None:  # type: ignore[no-untyped-def]
    triton.language.store(x, 1)


@pytest.mark.usefixtures("cache")
def test_compiled_and_unimportable_kernels_are_not_delegated() -> None:
    key, build = compilation(8200)
    src = closed_over(build, "src")
    assert job_of("another", build) is not None
    assert job_of(key, build) is None  # it is compiled
    misnamed.__module__, misnamed.__name__ = src.fn.__module__, src.fn.__name__
    src.fn = misnamed
    assert job_of("another", build) is None
    assert job_of("another", lambda: None) is None


def test_compiler_process_ends_with_its_worker(compilers: Compilers) -> None:
    compilers.control.close()
    assert compilers.process.wait(60) == 0


@pytest.mark.parametrize("failure", [None, ValueError])
def test_load_ends_its_compiler_processes(
    compilers: Compilers, failure: type[Exception] | None
) -> None:
    with contextlib.suppress(ValueError), Warmup(1, compilers):
        if failure is not None:
            raise failure
    for thread in threading.enumerate():
        if thread.name == "warmup":
            thread.join(60)
    assert compilers.process.returncode is not None


def test_host_without_room_starts_no_compiler_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Compilers:
        raise BlockingIOError

    monkeypatch.setattr(worker_compilers, "Compilers", none)
    assert worker_compilers.begin_compilers(1) is None
    monkeypatch.setattr(worker_compilers, "Compilers", lambda: "some")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: () if pid else range(7))
    assert worker_compilers.begin_compilers(1) is not None
    assert worker_compilers.begin_compilers(2) is None
