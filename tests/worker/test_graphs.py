"""When steps become graphs. What a graph computes is compared on a GPU, in tests/parity."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Semaphore
from typing import Any, TypeVar

import pytest
import torch
from checkpoints import checkpoint_maker, prompt
from driver import Driver, greedy
from local import LocalWorker
from penstock.cache import KvGeometry, KvShape, kv_format
from penstock.layers.attention import StepContext
from penstock.parallel import Group
from penstock.worker.batch import TOKENS, Shape
from penstock.worker.protocol.sampling_params import SamplerVariant
from penstock.worker.run.graphs import Graphs, Stages, Tokens
from penstock.worker.run.runner import Pending
from penstock.worker.sampling import choose
from penstock.worker.startup.memory import Capacity
from penstock.worker.startup.warmup import Warmup, captured_shapes

T = TypeVar("T")
MOST = 512  # tokens of a step, by the driver


class Recorder:
    """Captures by keeping what was launched, and replays by launching it again."""

    all_samplers = True

    def __init__(self, failing_from: int = 1 << 30) -> None:
        self.failing_from = failing_from
        self.captures = 0
        self.replays = 0

    def takes(self, shape: Shape) -> bool:
        return shape.padded

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        result = launch()
        rows = len(result) if isinstance(result, torch.Tensor) else len(result[0])  # type: ignore
        if rows >= self.failing_from:
            raise torch.OutOfMemoryError("CUDA out of memory\nmore lines")
        self.captures += 1

        def replay() -> T:
            self.replays += 1
            return result

        return replay


def decode(rows: int) -> Shape:
    return Shape(tokens=rows, decodes=rows, chunks=0, samples=rows, padded=True)


def stages(rows: int) -> Stages:
    return Stages(
        lambda: torch.zeros(rows, 4),
        (
            lambda logits: (logits.argmax(-1), logits.amax(-1)),
            lambda logits: (logits.argmin(-1), logits.amin(-1)),
        ),
    )


def launched(graphs: Graphs, shape: Shape) -> Any:
    """One step through `graphs`."""
    found = graphs.lookup(shape, stages(shape.samples))
    return found.samplers[0](found.forward())


def test_the_second_step_of_a_shape_is_captured_and_later_ones_replay() -> None:
    recorder = Recorder()
    graphs = Graphs(recorder, torch.empty(64, 4))
    for _ in range(4):
        ids, _ = launched(graphs, decode(8))
        assert ids.tolist() == [0] * 8
    assert (recorder.captures, recorder.replays) == (2, 6)


@pytest.mark.parametrize(("fails", "captures", "launches"), [(False, 3, 3), (True, 2, 7)])
def test_sampler_variants_are_captured_on_second_use(
    fails: bool, captures: int, launches: int
) -> None:
    """The first time warms what a capture needs. One that cannot be captured is launched."""
    recorder, calls = Recorder(), list[int]()
    graphs = Graphs(recorder, torch.empty(64, 4))

    def least(logits: torch.Tensor) -> Tokens:
        calls.append(len(logits))
        return logits.argmin(-1), logits.amin(-1)

    for step in range(6):  # the second one captures the forward pass and the plain choice
        steps = replace(stages(8), samplers=(stages(8).samplers[0], least))
        found = graphs.lookup(decode(8), steps)
        logits = found.forward()
        if fails and step == 2:
            recorder.failing_from = 8
        assert found.samplers[1](logits)[0].tolist() == [0] * 8
    assert (recorder.captures, len(calls)) == (captures, launches)


def test_graphs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.run.graphs.MOST_GRAPHS", 2)
    graphs = Graphs(Recorder(), torch.empty(64, 4))
    for rows in (1, 2, 4, 8):
        for _ in range(3):
            assert len(launched(graphs, decode(rows))[0]) == rows
    assert list(graphs.captured) == [decode(1), decode(2)]
    assert decode(8) not in graphs.sightings


def test_unsupported_steps_are_never_captured() -> None:
    recorder = Recorder()
    graphs = Graphs(recorder, torch.empty(64, 4))
    for _ in range(3):
        launched(graphs, Shape(tokens=20, decodes=2, chunks=1, samples=3))
    assert recorder.captures == 0


@torch.inference_mode()
@pytest.mark.parametrize("case", ["llama31", "minimax_m3", "qwen2-mixed"])
def test_warmup_steps_touch_only_padding(tmp_path: Path, case: str) -> None:
    """What is rehearsed before the first request reads and writes padding alone."""
    worker = LocalWorker()
    loaded = worker.load(checkpoint_maker(tmp_path)(case), max_slots=20)
    runner = worker.runner
    shapes = captured_shapes(runner.state.limits)
    decodes = [shape.decodes for shape in shapes if not shape.chunks]
    assert decodes == [1, 2, 4, 8, 16, 24]
    mixed = {(shape.tokens, shape.decodes) for shape in shapes if shape.chunks}
    assert mixed == {(t, d) for t in TOKENS for d in (0, 32) if t <= MOST and (not d or t >= 64)}
    for cache in runner.rank_model.kv.caches:
        cache.data.fill_(3.0)
    for shape in shapes:
        stages = runner.warmup_stages(shape)
        ids, logprobs = stages.samplers[SamplerVariant.PLAIN](stages.forward())
        assert len(ids) == len(logprobs) == shape.samples
    runner.warmup_extras(shapes[0])
    assert all(bool((cache.data == 3.0).all()) for cache in runner.rank_model.kv.caches)
    assert runner.last_token[: loaded.max_slots].eq(0).all()


@torch.inference_mode()
def test_layers_run_before_kv_memory_exists(tmp_path: Path) -> None:
    """What begins to be compiled early would run, with finite results, if it were launched."""
    worker, seen = LocalWorker(), list[tuple[int, int]]()
    worker.load(checkpoint_maker(tmp_path)("llama31"), max_slots=20)
    shard = worker.runner.rank_model
    forward = shard.model.forward

    def watched(ids: torch.Tensor, context: StepContext) -> torch.Tensor:
        hidden = forward(ids, context)
        assert bool(hidden.isfinite().all())
        seen.append((len(ids), context.decodes.count if context.decodes else 0))
        return hidden

    shard.model.forward = watched  # type: ignore[method-assign]
    cache = shard.kv.caches[0].data
    _, _, kv_heads, block_tokens, head_dim = cache.shape
    layers = [KvShape(0, kv_heads, head_dim)] * len(shard.kv.caches)
    geometry = KvGeometry.of(layers, block_tokens, kv_format("auto", cache.dtype))
    capacity = Capacity(step_tokens=512, slots=20, sequence_tokens=256, vocab=501)
    Warmup().begin(shard.model, capacity, geometry, shard.device)
    assert seen == [(16, 0), (1, 1), (2, 2), (4, 4), (8, 8), (16, 16)]


@torch.inference_mode()
def test_unsampled_tokens_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While kernels are only compiled, their outputs hold anything, which is no token's id."""
    worker = LocalWorker()
    worker.load(checkpoint_maker(tmp_path)("llama31"), max_slots=20)
    runner, only_compiled = worker.runner, [False]
    runner.packer.pad = True
    runner.graphs = Graphs(Recorder(), torch.empty(128, 501))

    def garbage(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ids, logprobs = choose(*args, **options)
        plain = not args[-1]  # what else chooses uses the ids itself
        return (ids + (1 << 40) if only_compiled[0] and plain else ids), logprobs

    @contextmanager
    def compile_ahead(*_: object) -> Iterator[None]:
        only_compiled[0] = True
        yield
        only_compiled[0] = False

    monkeypatch.setattr("penstock.worker.sampling.choose", garbage)
    monkeypatch.setattr("penstock.worker.startup.warmup.compile_ahead", compile_ahead)
    Warmup().run(runner)
    assert runner.last_token.max() < 501
    for _ in runner.spare_work:
        pass
    assert len(runner.graphs.captured) == len(captured_shapes(runner.state.limits))


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 2])
def test_ranks_of_a_group_capture_before_the_first_step(size: int, tmp_path: Path) -> None:
    """One rank alone captures while it has nothing to do."""
    worker = LocalWorker()
    worker.load(checkpoint_maker(tmp_path)("llama31"), max_slots=2, max_step_tokens=16)
    runner = worker.runner
    runner.packer.pad, runner.graphs = True, Graphs(Recorder(), torch.empty(128, 501))
    runner.rank_model = replace(runner.rank_model, group=Group(0, size))
    Warmup().run(runner)
    wanted = captured_shapes(runner.state.limits)
    assert list(runner.graphs.captured) == (wanted if size > 1 else [])
    assert len(list(runner.spare_work)) == (0 if size > 1 else len(wanted))
    assert list(runner.graphs.captured) == wanted


