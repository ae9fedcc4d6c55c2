"""A device with too little memory: what is said, and that the worker lives on."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import checkpoint_maker
from driver import Driver, greedy
from local import LocalWorker, Refused
from penstock.cache import KvGeometry, KvShape, kv_format
from penstock.config import read_config
from penstock.faults import TooLittleMemory
from penstock.layers import Build
from penstock.layers.attention import StepContext
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from penstock.rpc import shard_pb2 as pb
from penstock.worker.batch import step_sizes
from penstock.worker.logprobs import PIECE
from penstock.worker.protocol.messages import to_settings
from penstock.worker.protocol.settings import KvPool, MemoryReport
from penstock.worker.run.graphs import DeviceCapture
from penstock.worker.sampling import SamplerColumns
from penstock.worker.startup import loader, memory
from penstock.worker.startup.memory import (
    GRAPHS_SHARE,
    MIB,
    Budget,
    Capacity,
    cpu_budget,
    cuda_budget,
    decoding_context,
    gpu_slots,
    gpu_step,
    prompts_context,
    room_left,
    slot_bytes,
)

GEOMETRY = KvGeometry.of([KvShape(0, 2, 64)] * 4, 16, kv_format("auto", torch.bfloat16))
BLOCK_BYTES = 4 * 2 * 2 * 64 * 16 * 2
CAPACITY = Capacity(step_tokens=512, slots=8, sequence_tokens=2048, vocab=4096)
ACTIVATIONS = 100 * MIB
BROOK = Path(__file__).resolve().parents[2] / "python/penstock/brook"


@pytest.fixture
def gpu_of_1_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with 624 MiB free; 20 of them are kept for graphs."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (624 * MIB, 1024 * MIB))


def test_default_step_tokens_follow_gpu_memory(tmp_path: Path) -> None:
    """If nobody says how large."""
    assert [gpu_step(room << 30, False) for room in (8, 47, 48)] == [8_192, 8_192, 16_896]
    assert gpu_step(140 << 30, windows=True) == 8_192
    loaded = LocalWorker().load(checkpoint_maker(tmp_path)("llama2"), max_step_tokens=0)
    assert loaded.max_step_tokens == 512


def test_default_slots_follow_gpu_memory(tmp_path: Path) -> None:
    """If nobody says how many."""
    assert [gpu_slots(room << 30) for room in (1, 15, 16, 31)] == [256, 256, 512, 512]
    assert [gpu_slots(room << 30) for room in (32, 140)] == [1_024, 1_024]
    loaded = LocalWorker().load(checkpoint_maker(tmp_path)("llama2"), max_slots=0)
    assert loaded.max_slots == 32


@pytest.mark.usefixtures("gpu_of_1_gib")
def test_kv_memory_is_the_remaining_gpu_memory() -> None:
    budget = cuda_budget(CAPACITY, GEOMETRY, (0, 0.9), ACTIVATIONS)
    rest = 400 * MIB + ACTIVATIONS + budget.graphs + slot_bytes(CAPACITY, GEOMETRY)
    assert budget.kv == int(1024 * MIB * 0.9) - rest > 0
    assert budget.blocks(CAPACITY, GEOMETRY) == [min(budget.kv // BLOCK_BYTES, 8 * 128)]


@pytest.mark.usefixtures("gpu_of_1_gib")
def test_free_memory_respects_fraction_and_wanted_kv() -> None:
    assert room_left((0, 1.0)) == 624 * MIB
    assert room_left((100 * MIB, 0.75)) == 268 * MIB


@pytest.mark.usefixtures("gpu_of_1_gib")
def test_kv_memory_beyond_the_free_memory_is_refused_with_the_sums() -> None:
    with pytest.raises(TooLittleMemory) as refused:
        cuda_budget(CAPACITY, GEOMETRY, (600 * MIB, 0.9), ACTIVATIONS)
    for part in ("--kv-memory asks for 600 MiB", "1024 MiB", "activations 100 MiB", "lower it"):
        assert part in str(refused.value)


@pytest.mark.usefixtures("gpu_of_1_gib")
def test_largest_possible_kv_memory_is_accepted() -> None:
    room = cuda_budget(CAPACITY, GEOMETRY, (0, 0.9), ACTIVATIONS).kv
    budget = cuda_budget(CAPACITY, GEOMETRY, (room, 0.9), ACTIVATIONS)
    assert (budget.total, budget.kv, budget.activations) == (1024 * MIB, room, ACTIVATIONS)
    assert budget.graphs == int(1024 * MIB * GRAPHS_SHARE)
    for wanted, share in ((room + 1, 0.9), (1, 0.4)):
        with pytest.raises(TooLittleMemory):
            cuda_budget(CAPACITY, GEOMETRY, (wanted, share), ACTIVATIONS)


def test_measuring_steps_store_nothing() -> None:
    """Chunks as long as a sequence may be, or first tokens; nothing is stored."""
    capacity, device = replace(CAPACITY, sequence_tokens=40), torch.device("cpu")
    prompts = prompts_context(capacity, GEOMETRY, device, 90)
    chunks = prompts.chunks
    assert chunks is not None and prompts.decodes is None and chunks.max_query == 40
    assert prompts.positions.tolist() == [*range(40), *range(40), *range(10)]
    assert chunks.query_start.tolist() == [0, 40, 80, 90]
    assert (chunks.kv_len.tolist(), chunks.slots.tolist()) == ([40, 40, 10], [0, 0, 0])
    short = prompts_context(capacity, GEOMETRY, device, 8).chunks
    assert short is not None and (short.max_query, short.query_start.tolist()) == (8, [0, 8])
    decoding = decoding_context(capacity, GEOMETRY, device, 90)
    decodes = decoding.decodes
    assert decodes is not None and decoding.chunks is None and decodes.count == 90
    assert (decodes.slots.tolist(), decodes.kv_len.tolist()) == ([0] * 90, [1] * 90)
    assert decoding.positions.tolist() == [0] * 90
    for context in (prompts, decoding):
        assert len(context.places) == 4
        for kv in context.places:
            assert kv.slot_mapping.tolist() == [-1] * 90
            assert kv.tables.tolist() == [[0] * 3] and kv.tables.dtype == torch.int32
        assert [len(cache.data) for cache in context.caches] == [1] * 4


def test_measuring_step_covers_all_memory_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling of every slot, by every filter, of float32 logits too; logits of a prompt's rows."""
    chosen, asked = list[object](), list[int]()

    class Model:
        def forward(self, ids: torch.Tensor, context: StepContext) -> torch.Tensor:
            assert ids.tolist() == [0] * 20
            return torch.zeros(20, 16, dtype=torch.bfloat16)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            asked.append(len(hidden))
            return hidden

    def choose(
        logits: torch.Tensor,
        slots: torch.Tensor,
        position: torch.Tensor,
        columns: SamplerColumns,
        filtered: bool,
    ) -> None:
        chosen.append((logits.dtype, filtered))
        assert slots.tolist() == position.tolist() == list(range(8))
        assert columns.temperature.tolist() == columns.top_p.tolist() == [0.5] * 8
        assert columns.min_p.tolist() == columns.typical_p.tolist() == [0.5] * 8
        assert columns.top_k.tolist() == [50] * 8

    monkeypatch.setattr("penstock.worker.sampling.choose", choose)
    context = prompts_context(CAPACITY, GEOMETRY, torch.device("cpu"), 20)
    memory.exercise(Model(), CAPACITY, context)  # type: ignore[arg-type]
    assert chosen == [(torch.float32, True), (torch.bfloat16, False)]
    assert asked == [8, PIECE]


