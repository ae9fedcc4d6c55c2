"""What the benchmarks say of timelines and of answers that differ."""

from __future__ import annotations

from typing import Any

import pytest
from invariance import compare
from timeline import DEVICE, LAUNCH, fullest_second, idle_share


def step(number: int, launch: tuple[float, float], device: tuple[float, float]) -> list[Any]:
    """The events of a step; times in seconds."""
    return [
        {
            "tid": lane,
            "name": f"step {number}",
            "ts": 1e6 * begin,
            "dur": 1e6 * (end - begin),
            "args": {"tokens": 4},
        }
        for lane, (begin, end) in ((LAUNCH, launch), (DEVICE, device))
    ]


def test_device_is_idle_while_it_waits_between_steps() -> None:
    events = step(0, (0.0, 0.1), (0.1, 1.0)) + step(1, (0.5, 0.6), (1.0, 1.5))
    assert idle_share(events, launching=False) == idle_share(events, launching=True) == 0
    events += step(2, (1.6, 1.7), (1.6, 2.1))  # launched late: work from 1.6 on, or from 1.7 on
    assert idle_share(events, launching=False) == pytest.approx(0.1 / 2)
    assert idle_share(events, launching=True) == pytest.approx(0.2 / 2)


def test_launch_time_counts_as_busy_on_a_cpu() -> None:
    events = step(0, (0.0, 1.0), (0.0, 1.0)) + step(1, (1.5, 2.0), (1.5, 2.0))
    assert idle_share(events, launching=True) == pytest.approx(0.25)


def test_the_fullest_second_has_the_most_steps() -> None:
    events = step(0, (0.1, 0.2), (0.2, 0.9))
    for number, end in enumerate((5.1, 5.5, 5.9, 6.1), 1):
        events += step(number, (end - 0.3, end - 0.2), (end - 0.2, end))
    begin, second = fullest_second(events)
    assert begin == 5e6
    assert {event["name"] for event in second} == {"step 1", "step 2", "step 3"}


def test_batched_answers_are_compared_with_answers_alone() -> None:
    alone = [[1, 2, 3, 4], [1, 2, 3, 4], [5, 6], [7, 8, 9]]
    found = compare(alone, [[1, 2, 3, 4], [1, 9, 3, 4], [5, 6, 7], [7, 8]])
    assert found.firsts == [1, 2, 2]
    assert (found.answers, found.tokens, found.agreed) == (4, 13, 4 + 1 + 2 + 2)
    figures = found.figures()
    assert figures["identical"] == 1
    assert figures["first_difference"]["p50"] == 2
    assert sum(figures["first_differences_by_eighth"]) == 3
    assert compare(alone, alone).figures()["first_difference"] is None