class Relauncher(Recorder):
    """Captures what it has memory for, and replays by launching again."""

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        super().__call__(launch)
        return launch


@torch.inference_mode()
def test_worker_without_memory_for_large_graphs_keeps_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, answers = checkpoint_maker(tmp_path)("llama31"), []
    for relauncher in (None, Relauncher(failing_from=16)):
        worker = LocalWorker()
        loaded = worker.load(path, max_slots=32)
        runner = worker.runner
        runner.graphs = None
        if relauncher is not None:
            runner.packer.pad = True
            runner.graphs = Graphs(relauncher, torch.empty(128, 501))
            Warmup().run(runner)
            for _ in runner.spare_work:
                pass
            # Decodes of 1, 2, 4 and 8; steps with prompts have rows for all decodes beside them.
            assert [shape.tokens for shape in runner.graphs.captured] == [1, 2, 4, 8]
            failures = relauncher.captures
        driver = Driver([worker], loaded)
        sequences = [greedy(prompt(9 + i, seed=i), 6) for i in range(20)]
        for sequence in sequences:
            driver.enter(sequence)
        driver.finish(sequences)
        driver.stream.close()
        answers.append([sequence.tokens for sequence in sequences])
    assert answers[0] == answers[1]
    assert relauncher is not None and relauncher.captures == failures  # none is tried again
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@torch.inference_mode()
def test_graphs_are_captured_while_idle(tmp_path: Path) -> None:
    """Between a load and the first step, and between steps; streams run on as if nothing was."""
    path, answers = checkpoint_maker(tmp_path)("llama31"), []
    for pad in (False, True):
        worker = LocalWorker()
        loaded = worker.load(path, max_slots=20)
        runner = worker.runner
        runner.packer.pad, runner.graphs = pad, Graphs(Relauncher(), torch.empty(128, 501))
        Warmup().run(runner)
        assert not runner.graphs.captured
        driver, sequence = Driver([worker], loaded), greedy(prompt(9), 8)
        driver.enter(sequence)
        driver.step([sequence])
        wanted = captured_shapes(runner.state.limits) if pad else []
        end = time.monotonic() + 60
        while len(runner.graphs.captured) < len(wanted) and time.monotonic() < end:
            time.sleep(0.01)
        assert list(runner.graphs.captured) == wanted
        driver.finish([sequence])
        driver.stream.close()
        answers.append(sequence.tokens)
    assert answers[0] == answers[1]


