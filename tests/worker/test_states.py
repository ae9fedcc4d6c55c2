"""Recurrent layers: a sequence's state is one block, and a free block may hold anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import checkpoint_maker, prompt
from driver import Driver, greedy, running
from local import LocalWorker, Refused
from penstock.cache import KvGeometry, KvShape, StateShape, kv_format
from penstock.config import StateSizes
from penstock.faults import TooLittleMemory
from penstock.worker.startup.memory import LEAST_STATES, MOST_STATES, Budget, Capacity, gpu_slots
from test_kv_groups import LONG, PROMPTS, WANTED, Expected, Group, answers_of, driver_of, enter

STATEFUL = [
    "qwen3_5",
    "qwen3_next",
    "kimi_linear",
    "bailing_hybrid",
    "glm5_next",
    "jamba",
    "lfm2",
    "recurrent_gemma",
    "granitemoehybrid",
    "falcon_h1",
    "falcon_mamba",
    "mamba2",
    "minimax",
    "qwen4_exp",
    "inkling",
    "inkling2",
    "zamba",
    "zamba2",
    "zaya",
]
ALONE = {"falcon_mamba", "mamba2"}  # have no attention
WINDOWS = {"inkling", "inkling2", "zaya"}  # have a group of keys and values in them
# Of states: n-grams, and layers with other KV heads.
GROUPS = {"qwen4_exp": 2, "inkling": 2, "inkling2": 2}
TWO_RANKS = [
    "qwen3_next",
    "jamba",
    "kimi_linear",
    "glm5_next",
    "lfm2",
    "recurrent_gemma",
    "falcon_h1",
    "falcon_mamba",
    "minimax",
    "qwen4_exp",
    "inkling",
    "inkling2",
    "zamba",
    "zamba2",
    "zaya",
]  # one of each kind of layer


@pytest.fixture(scope="module", params=STATEFUL)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))(request.param)


@pytest.fixture(scope="module")
def expected(path: Path) -> Expected:
    return answers_of(path)


@pytest.fixture(scope="module", params=["tp2", "local"])
def group(request: pytest.FixtureRequest, path: Path) -> Iterator[Group]:
    """Two worker processes that talk by gloo, or a worker here whose memory can be written."""
    if request.param == "tp2" and path.name not in TWO_RANKS:
        pytest.skip("another model has two ranks with layers of this kind")
    if request.param == "local":
        worker = LocalWorker()
        yield [worker], worker.load(path, dtype="float64")  # type: ignore[list-item, misc]
    else:
        yield from running(path, int(request.param[-1]), dtype="float64")


@pytest.fixture
def driver(group: Group) -> Iterator[Driver]:
    driver = driver_of(*group)
    yield driver
    driver.stream.close()


def test_declared_groups(group: Group, path: Path) -> None:
    workers, loaded = group
    full, *others = loaded.kv_groups
    recurrent = [states for states in others if states.recurrent]
    assert len(recurrent) == GROUPS.get(path.name, 1)
    assert len(others) - len(recurrent) == (path.name in WINDOWS)
    assert (full.block_bytes == 0) == (path.name in ALONE)
    assert full.blocks == 32 * loaded.max_sequence_tokens // 16 and not full.recurrent
    for group_number, states in enumerate(recurrent, len(others) - len(recurrent) + 1):
        assert full.block_tokens == states.block_tokens and states.window == 0
        assert states.blocks == 32 * MOST_STATES
        if isinstance(workers[0], LocalWorker):
            tensors = workers[0].runner.rank_model.kv.tensors_of(group_number)
            assert states.block_bytes == sum(tensor[0].nbytes for tensor in tensors)


@pytest.mark.parametrize("chunk", [512, 7, 1])
def test_in_a_batch(driver: Driver, expected: Expected, chunk: int) -> None:
    """A prompt of single tokens is decoded from the empty state, whatever the block held."""
    sequences = enter(driver, *PROMPTS[:: 1 if chunk > 1 else 4])
    driver.finish(sequences, chunk)
    assert all(sequence.tokens == expected(sequence.prompt) for sequence in sequences)
    for group in driver.recurrent:
        assert all(len(sequence.tables[group]) == 1 for sequence in sequences)


def test_states_are_used_again(driver: Driver, expected: Expected) -> None:
    """As soon as their sequences have ended."""
    for group in driver.recurrent:
        driver.pools[group] = driver.pools[group][-6:]  # and checkpoints
    for ids in PROMPTS[:6]:
        sequences = enter(driver, ids)
        driver.finish(sequences, chunk=16)
        assert sequences[0].tokens == expected(ids)


def test_after_preemption(driver: Driver, expected: Expected) -> None:
    sequences = enter(driver, *PROMPTS[-4:])
    for _ in range(9):
        driver.step(sequences)
    assert 0 < len(sequences[1].tokens) < WANTED
    driver.leave(sequences[1])
    driver.step([sequences[0], sequences[2]])
    driver.enter(sequences[1])
    driver.finish(sequences)
    assert all(sequence.tokens == expected(sequence.prompt) for sequence in sequences)


def test_with_a_prefix_hit(driver: Driver, expected: Expected) -> None:
    """The state comes from the checkpoint, and the first sequence's own is further by then."""
    (first,) = enter(driver, LONG + prompt(5, seed=4))
    while not first.tokens:
        driver.step([first], chunk=48)
    second = greedy(LONG + prompt(5, seed=3), WANTED)
    driver.enter_after(second, first)
    assert second.computed == 96
    driver.finish([first, second])
    assert all(each.tokens == expected(each.prompt) for each in (first, second))


