"""A model of two KV groups, full and sliding layers: blocks that a window passed are others'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from checkpoints import checkpoint_maker, generate, prompt, reference
from driver import Driver, Running, Worker, greedy, running
from local import LocalWorker
from penstock.rpc import shard_pb2 as pb

WINDOW, WANTED = 24, 30
PROMPTS = [prompt(18 + 7 * i, seed=i) for i in range(12)]  # around the window, and far beyond
LONG = prompt(96, seed=20)
Group = tuple[list[Worker], pb.Loaded]
Expected = Callable[[list[int]], list[int]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def path(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("qwen2-mixed")


@pytest.fixture(scope="module")
def expected(path: Path) -> Expected:
    return answers_of(path)


def answers_of(path: Path) -> Expected:
    """What transformers makes of a prompt, alone."""
    model, known = reference(path, torch.float64), dict[tuple[int, ...], list[int]]()

    def answer(ids: list[int]) -> list[int]:
        key = tuple(ids)
        if key not in known:
            known[key] = generate(model, ids, WANTED)
        return known[key]

    return answer


@pytest.fixture(scope="module", params=["tp1", "tp2", "local"])
def group(request: pytest.FixtureRequest, path: Path) -> Iterator[Group]:
    """Two worker processes that talk by gloo, or a worker here whose memory can be written."""
    if request.param == "local":
        worker = LocalWorker()
        yield [worker], worker.load(path, dtype="float64")  # type: ignore[list-item, misc]
    else:
        yield from running(path, int(request.param[-1]), dtype="float64")


def poisoned(worker: LocalWorker) -> Callable[[int, int], None]:
    """Makes a block's keys and values NaN once no sequence holds it."""

    @torch.inference_mode()
    def poison(group: int, block: int) -> None:
        for cache in worker.runner.rank_model.kv.tensors_of(group):
            cache[block] = torch.nan

    return poison


def driver_of(workers: list[Worker], loaded: pb.Loaded) -> Driver:
    """In an epoch of its own. Free blocks hold NaN where the test can write them."""
    driver = Driver(workers, loaded, workers[0].stub.Health(pb.HealthRequest()).epoch + 1)
    if isinstance(workers[0], LocalWorker):
        driver.when_free = poisoned(workers[0])
        for number, pool in enumerate(driver.pools):
            for block in pool:
                driver.when_free(number, block)
    return driver


@pytest.fixture
def driver(group: Group) -> Iterator[Driver]:
    driver = driver_of(*group)
    yield driver
    driver.stream.close()


def enter(driver: Driver, *prompts: list[int]) -> list[Running]:
    sequences = [greedy(ids, WANTED) for ids in prompts]
    for sequence in sequences:
        driver.enter(sequence)
    return sequences


def check(sequences: list[Running], expected: Expected) -> None:
    """The sliding group's blocks were freed on the way, the other's were not."""
    for sequence in sequences:
        assert sequence.error is None
        assert sequence.tokens == expected(sequence.prompt)
        assert sequence.released[0] == 0
        assert (sequence.released[1] > 0) == (sequence.computed >= WINDOW + 15)


def test_declared_groups(group: Group) -> None:
    """Memory is that of both; each holds a sequence of full length and more."""
    _, loaded = group
    full, sliding = loaded.kv_groups
    assert (full.window, sliding.window) == (0, WINDOW)
    assert full.block_tokens == sliding.block_tokens == 16
    assert sliding.block_bytes == 2 * full.block_bytes > 0
    sizes = [each.blocks * each.block_bytes for each in loaded.kv_groups]
    assert sum(sizes) == loaded.memory.kv
    assert full.blocks == sliding.blocks == 32 * 16  # what 32 slots of 256 tokens can use


@pytest.mark.parametrize("pad", [False, True])
def test_layers_write_the_blocks_of_their_group(path: Path, pad: bool) -> None:
    worker = LocalWorker()
    driver = driver_of([worker], worker.load(path))  # type: ignore[list-item]
    worker.runner.packer.pad = pad
    driver.pools[1].reverse()
    driver.when_free = lambda group, block: None
    with closing(driver.stream):
        (sequence,) = enter(driver, LONG)
        driver.step([sequence], chunk=80)
        driver.step([sequence])
        driver.step([sequence])
    assert not {*sequence.tables[0]} & {*sequence.tables[1]}
    for group, table in enumerate(sequence.tables):
        for cache in worker.runner.rank_model.kv.tensors_of(group):
            written = (~cache.isnan()).flatten(1).any(1).nonzero()[:, 0]
            assert written.tolist() == sorted({*table})  # freed ones come again