@torch.inference_mode()
def test_no_capture_while_a_step_is_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture would wait for the step, and hold up the next one."""
    worker, looked, done = LocalWorker(), Semaphore(0), Event()
    loaded, captured = worker.load(checkpoint_maker(tmp_path)("llama31")), list[int]()

    def arrived(_: Pending) -> bool:
        looked.release()
        return done.is_set()

    def captures() -> Iterator[None]:
        for shape in range(4):
            captured.append(shape)
            yield

    monkeypatch.setattr(Pending, "arrived", arrived)
    worker.runner.spare_work = captures()
    driver, sequence = Driver([worker], loaded), greedy(prompt(9), 2)
    driver.enter(sequence)
    driver.step([sequence])
    for _ in range(3):
        assert looked.acquire(timeout=60)
    assert not captured
    done.set()
    end = time.monotonic() + 60
    while len(captured) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert captured == [0, 1, 2, 3]
    driver.finish([sequence])
    driver.stream.close()


def test_out_of_memory_leaves_smaller_graphs_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder(failing_from=32)
    graphs = Graphs(recorder, torch.empty(64, 4))
    for rows in (32, 64, 16):
        for _ in range(3):
            ids, _ = launched(graphs, decode(rows))
            assert len(ids) == rows
    assert list(graphs.captured) == [decode(16)]
    assert [r.message for r in caplog.records] == [
        "no CUDA graph for steps of 32 tokens, so steps of that many or more are launched "
        "kernel by kernel, which slows small models most: CUDA out of memory"
    ]