@pytest.mark.parametrize("kv", [127, 128, 500])
def test_blocks_of_a_budget(kv: int) -> None:
    """At least those of one sequence, at most those of all slots, which leave no block unused."""
    budget = Budget(0, 0, 0, 0, kv * BLOCK_BYTES + BLOCK_BYTES - 1)
    if kv < GEOMETRY.blocks_for(2048):
        with pytest.raises(TooLittleMemory, match="lower --max-len to 2032"):
            budget.blocks(CAPACITY, GEOMETRY)
    else:
        assert budget.blocks(CAPACITY, GEOMETRY) == [kv]
        assert budget.blocks(replace(CAPACITY, slots=2), GEOMETRY) == [min(kv, 256)]


WINDOW = 64
GEMMA = [KvShape(0, 2, 64), *[KvShape(WINDOW, 2, 64)] * 5, KvShape(0, 2, 64)]


def test_groups_are_the_kinds_of_layers() -> None:
    """Of one window and shape each, unlimited ones first, whatever the order of layers."""
    layers = [KvShape(64, 2, 64), KvShape(0, 2, 64), KvShape(64, 1, 64), KvShape(64, 2, 64)]
    geometry = KvGeometry.of(layers, 16, kv_format("auto", torch.float32))
    assert [(group.shape, group.layers) for group in geometry.groups] == [
        (KvShape(0, 2, 64), (1,)), (KvShape(64, 1, 64), (2,)), (KvShape(64, 2, 64), (0, 3)),
    ]  # fmt: skip
    one = 2 * 64 * 16 * 4
    assert [geometry.block_bytes(group) for group in geometry.groups] == [2 * one, one, 4 * one]
    kv = geometry.allocate([3, 4, 5], torch.device("cpu"))
    assert [cache.data.shape for cache in kv.caches] == [
        (5, 2, 2, 16, 64), (3, 2, 2, 16, 64), (4, 2, 1, 16, 64), (5, 2, 2, 16, 64),
    ]  # fmt: skip
    assert (kv.group_of, kv.groups) == ((2, 0, 1, 2), 3)
    assert all(a is b.data for a, b in zip(kv.tensors_of(2), kv.caches[::3], strict=True))
    scratch = geometry.allocate_scratch(torch.device("cpu"))
    assert [len(cache.data) for cache in scratch.caches] == [1] * 4
    assert scratch.caches[0] is scratch.caches[3] and scratch.group_of == kv.group_of


