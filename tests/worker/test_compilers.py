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
from penstock.worker import compilers as worker_compilers
from penstock.worker import waking
from penstock.worker.compilers import Compilers, job_of
from penstock.worker.rehearsal import Rehearsal
from penstock_kernels.building import Build, building
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


def compiled(size: int, elsewhere: Callable[[str, Build], object]) -> None:
    """Has a kernel of rms_norm's compiled, which is another one for each size."""
    with ThreadPoolExecutor(2) as pool, building(pool, elsewhere):
        OPS["rms_norm"].triton(torch.ones(3, size), torch.ones(size), 1e-5)


def compilation(size: int) -> tuple[str, Build]:
    """The key of such a kernel, and what builds it."""
    asked: list[tuple[str, Build]] = []
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


def test_what_another_process_compiles_is_only_read(compilers: Compilers, cache: Path) -> None:
    told: list[tuple[bool, int]] = []

    def elsewhere(key: str, build: Build) -> None:
        for _ in range(2):  # the second time it is there
            told.append((compilers.compile(key, build), assembled(cache)))

    compiled(1032, elsewhere)
    assert told == [(True, 1), (False, 1)]
    assert assembled(cache) == 1  # the same: what the kernel's thread built was there
    assert left_over(compilers.process.pid) == []


def test_a_worker_compiles_itself_when_its_compilers_have_ended(
    compilers: Compilers, cache: Path
) -> None:
    compilers.process.kill()
    compilers.process.wait()
    told: list[bool] = []
    compiled(2056, lambda *asked: told.append(compilers.compile(*asked)))
    assert told == [False]
    assert assembled(cache) == 1


def test_what_cannot_be_compiled_is_no_answer(compilers: Compilers) -> None:
    """And is nobody's end: another kernel is compiled."""
    _, build = compilation(4104)
    src = closed_over(build, "src")
    first, kind = next(iter(src.signature.items()))
    src.signature[first] = "no type"
    assert not compilers.compile("another", build)
    src.signature[first] = kind
    assert compilers.compile("another", build)


def closed_over(build: Build, name: str) -> Any:
    return inspect.getclosurevars(build).nonlocals[name]


def test_a_process_that_hangs_is_not_waited_for(
    compilers: Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(worker_compilers, "SECONDS", 0.1)
    told: list[bool] = []
    compiled(16_400, lambda *asked: told.append(compilers.compile(*asked)))
    assert told == [False]


@triton.jit
def misnamed(x) -> None:  # type: ignore[no-untyped-def]
    triton.language.store(x, 1)


@pytest.mark.usefixtures("cache")
def test_what_another_process_would_not_find_it_is_not_asked_for() -> None:
    key, build = compilation(8200)
    src = closed_over(build, "src")
    assert job_of("another", build) is not None
    assert job_of(key, build) is None  # it is compiled
    misnamed.__module__, misnamed.__name__ = src.fn.__module__, src.fn.__name__
    src.fn = misnamed
    assert job_of("another", build) is None
    assert job_of("another", lambda: None) is None


def test_the_process_ends_with_its_worker(compilers: Compilers) -> None:
    compilers.control.close()
    assert compilers.process.wait(60) == 0


@pytest.mark.parametrize("failure", [None, ValueError])
def test_a_load_ends_its_compilers(compilers: Compilers, failure: type[Exception] | None) -> None:
    with contextlib.suppress(ValueError), Rehearsal(1, compilers):
        if failure is not None:
            raise failure
    for thread in threading.enumerate():
        if thread.name == "rehearsed":
            thread.join(60)
    assert compilers.process.returncode is not None


def test_a_host_that_has_no_room_for_them_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Compilers:
        raise BlockingIOError

    monkeypatch.setattr(waking, "Compilers", none)
    assert waking.begin_compilers(1) is None
    monkeypatch.setattr(waking, "Compilers", lambda: "some")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: () if pid else range(7))
    assert waking.begin_compilers(1) is not None
    assert waking.begin_compilers(2) is None