@pytest.mark.parametrize("chunk", [512, 16, 7])
def test_in_a_batch(driver: Driver, expected: Expected, chunk: int) -> None:
    sequences = enter(driver, *PROMPTS)
    driver.finish(sequences, chunk)
    check(sequences, expected)


def test_with_few_blocks(driver: Driver, expected: Expected) -> None:
    """Blocks that one window passed are soon written by another sequence, or the same."""
    driver.pools[1] = driver.pools[1][-9:]  # three sequences of 3 blocks at most
    sequences = enter(driver, LONG, PROMPTS[11], PROMPTS[10])
    driver.finish(sequences, chunk=16)
    check(sequences, expected)


def test_after_preemption(driver: Driver, expected: Expected) -> None:
    sequences = enter(driver, *PROMPTS[-4:])
    for _ in range(9):
        driver.step(sequences)
    assert 0 < len(sequences[1].tokens) < WANTED
    driver.leave(sequences[1])
    for _ in range(3):
        driver.step([sequences[0], sequences[2], sequences[3]])
    driver.enter(sequences[1])
    driver.finish(sequences)
    check(sequences, expected)


def test_with_a_prefix_hit(driver: Driver, expected: Expected) -> None:
    """Of the sliding group, the hit needs no block that the window has passed."""
    (first,) = enter(driver, LONG)
    driver.step([first], chunk=96)
    second = greedy(LONG + prompt(5, seed=3), WANTED)
    driver.enter_after(second, first)
    assert second.computed == 96 and second.released == [0, 4]
    driver.finish([first, second])
    check([first, second], expected)


def test_forks(driver: Driver, expected: Expected) -> None:
    (source,) = enter(driver, LONG)
    for _ in range(5):
        driver.step([source])
    (fork,) = driver.fork(source)
    (steered,) = driver.fork(source, steered=source.tokens[-1] ^ 1)
    assert source.released == fork.released == [0, 4]
    known = steered.prompt + steered.tokens
    driver.finish([source, fork, steered])
    check([source, fork], expected)
    assert steered.tokens[5:] == expected(known)[: WANTED - 5]


@pytest.mark.parametrize("case", ["qwen2-mixed", "gemma2", "gemma3", "gemma4-shared"])
def test_padded_steps(checkpoint: Callable[[str], Path], case: str) -> None:
    worker, path = LocalWorker(), checkpoint(case)
    loaded, expected = worker.load(path, dtype="float64"), answers_of(path)
    worker.runner.packer.pad = True
    driver = driver_of([worker], loaded)  # type: ignore[list-item]
    with closing(driver.stream):
        sequences = enter(driver, *PROMPTS)
        driver.finish(sequences, chunk=20)
    check(sequences, expected)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_layers_that_read_the_cache_of_another_one(
    checkpoint: Callable[[str], Path], device: str
) -> None:
    """In steps of decodes and chunks, by the device's kernels, tokens are those of each alone."""
    worker, answers = LocalWorker(), []
    path, memory = checkpoint("gemma4-shared"), 64 << 20
    loaded = worker.load(path, device=device, dtype="float32", kv_memory_bytes=memory)
    for batch in (PROMPTS, *([ids] for ids in PROMPTS)):
        driver = driver_of([worker], loaded)  # type: ignore[list-item]
        with closing(driver.stream):
            sequences = enter(driver, *batch)
            driver.finish(sequences, chunk=20)
        answers += [sequence.tokens for sequence in sequences]
    assert answers[: len(PROMPTS)] == answers[len(PROMPTS) :]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_kernels_read_no_freed_block(path: Path, device: str, dtype: str) -> None:
    """Launched one by one or from tapes and graphs: the same numbers whatever freed blocks hold."""
    worker = LocalWorker()
    loaded = worker.load(path, device=device, dtype=dtype, kv_memory_bytes=256 << 20)
    with torch.inference_mode():
        list(worker.runner.spare_work)  # captures
    graphs, answers = worker.runner.graphs, []
    assert graphs is not None
    for poison in (False, True):
        for worker.runner.graphs in (None, graphs):
            driver = driver_of([worker], loaded)  # type: ignore[list-item]
            if not poison:
                with torch.inference_mode():
                    for cache in worker.runner.rank_model.kv.caches:
                        cache.data.zero_()
                driver.when_free = lambda group, block: None
            with closing(driver.stream):
                sequences = enter(driver, *PROMPTS)
                driver.finish(sequences, chunk=20)
            answers.append([(s.tokens, s.logprobs) for s in sequences])
            assert all(s.released[1] for s in sequences)
    assert graphs.captured
    assert answers == [answers[0]] * 4
