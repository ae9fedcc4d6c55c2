"""When masks are late, and where they lie until the device has them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from penstock.grammar import masks
from penstock.worker import grammar_masks
from penstock.worker.grammar_masks import (
    ALONE,
    ROWS,
    ForwardPass,
    GrammarMasks,
    LaunchedTokens,
    _mask_timeout,
)

CPU = torch.device("cpu")


class Clock:
    """Says what time it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(grammar_masks, "LEAST", 0.001)


@pytest.mark.parametrize(("took", "grace"), [(0.002, 0.001), (0.5, 0.05)])
def test_masks_are_awaited_for_a_share_of_the_forward_pass(
    took: float, grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    forward = ForwardPass(CPU)
    clock.now += took
    forward.launched()
    assert forward.left() == pytest.approx(grace)
    clock.now += grace / 4
    assert forward.left() == pytest.approx(grace * 3 / 4)
    assert _mask_timeout(forward, alone=False)() == pytest.approx(grace * 3 / 4)
    clock.now += grace
    assert forward.left() == 0


def test_step_of_masked_runs_alone_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    forward = ForwardPass(CPU)
    clock.now += 0.01
    forward.launched()
    left = _mask_timeout(forward, alone=True)
    assert left() == pytest.approx(ALONE)
    clock.now += ALONE / 2
    assert left() == pytest.approx(ALONE / 2)
    clock.now += ALONE
    assert left() == 0
    # A pass that took long gives more.
    slow = ForwardPass(CPU)
    clock.now += 1
    slow.launched()
    assert _mask_timeout(slow, alone=True)() == pytest.approx(0.1)


def test_host_buffers_are_reused_after_five_others() -> None:
    """Four steps may be in flight: as many buffers may be read while one is written."""
    filler = GrammarMasks(100, CPU)
    buffers = [filler._buffer(rows) for rows in (1, ROWS, 3, 2, 1)]
    assert len({buffer.data_ptr() for buffer in buffers}) == 5
    assert {len(buffer) for buffer in buffers} == {ROWS * 5}  # a row's number, 4 words of bits
    assert [filler._buffer(ROWS) is buffer for buffer in buffers] == [True] * 5
    larger = [filler._buffer(ROWS + 1) for _ in range(5)]
    assert {len(buffer) for buffer in larger} == {2 * ROWS * 5}
    assert not any(new is old for new in larger for old in buffers)
    assert len(filler._masks) == 5
    assert filler._buffer(1) is larger[0]


class Host:
    """Where tokens arrive."""

    end: Any = None

    def __init__(self, *ids: int) -> None:
        self.ids = torch.tensor(ids)


def test_tokens_are_consumed_before_their_buffer_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    begun: list[Any] = []
    monkeypatch.setattr(masks, "advance", lambda matchers, ids: taken.append((matchers, ids)))
    monkeypatch.setattr(masks, "begin", lambda matchers, words: begun.append((matchers, words)))
    filler, first, second = GrammarMasks(100, CPU), Host(7, 8, 9), Host(4, 5, 6)
    filler._expected.append(LaunchedTokens(first, [2, 0], ["a", "b"]))  # type: ignore[list-item]
    filler._expected.append(LaunchedTokens(second, [1], ["c"]))  # type: ignore[list-item]
    filler.release(Host())
    assert not taken
    filler.release(second)
    assert taken == [(["a", "b"], [9, 7]), (["c"], [5])]
    assert begun == [(["a", "b"], 4), (["c"], 4)]
    filler.read()
    assert len(taken) == 2 and np.size(taken[0][1]) == 2


def test_a_new_epoch_does_not_wait_for_tokens_of_a_failed_step() -> None:
    class Host:
        ids = torch.zeros(1, dtype=torch.int64)

        @property
        def end(self) -> Any:
            raise AssertionError("its step has failed")

    grammars = GrammarMasks(64, CPU)
    grammars._expected.append(LaunchedTokens(Host(), [0], []))  # type: ignore[arg-type]
    grammars.clear()
    grammars.read()
