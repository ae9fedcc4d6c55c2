"""Processes that compile kernels for a worker: what they made is read, what they did not, made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock.worker.compilers import Compilers, job_of
from penstock_kernels.building import building
from penstock_kernels.op import OPS

triton = pytest.importorskip("triton")

Build = Callable[[], Any]


class Driver:
    """As much of Triton's driver as a compilation asks for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of Triton's, which processes inherit, on a machine that passes for a GPU's."""
    driver = triton.runtime.driver
    before = driver._active
    driver.set_active(Driver())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    yield tmp_path
    driver.set_active(before)


@pytest.fixture
def compilers(cache: Path) -> Iterator[Compilers]:
    made = Compilers()
    yield made
    made.close()


def normalize(size: int) -> None:
    """Launches a kernel of rms_norm's, or has it compiled; it is another one for each size."""
    OPS["rms_norm"].triton(torch.ones(3, size), torch.ones(size), 1e-5)


def assembled(cache: Path) -> int:
    return len(list(cache.rglob("*.cubin")))


def test_what_another_process_compiles_is_only_read(compilers: Compilers, cache: Path) -> None:
    told: list[tuple[bool, int]] = []

    def elsewhere(key: str, build: Build) -> None:
        for _ in range(2):  # the second time it is there
            told.append((compilers.compile(key, build), assembled(cache)))

    with ThreadPoolExecutor(2) as pool, building(pool, elsewhere):
        normalize(1032)
    assert told == [(True, 1), (False, 1)]
    assert assembled(cache) == 1  # the same: what the kernel's thread built was there


def test_a_worker_compiles_itself_when_its_compilers_have_ended(
    compilers: Compilers, cache: Path
) -> None:
    compilers.process.kill()
    compilers.process.wait()
    told: list[bool] = []
    with (
        ThreadPoolExecutor(2) as pool,
        building(pool, lambda *asked: told.append(compilers.compile(*asked))),
    ):
        normalize(2056)
    assert told == [False]
    assert assembled(cache) == 1


def test_what_cannot_be_compiled_is_no_answer(compilers: Compilers, cache: Path) -> None:
    """Nor what no process could find: a kernel of a test, or a function of another kind."""

    builds: list[tuple[str, Build]] = []
    with ThreadPoolExecutor(1) as pool, building(pool, lambda *asked: builds.append(asked)):
        normalize(4104)
    ((_, build),) = builds
    src = build.__closure__[[*build.__code__.co_freevars].index("src")].cell_contents  # type: ignore[attr-defined,index]
    src.signature = {**src.signature, next(iter(src.signature)): "no type"}
    assert job_of("another", build) is not None
    assert not compilers.compile("another", build)
    assert job_of("another", lambda: None) is None


def test_closing_ends_the_process(compilers: Compilers) -> None:
    compilers.close()
    assert compilers.process.returncode is not None