def test_layers_that_read_another_ones_cache_have_no_memory() -> None:
    layers = [KvShape(64, 2, 32), KvShape(0, 1, 64), KvShape(64, 2, 32), KvShape(0, 1, 64)]
    auto = kv_format("auto", torch.float32)
    geometry = KvGeometry.of(layers, 16, auto, readers={2: 0, 3: 1})
    assert [group.layers for group in geometry.groups] == [(1,), (0,)]
    assert geometry.block_bytes(geometry.groups[0]) == 2 * 16 * 64 * 4
    kv = geometry.allocate([3, 4], torch.device("cpu"))
    assert kv.group_of == (1, 0, 1, 0)
    assert kv.caches[2] is kv.caches[0] and kv.caches[3] is kv.caches[1]
    assert [len(kv.tensors_of(group)) for group in range(2)] == [1, 1]
    scratch = geometry.allocate_scratch(torch.device("cpu"))
    assert scratch.caches[2] is scratch.caches[0] and scratch.group_of == kv.group_of


@pytest.mark.parametrize("name", ["auto", "fp8_e4m3", "int4"])
def test_kv_memory_of_the_host_is_zero_and_used_page_by_page(name: str) -> None:
    """A restart would wait for it otherwise."""
    geometry = KvGeometry.of([KvShape(0, 2, 64)], 16, kv_format(name, torch.float64))
    before = resident_bytes()
    blocks = 256 * MIB // geometry.block_bytes(geometry.groups[0])
    (cache,) = geometry.allocate([blocks], torch.device("cpu")).caches
    assert resident_bytes() - before < 32 * MIB
    assert sum(tensor.nbytes for tensor in cache.tensors) == blocks * geometry.block_bytes(
        geometry.groups[0]
    )
    for tensor in cache.tensors:
        assert not tensor[[0, -1]].view(torch.uint8).any()
        tensor[-1] = torch.ones_like(tensor[-1])
        assert tensor[-1].view(torch.uint8).any() and not tensor[-2].view(torch.uint8).any()


