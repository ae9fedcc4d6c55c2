"""Caches of fewer bits: the same tokens however a sequence was computed, and what is stored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from checkpoints import checkpoint_maker, prompt
from driver import Driver, Running, Worker, greedy, running
from local import LocalWorker, Refused
from penstock.cache import KV_FORMATS, KvGeometry, KvShape, kv_format
from penstock.faults import BadSetting
from penstock.rpc import shard_pb2 as pb
from safetensors.torch import load_file, save_file

WANTED = 24
PROMPTS = [prompt(18 + 9 * i, seed=i) for i in range(6)]
LONG = prompt(96, seed=20)
Group = tuple[list[Worker], pb.Loaded]
Expected = Callable[[list[int]], list[int]]
CASES = [("llama31", "int8"), ("llama31", "int4"), ("qwen2-mixed", "int4"), ("gemma2", "fp8_e5m2")]
CASES += [("gemma4-shared", "int4")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="module")
def expected(checkpoint: Callable[[str], Path], case: tuple[str, str]) -> Expected:
    """Tokens of a sequence that runs alone, undisturbed, its prompt in one step."""
    worker, known = LocalWorker(), dict[tuple[int, ...], list[int]]()
    loaded = worker.load(checkpoint(case[0]), dtype="float64", kv_dtype=case[1])

    def answer(ids: list[int]) -> list[int]:
        if tuple(ids) not in known:
            (sequence,) = run(worker, loaded, [ids])
            known[tuple(ids)] = sequence.tokens
        return known[tuple(ids)]

    return answer


@pytest.fixture(scope="module", params=["local", "tp2"])
def group(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], case: tuple[str, str]
) -> Iterator[Group]:
    """Two worker processes, or a worker here whose memory can be written."""
    path, settings = checkpoint(case[0]), {"dtype": "float64", "kv_dtype": case[1]}
    if request.param == "local":
        worker = LocalWorker()
        yield [worker], worker.load(path, **settings)  # type: ignore[list-item, misc]
    else:
        yield from running(path, 2, **settings)


@pytest.fixture
def driver(group: Group) -> Iterator[Driver]:
    """Blocks that no sequence holds contain NaN where the test can write them."""
    workers, loaded = group
    driver = Driver(workers, loaded, workers[0].stub.Health(pb.HealthRequest()).epoch + 1)
    if isinstance(workers[0], LocalWorker):
        driver.when_free = poison(workers[0])
        for number, pool in enumerate(driver.pools):
            for block in pool:
                driver.when_free(number, block)
    yield driver
    driver.stream.close()


def poison(worker: LocalWorker) -> Callable[[int, int], None]:
    @torch.inference_mode()
    def make_nan(group: int, block: int) -> None:
        for tensor in worker.runner.rank_model.kv.tensors_of(group):
            tensor[block] = 255 if tensor.dtype == torch.uint8 else torch.nan

    return make_nan


def enter(driver: Driver, prompts: list[list[int]]) -> list[Running]:
    sequences = [greedy(ids, WANTED) for ids in prompts]
    for sequence in sequences:
        driver.enter(sequence)
    return sequences


def run(worker: LocalWorker, loaded: pb.Loaded, prompts: list[list[int]]) -> list[Running]:
    epoch = worker.stub.Health(pb.HealthRequest()).epoch + 1
    driver = Driver([worker], loaded, epoch)  # type: ignore[list-item]
    with closing(driver.stream):
        sequences = enter(driver, prompts)
        driver.finish(sequences)
    return sequences


def check(sequences: list[Running], expected: Expected) -> None:
    for sequence in sequences:
        assert sequence.error is None
        assert sequence.tokens == expected(sequence.prompt)


@pytest.mark.parametrize("chunk", [512, 16, 7])
def test_in_a_batch(driver: Driver, expected: Expected, chunk: int) -> None:
    sequences = enter(driver, PROMPTS)
    driver.finish(sequences, chunk)
    check(sequences, expected)


def test_after_preemption(driver: Driver, expected: Expected) -> None:
    sequences = enter(driver, PROMPTS[-3:])
    for _ in range(9):
        driver.step(sequences)
    driver.leave(sequences[1])
    driver.step([sequences[0], sequences[2]])
    driver.enter(sequences[1])
    driver.finish(sequences, chunk=20)
    check(sequences, expected)


def test_with_a_prefix_hit_and_forks(driver: Driver, expected: Expected) -> None:
    """Shared blocks, and copies of the last one: scales and zeros are shared and copied too."""
    (first,) = enter(driver, [LONG])
    driver.step([first], chunk=96)
    second = greedy(LONG + prompt(5, seed=3), WANTED)
    driver.enter_after(second, first)
    assert second.computed == 96
    for _ in range(5):
        driver.step([first, second])
    (fork,) = driver.fork(first)
    (steered,) = driver.fork(first, steered=first.tokens[-1] ^ 1)
    given = len(steered.tokens)
    known = steered.prompt + steered.tokens
    driver.finish([first, second, fork, steered])
    check([first, second, fork], expected)
    assert steered.tokens[given:] == expected(known)[: WANTED - given]


@pytest.mark.parametrize("kv_dtype", KV_FORMATS)
def test_logprobs_are_near_those_of_the_models_dtype(
    checkpoint: Callable[[str], Path], kv_dtype: str
) -> None:
    """Near, and not the same: the cache does hold fewer bits. By the CPU's kernels otherwise."""
    found = []
    for wanted in ("auto", kv_dtype):
        worker = LocalWorker()
        loaded = worker.load(checkpoint("llama31"), kv_dtype=wanted)
        found.append([s.logprobs[0] for s in run(worker, loaded, [*PROMPTS, LONG])])
    exact, stored = torch.tensor(found)
    error = float((exact - stored).abs().max())
    least, most = {"int8": (1e-4, 0.05), "int4": (0.01, 1.0)}.get(kv_dtype, (1e-3, 0.6))
    assert least < error < most


