"""What is compiled before steps need it."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest
from penstock.worker import batch
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.startup import warmup
from penstock.worker.startup.warmup import Warmup, captured_shapes
from penstock_kernels.linear.plan import Tiling, tiling


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(64, 2, 16), (32, 2, 16), (8, 4, 2), (1, 2, 1)]
)
def test_compile_threads_are_the_ranks_share_of_the_cores(
    cores: int, ranks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: () if pid else range(cores))
    assert Warmup(ranks).pool._max_workers == threads


@pytest.mark.parametrize("fails", [False, True])
def test_failure_stops_further_compilation(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1))
    gate, done = threading.Event(), list[int]()
    with contextlib.suppress(ValueError), Warmup() as warmed:
        pool = warmed.pool
        first = pool.submit(gate.wait, 60)
        later = [pool.submit(done.append, number) for number in range(3)]
        if fails:
            raise ValueError
    assert not first.done()  # nothing was waited for
    gate.set()
    pool.shutdown()
    assert done == ([] if fails else [0, 1, 2])
    assert all(each.cancelled() == fails for each in later)


def test_compiled_shapes_of_a_small_worker() -> None:
    """A short prompt, decodes of one, then what a few sequences can meet, each once."""
    limits = Limits(3, 64, 64, 16, (KvPool(12),), 100)
    found = [(s.tokens, s.decodes, s.chunks) for s in warmup._compiled(limits)]
    assert found == [(16, 0, 4), (1, 1, 0), (2, 2, 0), (64, 32, 4), (32, 0, 4), (64, 0, 4)]
    captured = [(s.tokens, s.decodes, s.chunks) for s in captured_shapes(limits)]
    assert sorted(captured) == sorted([*found, (4, 4, 0)])


def tilings(rows: set[int], outputs: int, programs: int) -> set[Tiling | None]:
    return {tiling(count, outputs, programs) for count in rows}


@pytest.mark.parametrize("programs", [132, 114, 78])  # of an H200, an H100 by PCIe, an H20
@pytest.mark.parametrize("outputs", [14336, 8960, 8192, 7168, 4480, 3584])
def test_warmup_covers_the_tiles_of_all_padded_steps(outputs: int, programs: int) -> None:
    decodes = {batch.padded_decodes(count) for count in range(1, 513)}
    met = tilings({*batch.TOKENS, *decodes}, outputs, programs)
    assert met <= tilings({*warmup.TOKENS, *warmup.DECODES}, outputs, programs) | {None}