def resident_bytes() -> int:
    """Returns the memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_groups_share_memory_by_what_typical_sequences_hold() -> None:
    """One of full length fits each; of what is left, as many of 2 windows as of the other group."""
    geometry = KvGeometry.of(GEMMA, 16, kv_format("auto", torch.bfloat16))
    capacity = replace(CAPACITY, step_tokens=200, slots=512)
    full, sliding = (geometry.block_bytes(group) for group in geometry.groups)
    least = 128, (WINDOW + 200 + 15) // 16 + 2  # with the window, a step and unaligned ends
    one = least[0] * full + least[1] * sliding
    typical = 2 * WINDOW // 16, WINDOW // 16 + 1
    for sequences in (0, 1, 9):
        kv = one + sequences * (typical[0] * full + typical[1] * sliding)
        blocks = Budget(0, 0, 0, 0, kv).blocks(capacity, geometry)
        assert blocks == [a + sequences * b for a, b in zip(least, typical, strict=True)]
    # A short context is typical: groups are alike then.
    short = replace(capacity, sequence_tokens=WINDOW)
    kv = 40 * (full + sliding)
    assert Budget(0, 0, 0, 0, kv).blocks(short, geometry) == [40, 40]
    few = replace(capacity, slots=2)
    assert Budget(0, 0, 0, 0, 1 << 40).blocks(few, geometry) == [2 * 128, 2 * 128]
    with pytest.raises(TooLittleMemory, match="lower --max-len to 2032"):
        Budget(0, 0, 0, 0, one - 1).blocks(capacity, geometry)
    assert cpu_budget(replace(capacity, sequence_tokens=1 << 22), geometry, 0).kv > 512 * MIB


def test_kv_memory_of_a_cpu() -> None:
    """What is wanted, or 512 MiB, or one sequence of full length."""
    long = replace(CAPACITY, sequence_tokens=1 << 20)
    one = GEOMETRY.blocks_for(1 << 20) * BLOCK_BYTES
    assert one > 512 * MIB
    assert cpu_budget(CAPACITY, GEOMETRY, 0).kv == 512 * MIB
    assert cpu_budget(CAPACITY, GEOMETRY, 5).kv == cpu_budget(long, GEOMETRY, 5).kv == 5
    budget = cpu_budget(long, GEOMETRY, 0)
    assert budget == Budget(budget.total, 0, 0, slot_bytes(long, GEOMETRY), one)
    assert cpu_budget(CAPACITY, GEOMETRY, budget.total).kv == budget.total
    with pytest.raises(TooLittleMemory, match="more than this machine's"):
        cpu_budget(CAPACITY, GEOMETRY, budget.total + 1)


@pytest.mark.usefixtures("gpu_of_1_gib")
def test_no_room_for_one_sequence_is_refused_with_advice() -> None:
    budget = cuda_budget(CAPACITY, GEOMETRY, (0, 0.4), ACTIVATIONS)
    assert budget.kv == 0
    with pytest.raises(TooLittleMemory) as refused:
        budget.blocks(CAPACITY, GEOMETRY)
    for part in ("one sequence of 2048 tokens", "--memory-fraction", "--tp", "device 1024 MiB"):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_slots": 64, "max_step_tokens": 64}, {"max_sequence_tokens": 512, "max_slots": 100}],
)
def test_slot_bytes_match_allocated_memory(settings: dict[str, int]) -> None:
    worker = LocalWorker()
    loaded = worker.load(BROOK, **settings)
    runner, params = worker.runner, worker.runner.slot_params
    tensors = [
        runner.inputs,
        runner.last_token,
        runner.tables,
        params.numbers,
        params.bad_words,
        params.recent_tokens,
    ]
    lists = params.params
    tensors += [lists.counts, lists.bias_ids, lists.bias_values, lists.allowed]
    taken = sum(tensor.nbytes for tensor in tensors)
    # Rows of the rules are rounded up, by a few bytes each.
    assert taken <= loaded.memory.slots <= taken + 16 * (loaded.max_slots + 1)


@pytest.mark.parametrize("windows", [(0, 0, 0), (0, 24, 0), (24, 24, 24)])
def test_gpu_worker_derives_step_and_slots_from_free_memory(
    windows: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step and slots by the room that weights leave, unless they are set."""
    raw = read_config(checkpoint_maker(tmp_path)("llama2"))
    config = family(raw).read_config(raw).with_attention(windows)
    request = pb.LoadRequest(model_path="x", memory_fraction=0.5, kv_memory_bytes=7)
    device, asked = torch.device("cuda"), list[object]()
    methods = Methods(Unquantized(torch.float32, device))
    build = Build(torch.float32, device, Group(), methods, 512)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"some {device}")
    monkeypatch.setattr(loader.memory, "room_left", lambda given: asked.append(given) or 48 << 30)
    for tokens, slots in ((0, 0), (600, 0), (0, 5), (600, 5)):
        request.max_step_tokens, request.max_slots = tokens, slots
        settings = to_settings(request)
        made = loader._Loader(settings, config, loader._capacity(settings, config), build, print)
        capacity = made._sized(made.capacity)
        assert capacity.step_tokens == (tokens or (8_192 if any(windows) else 16_896))
        assert capacity.slots == (slots or 1_024)
        made.capacity = capacity
        blocks = [7, 8][: len(set(windows))]
        loaded = made._loaded(Budget(1, 2, 3, 4, 5), 6, blocks)
        assert loaded.step_sizes == step_sizes(tokens or 8_192)
        assert loaded.device_name == "some cuda"
        limits, layer = loaded.limits, 2 * 4 * 16 * 16 * 4
        counts = Counter(windows)
        assert limits.pools == tuple(
            KvPool(block, counts[window] * layer, window)
            for block, window in zip(blocks, sorted(counts), strict=True)
        )
        kv = sum(pool.blocks * pool.block_bytes for pool in limits.pools)
        assert loaded.memory == MemoryReport(1, 6, 2, 3, 4, kv)
        assert (limits.slots, limits.step_tokens) == (capacity.slots, capacity.step_tokens)
        assert (limits.vocab, limits.sequence_tokens) == (501, 512)
    assert asked == [(7, 0.5)] * 3