@pytest.mark.parametrize(
    ("kv_dtype", "row"),
    [("auto", 64), ("fp8_e4m3", 32), ("fp8_e5m2", 32), ("int8", 36), ("int4", 20)],
)
def test_a_block_counts_all_of_its_bytes(kv_dtype: str, row: int) -> None:
    geometry = KvGeometry.of([KvShape(0, 3, 32)] * 2, 8, kv_format(kv_dtype, torch.bfloat16))
    (group,) = geometry.groups
    assert geometry.block_bytes(group) == 2 * 2 * 3 * 8 * row
    memory = geometry.allocate([5], torch.device("cpu"))
    assert sum(tensor.nbytes for tensor in memory.tensors_of(0)) == 5 * geometry.block_bytes(group)
    assert all(not tensor.any() for tensor in memory.tensors_of(0))


def test_declared_blocks_grow_as_bits_shrink(checkpoint: Callable[[str], Path]) -> None:
    """Heads of 16 elements in float32: 64 bytes each, or 8 and 4 of scale and zero."""
    blocks = {}
    for kv_dtype in ("auto", "int4"):
        loaded = LocalWorker().load(
            checkpoint("llama31"), kv_dtype=kv_dtype, kv_memory_bytes=1 << 20
        )
        (pool,) = loaded.kv_groups
        blocks[kv_dtype] = pool.blocks
        assert loaded.memory.kv == pool.blocks * pool.block_bytes
    assert blocks["int4"] == pytest.approx(blocks["auto"] * 64 / 12, rel=0.05)


def with_scales(path: Path, directory: Path, **scales: list[float]) -> Path:
    """Returns a copy of a checkpoint with these scales in its second layer."""
    shutil.copytree(path, directory)
    tensors = load_file(directory / "model.safetensors")
    for name, numbers in scales.items():
        tensors[f"model.layers.1.self_attn.{name}"] = torch.tensor(numbers)
    save_file(tensors, directory / "model.safetensors")
    return directory


def second_layer(path: Path, kv_dtype: str) -> tuple[torch.Tensor, list[int]]:
    """Returns a prompt's keys and values in the second layer, and the answer's tokens."""
    worker = LocalWorker()
    loaded = worker.load(path, kv_dtype=kv_dtype, dtype="float64")
    (sequence,) = run(worker, loaded, [LONG])
    data = worker.runner.rank_model.kv.caches[1].data
    return data[sequence.blocks[:6]].double(), sequence.tokens


@pytest.mark.parametrize("case", ["llama31", "gemma4-shared"])
@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
def test_fp8_uses_the_scales_of_a_checkpoint(
    checkpoint: Callable[[str], Path], tmp_path: Path, names: tuple[str, str], case: str
) -> None:
    """Stored divided, read multiplied: powers of two change no rounding, except of tiny numbers."""
    plain = checkpoint(case)
    scaled = with_scales(plain, tmp_path / "model", **{names[0]: [0.25], names[1]: [0.5]})
    expected, tokens = second_layer(plain, "fp8_e5m2")
    found, same = second_layer(scaled, "fp8_e5m2")
    assert same == tokens
    assert found.count_nonzero() > 1000
    torch.testing.assert_close(found[:, 0] * 0.25, expected[:, 0], rtol=0, atol=1e-4)
    torch.testing.assert_close(found[:, 1] * 0.5, expected[:, 1], rtol=0, atol=1e-4)
    for kv_dtype in ("auto", "int8"):
        stored, same = second_layer(scaled, kv_dtype)
        expected, tokens = second_layer(plain, kv_dtype)
        assert torch.equal(stored, expected) and same == tokens


@pytest.mark.parametrize("case", ["inkling", "inkling2", "lfm3", "qwen3_5", "zaya"])
def test_recurrent_layers_have_no_scales(checkpoint: Callable[[str], Path], case: str) -> None:
    worker = LocalWorker()
    loaded = worker.load(checkpoint(case), dtype="float64", kv_dtype="fp8_e4m3")
    (sequence,) = run(worker, loaded, [PROMPTS[0]])
    assert len(sequence.tokens) == WANTED


@pytest.mark.parametrize("numbers", [[0.5, 0.5], [0.0], [-1.0], [torch.inf], [torch.nan]])
def test_scales_that_are_no_positive_number_are_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path, numbers: list[float]
) -> None:
    path = with_scales(checkpoint("llama31"), tmp_path / "model", k_scale=numbers)
    with pytest.raises(Refused, match=r"self_attn\.k_scale must be one positive number"):
        LocalWorker().load(path, kv_dtype="fp8_e4m3")
    LocalWorker().load(path)


def test_an_unknown_kv_dtype_is_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(Refused, match="kv_dtype 'int3' is unknown; choose one of auto, fp8_e4m3"):
        LocalWorker().load(checkpoint("llama31"), kv_dtype="int3")
    with pytest.raises(BadSetting):
        kv_format("bfloat16", torch.float32)