def test_forks(driver: Driver, expected: Expected) -> None:
    (source,) = enter(driver, LONG)
    for _ in range(5):
        driver.step([source])
    taken = len(source.tokens)
    (fork,) = driver.fork(source)
    (steered,) = driver.fork(source, steered=source.tokens[-1] ^ 1)
    known = steered.prompt + steered.tokens
    driver.finish([source, fork, steered])
    assert source.tokens == fork.tokens == expected(LONG)
    assert steered.tokens[taken:] == expected(known)[: WANTED - taken]


def test_padded_steps(path: Path, expected: Expected) -> None:
    worker = LocalWorker()
    loaded = worker.load(path, dtype="float64")
    worker.runner.packer.pad = True
    driver = driver_of([worker], loaded)  # type: ignore[list-item]
    with closing(driver.stream):
        sequences = enter(driver, *PROMPTS)
        driver.finish(sequences, chunk=20)
    assert all(sequence.tokens == expected(sequence.prompt) for sequence in sequences)


def test_no_token_runs_twice(path: Path) -> None:
    """A late mask would have the last token run again, which the state has seen."""
    worker = LocalWorker()
    worker.load(path)
    assert worker.runner.grammar_masks.waits
    assert worker.runner.graphs is None  # no tape has recurrent layers


STATE = StateShape(StateSizes(8192, 4, 32, 128, 128), torch.bfloat16)
HYBRID = KvGeometry.of(
    [STATE] * 36 + [KvShape(0, 2, 256)] * 12, 16, kv_format("auto", torch.bfloat16)
)
CAPACITY = Capacity(step_tokens=8192, slots=256, sequence_tokens=32_768, vocab=1000)


@pytest.mark.parametrize("gib", [2, 8, 60, 300])
def test_states_and_keys_share_memory(gib: int) -> None:
    """Of Qwen3-Next 80B-A3B: a state is as large as the keys and values of 3,200 tokens."""
    kv, states = HYBRID.groups
    sizes = HYBRID.block_bytes(kv), HYBRID.block_bytes(states)
    assert sizes == (16 * 24 << 10, 36 * ((2 << 20) + (48 << 10)))
    budget = Budget(total=0, activations=0, graphs=0, slots=0, kv=gib << 30)
    blocks, count = budget.blocks(CAPACITY, HYBRID)
    assert LEAST_STATES <= count <= 256 * MOST_STATES
    assert 2048 <= blocks <= 256 * 2048
    used = blocks * sizes[0] + count * sizes[1]
    assert used <= gib << 30
    if gib < 300:  # else slots could not use more
        assert used > (gib << 30) - sum(sizes)
    assert (count == 256 * MOST_STATES) == (gib == 300)


ALL_STATES = KvGeometry.of([STATE] * 64, 16, kv_format("auto", torch.bfloat16))


@pytest.mark.parametrize(
    ("slots", "longest", "blocks"),
    [(256, 8_192, 256 * 512), (256, 262_144, 1 << 20), (1, 32 << 20, 2 << 20)],
)
def test_all_memory_is_for_states_without_attention(slots: int, longest: int, blocks: int) -> None:
    """Blocks without memory are as many as slots can use, but their number has a bound."""
    empty, states = ALL_STATES.groups
    size = ALL_STATES.block_bytes(states)
    assert (ALL_STATES.block_bytes(empty), empty.layers, empty.recurrent) == (0, (), False)
    capacity = replace(CAPACITY, slots=slots, sequence_tokens=longest)
    budget = Budget(total=0, activations=0, graphs=0, slots=0, kv=3 * size)
    assert budget.blocks(capacity, ALL_STATES) == [blocks, LEAST_STATES]
    budget = replace(budget, kv=1000 * slots * size)
    assert budget.blocks(capacity, ALL_STATES) == [blocks, max(slots * MOST_STATES, LEAST_STATES)]
    with pytest.raises(TooLittleMemory, match="too small for one sequence"):
        replace(budget, kv=3 * size - 1).blocks(capacity, ALL_STATES)


def test_blocks_without_memory_have_no_tensors() -> None:
    memory = ALL_STATES.allocate([5, 2], torch.device("cpu"))
    assert (memory.groups, memory.tensors_of(0), len(memory.tensors_of(1))) == (2, [], 128)
    scratch = ALL_STATES.allocate_scratch(torch.device("cpu"))
    assert len({id(cache) for cache in scratch.caches}) == 1


def test_nothing_limits_a_sequence_without_attention(tmp_path: Path) -> None:
    """But a setting, and the size of block tables."""
    path = checkpoint_maker(tmp_path)("falcon_mamba")
    loaded = LocalWorker().load(path, max_sequence_tokens=40_000)
    assert loaded.max_sequence_tokens == 40_000
    with pytest.raises(Refused, match="more than 1048576; lower --max-len"):
        LocalWorker().load(path, max_sequence_tokens=(1 << 20) + 1)
    with pytest.raises(Refused, match="kv_dtype int8 is not supported"):
        LocalWorker().load(path, kv_dtype="int8")


def test_default_slots_have_room_for_states() -> None:
    """Twice 74 MiB each, of Qwen3-Next 80B-A3B."""
    room = 60 << 30
    assert (gpu_slots(room), gpu_slots(room, HYBRID.state_bytes)) == (1024, 256)
