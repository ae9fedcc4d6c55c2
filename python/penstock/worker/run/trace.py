"""A timeline of the last steps, as a file for chrome://tracing and Perfetto."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch

from penstock.worker.run.runner import Pending

MOST_STEPS = 100_000  # steps, the newest: some minutes
LANES = ("inbox", "launch", "device", "reply")
Span = tuple[float, float]  # seconds on the host's monotonic clock


@dataclass(frozen=True)
class StepTimes:
    """The times of one step in each thread of the worker and on the device."""

    number: int
    tokens: int  # that the step ran
    spans: tuple[Span, ...]  # in the order of LANES


class Trace:
    """The last steps. The launch thread creates it, the reply thread adds to it."""

    def __init__(self, device: torch.device) -> None:
        self._steps: deque[StepTimes] = deque(maxlen=MOST_STEPS)
        self._zero_event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._zero_event = torch.cuda.Event(enable_timing=True)
            self._zero_event.record()
            self._zero_event.synchronize()
        self._zero = time.perf_counter()

    def add(self, pending: Pending) -> None:
        """Adds a step whose outcome is complete; drops the oldest one if there are too many."""
        step, now = pending.step, time.perf_counter()
        device = self._device(pending)
        inbox = step.received, pending.launched[0]
        spans = (inbox, pending.launched, device, (device[1], now))
        self._steps.append(StepTimes(step.step, int(step.run_tokens.sum()), spans))

    def write(self, path: Path) -> None:
        """Writes the Trace Event Format of Chrome: complete events, times in microseconds."""
        events: list[dict[str, object]] = [
            {"ph": "M", "pid": 0, "tid": lane, "name": "thread_name", "args": {"name": name}}
            for lane, name in enumerate(LANES)
        ]
        for times in list(self._steps):
            for lane, (begin, end) in enumerate(times.spans):
                event = {
                    "ph": "X",
                    "pid": 0,
                    "tid": lane,
                    "name": f"step {times.number}",
                    "ts": begin * 1e6,
                    "dur": max(end - begin, 0.0) * 1e6,
                    "args": {"tokens": times.tokens},
                }
                events.append(event)
        path.write_text(json.dumps({"traceEvents": events}))

    def _device(self, pending: Pending) -> Span:
        """Returns start and end of the step's work on the device; on a CPU, of its launch."""
        begin, end = pending.host.begin, pending.host.end
        if self._zero_event is None or begin is None or end is None:
            return pending.launched
        zero = self._zero_event
        return (
            self._zero + zero.elapsed_time(begin) / 1e3,
            self._zero + zero.elapsed_time(end) / 1e3,
        )
