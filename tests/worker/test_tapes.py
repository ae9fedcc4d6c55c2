"""Decode steps on a CPU from a tape: the same tokens and probabilities, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import checkpoint_maker, prompt
from driver import Driver, Running, greedy
from local import LocalWorker

ROWS = 18  # more than are taped


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(params=["llama31", "llama-biases", "mistral-window", "qwen2", "qwen2-mixed"])
def path(request: pytest.FixtureRequest, maker: Any) -> Path:
    return maker(request.param)


@pytest.fixture(params=["float32", "bfloat16"])
def worker(request: pytest.FixtureRequest, path: Path) -> Iterator[LocalWorker]:
    worker = LocalWorker()
    worker.loaded = worker.load(path, dtype=request.param)  # type: ignore[attr-defined]
    yield worker


def answers(worker: LocalWorker, play: Any, graphs: Any) -> list[tuple[list[int], list[float]]]:
    """What each sequence of `play` yields in a new epoch."""
    worker.runner.graphs = graphs
    driver = Driver([worker], worker.loaded, worker.shard.epoch + 1)  # type: ignore
    sequences: list[Running] = play(driver)
    driver.finish(sequences)
    driver.stream.close()
    return [(s.tokens, s.logprobs) for s in sequences]


def count_launches(worker: LocalWorker) -> list[None]:
    """Grows by one with each call of the model."""
    calls: list[None] = []
    model = worker.runner.rank_model.model
    forward = model.forward

    def counted(*arguments: Any) -> Any:
        calls.append(None)
        return forward(*arguments)

    model.forward = counted
    return calls


def coming_and_going(driver: Driver) -> list[Running]:
    """Every number of decodes up to 18, alone and beside prompts; slots that change hands; some
    sequences sampled, one with ids that it may not yield; one preempted."""
    sequences = [
        greedy(prompt(6 + i, seed=i), 40 + 3 * i, temperature=0.8 * (i % 7 == 5), seed=i)
        for i in range(ROWS)
    ]
    sequences[4].sampling.min_tokens = 9
    sequences[4].sampling.stop_token_ids[:] = range(200)
    for count, sequence in enumerate(sequences):
        driver.enter(sequence)
        driver.step(sequences[: count + 1])
        driver.step(sequences[: count + 1])
    driver.leave(sequences[2])
    for _ in range(3):
        driver.step([s for s in sequences if s is not sequences[2]])
    driver.enter(sequences[2])
    return sequences


def forked(driver: Driver) -> list[Running]:
    """One sequence that goes on as two, its last block copied."""
    source = greedy(prompt(21, seed=9), 30)
    driver.enter(source)
    for _ in range(5):
        driver.step([source])
    (fork,) = driver.fork(source)
    return [source, fork]


def left_behind(driver: Driver) -> list[Running]:
    """Sequences that nobody finishes: the next epoch finds their slots and tapes in use."""
    sequences = [greedy(prompt(9, seed=i), 40) for i in range(3)]
    for sequence in sequences:
        driver.enter(sequence)
    for _ in range(6):
        driver.step(sequences)
    driver.finished, driver.new = [], []
    rest = [greedy(prompt(12, seed=77), 25)]
    driver.enter(rest[0])
    return rest


@pytest.mark.parametrize("play", [coming_and_going, forked, left_behind])
def test_taped_step_equals_the_launched_step(worker: LocalWorker, play: Any) -> None:
    graphs, launches = worker.runner.graphs, count_launches(worker)
    expected = answers(worker, play, None)
    untaped = len(launches)
    assert answers(worker, play, graphs) == expected
    launches.clear()
    assert answers(worker, play, graphs) == expected
    assert len(launches) < untaped / 2, "steps that replay launch nothing by themselves"


def test_steps_of_weights_that_a_cpu_dequantizes_are_taped(maker: Any) -> None:
    worker = LocalWorker()
    worker.loaded = worker.load(maker("llama31"), quantize="eetq")  # type: ignore[attr-defined]
    graphs, launches = worker.runner.graphs, count_launches(worker)
    expected = answers(worker, forked, graphs)
    launches.clear()
    assert answers(worker, forked, graphs) == expected
    assert graphs.captured and len(launches) < len(expected[0][0])


def test_large_and_prefill_steps_are_not_taped(worker: LocalWorker) -> None:
    graphs = worker.runner.graphs
    answers(worker, coming_and_going, graphs)
    shapes = sorted(shape.decodes for shape in graphs.captured)
    assert shapes == list(range(1, 17))
    assert not any(shape.chunks for shape in graphs.captured)


def test_logits_processors_run_without_a_tape_warning(
    maker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = LocalWorker()
    worker.loaded = worker.load(maker("llama31"))  # type: ignore[attr-defined]

    def adjusted(driver: Driver) -> list[Running]:
        sequences = [greedy(prompt(9, seed=i), 9, min_p=0.1, temperature=0.9) for i in range(3)]
        for sequence in sequences:
            driver.enter(sequence)
        return sequences

    with caplog.at_level("INFO", "penstock.worker"):
        answers(worker, adjusted, worker.runner.graphs)
    assert worker.runner.graphs.captured
    assert not [record for record in caplog.records if "tape" in record.message]


@pytest.mark.parametrize("dtype", ["float64"])
def test_without_kernels_there_is_no_tape(maker: Any, dtype: str) -> None:
    worker = LocalWorker()
    worker.load(maker("llama31"), dtype=dtype)
    assert worker.runner.graphs is None
