"""The timeline that a worker writes when it ends."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from checkpoints import checkpoint_maker, prompt
from driver import Driver, greedy
from local import LocalWorker


def test_trace_shows_each_step_in_every_lane_in_order(tmp_path: Path) -> None:
    worker, begun = LocalWorker(), time.perf_counter()
    worker.shard.trace_file = tmp_path / "trace.json"
    loaded = worker.load(checkpoint_maker(tmp_path)("llama31"))
    driver = Driver([worker], loaded)  # type: ignore[list-item]
    sequence = greedy(prompt(9), 3)
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    worker.shard.close()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    assert list(lanes.values()) == ["inbox", "launch", "device", "reply"]
    assert [(e["name"], e["tid"]) for e in spans] == [
        (f"step {step}", lane) for step in range(3) for lane in lanes
    ]
    assert [e["args"]["tokens"] for e in spans if e["tid"] == 0] == [9, 1, 1]
    for before, after in itertools.pairwise(spans):
        assert after["name"] != before["name"] or after["ts"] >= before["ts"]
    # Microseconds of the host's clock; on a CPU the device is busy while the step is launched.
    assert begun * 1e6 <= spans[0]["ts"] <= spans[-1]["ts"] <= time.perf_counter() * 1e6
    for inbox, launch, device, reply in zip(*[iter(spans)] * 4, strict=True):
        assert (launch["ts"], launch["dur"]) == (device["ts"], device["dur"])
        for before, after in ((inbox, launch), (device, reply)):
            assert before["dur"] >= 0 and after["dur"] > 0
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"], rel=0, abs=0.01)