def out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines")


def test_oversized_weights_are_refused_and_another_load_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, worker = checkpoint_maker(tmp_path)("llama2"), LocalWorker()
    with monkeypatch.context() as patched:
        patched.setattr(loader, "load_weights", out_of_memory)
        with pytest.raises(Refused) as refused:
            worker.load(path)
    text = str(refused.value)
    assert text.startswith("RESOURCE_EXHAUSTED") and "Tried to allocate 2.00 GiB" in text
    assert "--tp" in text and "--max-step-tokens" in text and "More lines" not in text
    assert worker.load(path).vocab_size == 501


@pytest.mark.gpu
def test_too_small_gpu_is_refused_and_a_later_load_succeeds() -> None:
    worker, small = LocalWorker(), {"device": "cuda", "kv_memory_bytes": 64 * MIB}
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-9)
    try:
        with pytest.raises(Refused, match="RESOURCE_EXHAUSTED") as refused:
            worker.load(BROOK, max_step_tokens=1 << 16, **small)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "too small to load this model" in refused.value.text
    with pytest.raises(Refused, match="RESOURCE_EXHAUSTED") as refused:
        worker.load(BROOK, device="cuda", memory_fraction=1e-4)
    assert "one sequence of 256 tokens" in refused.value.text
    assert worker.load(BROOK, **small).vocab_size == 4096


@pytest.mark.gpu
def test_out_of_memory_during_capture_keeps_smaller_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint_maker(tmp_path)("llama31")
    make, captures = DeviceCapture.__call__, []

    def capture_while_there_is_memory(self: DeviceCapture, launch: Callable[[], object]) -> object:
        def launch_much() -> object:
            torch.empty(1 << 30, device="cuda")  # more than may be taken: within the capture
            return launch()

        captures.append(launch)
        if len(captures) <= 6:  # steps of 1, 2 and 4 tokens
            return make(self, launch)
        total = torch.cuda.get_device_properties().total_memory
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        return make(self, launch_much)

    monkeypatch.setattr(DeviceCapture, "__call__", capture_while_there_is_memory)
    worker = LocalWorker()
    try:
        settings = {"device": "cuda", "kv_memory_bytes": 64 * MIB, "dtype": "float32"}
        loaded = worker.load(path, **settings)
        with torch.inference_mode():
            list(worker.runner.spare_work)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    graphs = worker.runner.graphs
    assert [shape.tokens for shape in graphs.captured] == [1, 2, 4]
    assert len(captures) == 7  # larger ones were not tried
    assert "no CUDA graph for steps of" in caplog.text and "out of memory" in caplog.text

    def answers() -> list[list[int]]:
        driver = Driver([worker], loaded, worker.shard.epoch + 1)
        sequences = [greedy(list(range(5, 30 + i)), 12) for i in range(20)]
        for sequence in sequences:
            driver.enter(sequence)
        driver.finish(sequences)
        driver.stream.close()
        return [sequence.tokens for sequence in sequences]

    some = answers()
    worker.runner.graphs = None
    assert answers() == some
