"""However a sequence is run, its tokens are the same: exactly, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker, generate, prompt, reference
from driver import Driver, Running, Worker, greedy, new_sequence, running
from local import LocalWorker
from penstock.rpc import shard_pb2 as pb

PROMPTS = [prompt(20 + 3 * i, seed=i) for i in range(32)]
WANTED = 24
Group = tuple[list[Worker], pb.Loaded]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama31")


@pytest.fixture(scope="module")
def expected(path: Path) -> list[list[int]]:
    """What transformers makes of each prompt, alone."""
    model = reference(path, torch.float64)
    return [generate(model, ids, WANTED) for ids in PROMPTS]


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def group(request: pytest.FixtureRequest, path: Path) -> Iterator[Group]:
    """Real worker processes; two of them talk by gloo."""
    yield from running(path, request.param, dtype="float64")


@pytest.fixture
def driver(group: Group) -> Iterator[Driver]:
    """A stream of its own for each test, in a new epoch."""
    workers, loaded = group
    epoch = workers[0].stub.Health(pb.HealthRequest()).epoch + 1
    driver = Driver(workers, loaded, epoch)
    yield driver
    driver.stream.close()


def batch() -> list[Running]:
    return [greedy(ids, WANTED) for ids in PROMPTS]


def test_alone(driver: Driver, expected: list[list[int]]) -> None:
    for index in (0, 7, 31):
        sequence = greedy(PROMPTS[index], WANTED)
        driver.enter(sequence)
        driver.finish([sequence])
        assert sequence.tokens == expected[index]


@pytest.mark.parametrize("chunk", [512, 16])
def test_in_a_batch_of_32(driver: Driver, expected: list[list[int]], chunk: int) -> None:
    """Prompts beyond the step's budget wait, so decodes and chunks share steps."""
    sequences = batch()
    for sequence in sequences:
        driver.enter(sequence)
    driver.finish(sequences, chunk)
    assert [s.tokens for s in sequences] == expected


def test_after_preemption(driver: Driver, expected: list[list[int]]) -> None:
    sequences = batch()[:4]
    for sequence in sequences:
        driver.enter(sequence)
    for _ in range(9):
        driver.step(sequences)
    assert 0 < len(sequences[1].tokens) < WANTED
    driver.leave(sequences[1])
    for _ in range(3):
        driver.step([sequences[0], sequences[2], sequences[3]])
    driver.enter(sequences[1])
    driver.finish(sequences)
    assert [s.tokens for s in sequences] == expected[:4]


def test_with_a_prefix_hit(driver: Driver, expected: list[list[int]]) -> None:
    """A second sequence begins with the blocks that the first has computed."""
    first, second = greedy(PROMPTS[20], WANTED), greedy(PROMPTS[20], WANTED)
    driver.enter(first)
    driver.step([first])
    shared = (len(first.prompt) - 1) // driver.block_tokens
    second.slot, second.computed = driver.slots.pop(), shared * driver.block_tokens
    second.blocks = first.blocks[:shared]
    entering = new_sequence(second, second.computed, second.blocks)
    driver.stream.send(new=[entering])
    driver.stream.receive()
    driver.finish([first, second])
    assert first.tokens == second.tokens == expected[20]


def test_fork_with_copy_on_write(driver: Driver, expected: list[list[int]]) -> None:
    source = greedy(PROMPTS[3], WANTED)
    driver.enter(source)
    for _ in range(5):
        driver.step([source])
    (fork,) = driver.fork(source)
    driver.finish([source, fork])
    assert source.tokens == fork.tokens == expected[3]


def test_steered_fork_continues_from_another_token(driver: Driver, path: Path) -> None:
    source = greedy(PROMPTS[3], WANTED)
    driver.enter(source)
    for _ in range(5):
        driver.step([source])
    (fork,) = driver.fork(source, steered=source.tokens[-1] ^ 1)
    known = fork.prompt + fork.tokens
    driver.finish([source, fork])
    model = reference(path, torch.float64)
    assert fork.tokens[5:] == generate(model, known, WANTED - 5)
    assert source.tokens == generate(model, PROMPTS[3], WANTED)


def test_after_reset(group: Group, expected: list[list[int]]) -> None:
    """Sequences left in their slots by an earlier epoch leave no trace."""
    workers, loaded = group
    epoch = workers[0].stub.Health(pb.HealthRequest()).epoch
    left = Driver(workers, loaded, epoch + 1)
    for sequence in (abandoned := batch()):
        left.enter(sequence)
    left.step(abandoned)
    left.stream.close()
    driver = Driver(workers, loaded, epoch + 2)
    sequence = greedy(PROMPTS[5], WANTED)
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    assert sequence.tokens == expected[5]
    assert workers[0].stub.Health(pb.HealthRequest()).epoch == epoch + 2


def test_two_steps_in_flight(driver: Driver, expected: list[list[int]]) -> None:
    """Step N + 1 is sent before the tokens of step N are known, as the router does."""
    sequence = greedy(PROMPTS[2], WANTED)
    sequence.slot = 4
    blocks = [driver.free.pop() for _ in range(8)]
    driver.stream.send(
        new=[new_sequence(sequence, 0, blocks)],
        run_slots=[4],
        run_tokens=[len(sequence.prompt)],
    )
    tokens: list[int] = []
    for _ in range(WANTED - 1):
        driver.stream.send(run_slots=[4], run_tokens=[1])
        tokens += driver.stream.receive().token_ids
    tokens += driver.stream.receive().token_ids
    assert tokens == expected[2]


def sampled(driver: Driver, sequences: list[Running]) -> list[list[int]]:
    for sequence in sequences:
        driver.enter(sequence)
    driver.finish(sequences, 16)
    return [s.tokens for s in sequences]


def test_random_tokens_depend_on_seed_and_position_alone(driver: Driver) -> None:
    def make(seed: int, **more: Any) -> Running:
        return greedy(PROMPTS[1], WANTED, temperature=1.5, top_k=40, top_p=0.95, seed=seed, **more)

    alone = sampled(driver, [make(2**64 - 3)])[0]
    others = batch()[:6]
    together = sampled(driver, [*others, make(2**64 - 3), make(5)])
    assert together[-2] == alone
    assert together[-1] != alone


def test_min_tokens_masks_stop_tokens(driver: Driver, expected: list[list[int]]) -> None:
    """The token that would come third is not possible before the fifth."""
    stop = expected[0][2]
    sequence = greedy(PROMPTS[0], WANTED, min_tokens=5, stop_token_ids=[stop])
    sampled(driver, [sequence])
    first = expected[0][:2]
    assert sequence.tokens[:2] == first
    assert stop not in sequence.tokens[:5]


def test_padded_steps_give_the_same_tokens(path: Path, expected: list[list[int]]) -> None:
    """Rows that belong to no sequence change nothing."""
    worker = LocalWorker()
    loaded = worker.load(path, dtype="float64")
    worker.runner.packer.pad = True
    driver = Driver([worker], loaded)  # type: ignore[list-item]
    sequences = batch()
    for sequence in sequences:
        driver.enter(sequence)
    driver.finish(sequences, chunk=20)
    driver.stream.close()
    assert [s.tokens for s in sequences] == expected
