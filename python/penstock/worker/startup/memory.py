"""Computes the KV memory of a worker: what remains after weights and the largest step."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from penstock.cache import AnyCache, KvGeometry, KvGroup
from penstock.faults import TooLittleMemory
from penstock.layers.attention import Chunks, Decodes, KvPlaces, StepContext
from penstock.models import Model
from penstock.worker import sampling
from penstock.worker.batch import buffer_words
from penstock.worker.logprobs import PIECE
from penstock.worker.protocol.settings import KvPool, Limits

MIB = 1 << 20
CPU_DEFAULT = 512 * MIB
# Default tokens of a step. If a GPU has enough memory, steps may be larger while many prompts wait:
# on an H200, 16 streams of prompts are prefilled 1.2 % faster than with steps of 8,192. A third of
# this gain is due to 132 x 128: tiles of 128 rows then fill all 132 multiprocessors. The scheduler
# uses such a large step only if it takes at most half a second.
CPU_STEP, GPU_STEP, LARGE_STEP = 512, 8_192, 132 * 128
LARGE_ROOM = 48 << 30  # bytes
# Default slots: the largest number for which each slot has SLOT_ROOM. Its state and its row of
# logits take 2 MiB of that with 128,256 tokens and contexts of 131,072; the rest is KV memory.
CPU_SLOTS, GPU_SLOTS = 32, (256, 512, 1_024)
SLOT_ROOM = 32 << 20  # bytes
# The length, in windows, of the typical sequence by which KV groups divide the memory.
TYPICAL_WINDOWS = 2
# Of models with recurrent layers: tokens and states of the typical sequence (its own state, and a
# checkpoint), and the most states that a slot adds. A state takes as much memory as the keys and
# values of thousands of tokens: of Qwen3-Next 80B-A3B 74 MiB, as those of 3,200. With compressed
# entries (DeepSeek-V4) the typical sequence has as many tokens.
TYPICAL_TOKENS, TYPICAL_STATES, MOST_STATES = 4_096, 2, 4
# The most blocks of a group whose blocks have no memory, unless one sequence needs more. The router
# keeps about 150 bytes for each: 16 million tokens of running sequences and of the prefix cache.
MOST_EMPTY = 1 << 20
# States that one sequence needs: its own, the checkpoint that it begins with or makes, and another
# that is not yet confirmed.
LEAST_STATES = 3
GRAPHS_SHARE = 0.02  # of a GPU's memory, kept for CUDA graphs


@dataclass(frozen=True)
class Capacity:
    """The largest step and batch for which memory must suffice."""

    step_tokens: int
    slots: int
    sequence_tokens: int
    vocab: int


def gpu_step(room: int, windows: bool) -> int:
    """Returns the default tokens of a step, for a GPU with `room` bytes after weights and requested
    KV memory. With `windows`, larger steps would need more blocks."""
    return LARGE_STEP if room >= LARGE_ROOM and not windows else GPU_STEP


def gpu_slots(room: int, state_bytes: int = 0) -> int:
    """Returns the default slots, for a GPU with `room` bytes after weights and requested KV
    memory. `state_bytes`: of a sequence, in recurrent layers."""
    each = SLOT_ROOM + TYPICAL_STATES * state_bytes
    return max((slots for slots in GPU_SLOTS if slots * each <= room), default=GPU_SLOTS[0])


def room_left(settings: tuple[int, float]) -> int:
    """Returns the bytes that the worker may still use on the current GPU; see `cuda_budget`."""
    wanted, fraction = settings
    torch.cuda.empty_cache()  # weights that were repacked leave their first form there
    free, total = torch.cuda.mem_get_info()
    return int(total * fraction) - (total - free) - wanted


def slot_bytes(capacity: Capacity, geometry: KvGeometry) -> int:
    """Returns the bytes of all slots' device state, the padding slot included (tables, last tokens,
    sampling parameters), and of the buffer of a step's inputs."""
    width, groups = geometry.blocks_for(capacity.sequence_tokens), len(geometry.groups)
    limits = Limits(
        slots=capacity.slots,
        step_tokens=capacity.step_tokens,
        sequence_tokens=capacity.sequence_tokens,
        block_tokens=geometry.block_tokens,
        pools=(KvPool(capacity.slots * width),) * groups,
        vocab=capacity.vocab,
    )
    slot = 4 * width * groups + 8 + sampling.slot_bytes(capacity.vocab)
    return 4 * buffer_words(limits) + (capacity.slots + 1) * slot


def exercise(model: Model, capacity: Capacity, context: StepContext) -> None:
    """Runs the largest step: a forward pass, sampling for every slot, logits of a prompt's rows."""
    device = context.positions.device
    hidden = exercise_layers(model, context)
    rows = hidden[torch.zeros(capacity.slots, dtype=torch.int64, device=device)]
    whole = torch.arange(capacity.slots, dtype=torch.int64, device=device)
    half = torch.full((capacity.slots,), 0.5, dtype=torch.float32, device=device)
    limit = torch.full((capacity.slots,), 50, dtype=torch.int32, device=device)
    logits = model.logits(rows)
    adjusted = logits.float()  # as logits processors do
    columns = sampling.SamplerColumns(whole, limit, half, half, half, half)
    sampling.choose(adjusted, whole, whole, columns, filtered=True)
    sampling.choose(logits, whole, whole, columns, filtered=False)
    model.logits(hidden[torch.zeros(PIECE, dtype=torch.int64, device=device)])


def exercise_layers(model: Model, context: StepContext) -> torch.Tensor:
    """Runs a forward pass with token id 0 in every row; returns its hidden states."""
    return model.forward(torch.zeros_like(context.positions, dtype=torch.int64), context)


def prompts_context(
    capacity: Capacity, geometry: KvGeometry, device: torch.device, tokens: int
) -> StepContext:
    """Returns a step of `tokens` tokens in the longest possible chunks, over a scratch cache of one
    block.

    It stores nothing (slot_mapping -1), and every table points at that block.
    """
    length = min(tokens, capacity.sequence_tokens)
    starts = [*range(0, tokens, length), tokens]
    lengths = [b - a for a, b in itertools.pairwise(starts)]

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    chunks = Chunks(ints([0] * len(lengths)), ints(starts), ints(lengths), length)
    positions = torch.arange(tokens, dtype=torch.int32, device=device) % length
    places, caches = _scratch(capacity, geometry, tokens, device)
    return StepContext(positions, places, caches, None, chunks)


def decoding_context(
    capacity: Capacity, geometry: KvGeometry, device: torch.device, count: int
) -> StepContext:
    """Returns a step of `count` sequences with one token each, over a scratch cache.

    It stores nothing.
    """
    first = torch.zeros(count, dtype=torch.int32, device=device)
    decodes = Decodes(count, first, torch.ones_like(first))
    places, caches = _scratch(capacity, geometry, count, device)
    return StepContext(first, places, caches, decodes, None)


def _scratch(
    capacity: Capacity, geometry: KvGeometry, tokens: int, device: torch.device
) -> tuple[list[KvPlaces], list[AnyCache]]:
    """Returns for every layer a table of zeros, a slot_mapping that stores nothing, and a cache of
    one block."""
    width = geometry.blocks_for(capacity.sequence_tokens)
    table = torch.zeros((1, width), dtype=torch.int32, device=device)
    nowhere = torch.full((tokens,), -1, dtype=torch.int32, device=device)
    caches = geometry.allocate_scratch(device).caches
    return [KvPlaces(table, nowhere)] * len(caches), caches


def least_blocks(capacity: Capacity, geometry: KvGeometry, group: KvGroup) -> int:
    """Returns the blocks of a group that one sequence of full length needs. With a window, these
    are the blocks of the window and of the largest step; if the group is the only one, all
    blocks."""
    if group.recurrent:
        return LEAST_STATES
    whole, window = geometry.blocks_for(capacity.sequence_tokens), group.window
    if not window or len(geometry.groups) == 1:
        return whole
    return min(whole, geometry.blocks_for(window + capacity.step_tokens) + 2)


def typical_blocks(capacity: Capacity, geometry: KvGeometry, group: KvGroup) -> int:
    """Returns the blocks of a group that a typical sequence holds between two steps: one of
    TYPICAL_WINDOWS widest windows, or of TYPICAL_TOKENS if there are states or compressed
    entries: rows of windows take as much memory as the entries of thousands of tokens."""
    if group.recurrent:
        return TYPICAL_STATES
    length, window = capacity.sequence_tokens, group.window
    if geometry.compressed or any(each.recurrent for each in geometry.groups):
        length = min(length, TYPICAL_TOKENS)
    widest = max(each.window for each in geometry.groups)
    if widest and not geometry.compressed:
        length = min(length, TYPICAL_WINDOWS * widest)
    whole = geometry.blocks_for(length)
    return min(whole, geometry.blocks_for(window) + 1) if window else whole


def most_blocks(capacity: Capacity, geometry: KvGeometry, group: KvGroup) -> int:
    """Returns the most blocks of a group that are of use: those that all slots could hold, and
    checkpoints of states."""
    one = MOST_STATES if group.recurrent else geometry.blocks_for(capacity.sequence_tokens)
    most = capacity.slots * one if group.layers else min(capacity.slots * one, MOST_EMPTY)
    return max(most, least_blocks(capacity, geometry, group))


def _divided(
    rest: int, groups: Sequence[KvGroup], capacity: Capacity, geometry: KvGeometry
) -> dict[KvGroup, int]:
    """Returns the blocks of some of a geometry's groups if all of them share `rest` bytes beyond
    what one sequence needs, so that they have blocks for equally many typical sequences. Blocks
    without memory are as many as are of use."""
    typical = {group: typical_blocks(capacity, geometry, group) for group in geometry.groups}
    together = sum(count * geometry.block_bytes(group) for group, count in typical.items())
    return {
        group: min(
            least_blocks(capacity, geometry, group) + rest * typical[group] // together,
            most_blocks(capacity, geometry, group),
        )
        if group.layers
        else most_blocks(capacity, geometry, group)
        for group in groups
    }


def sequence_bytes(capacity: Capacity, geometry: KvGeometry) -> int:
    """Returns the KV memory in bytes that one sequence of full length needs."""
    return sum(
        least_blocks(capacity, geometry, group) * geometry.block_bytes(group)
        for group in geometry.groups
    )


@dataclass(frozen=True)
class Budget:
    """The bytes for KV memory, and those reserved for everything else."""

    total: int
    activations: int
    graphs: int
    slots: int
    kv: int

    def blocks(self, capacity: Capacity, geometry: KvGeometry) -> list[int]:
        """Returns the blocks of each KV group that fit.

        Every group has room for one sequence of full length. The rest is divided so that all groups
        have blocks for equally many typical sequences. Raises TooLittleMemory if one sequence of
        full length does not fit.
        """
        rest = self.kv - sequence_bytes(capacity, geometry)
        if rest < 0:
            raise self._too_little(capacity, geometry)
        states = [group for group in geometry.groups if group.recurrent]
        others = [group for group in geometry.groups if not group.recurrent]
        found = _divided(rest, states, capacity, geometry)
        # What states do not need is for keys and values.
        rest -= sum(
            (count - least_blocks(capacity, geometry, group)) * geometry.block_bytes(group)
            for group, count in found.items()
        )
        found |= _divided(rest, others, capacity, replace(geometry, groups=tuple(others)))
        return [found[group] for group in geometry.groups]

    def _too_little(self, capacity: Capacity, geometry: KvGeometry) -> TooLittleMemory:
        lengths = range(0, capacity.sequence_tokens, geometry.block_tokens)

        def needed(length: int) -> int:
            return sequence_bytes(replace(capacity, sequence_tokens=length), geometry)

        longest = lengths[bisect.bisect_right(lengths, self.kv, key=needed) - 1]
        advice = f"raise --kv-memory to that or lower --max-len to {longest}"
        if longest == 0:
            advice = (
                "raise --kv-memory or --memory-fraction, share the model by --tp, or lower "
                "--max-step-tokens or --max-slots"
            )
        return TooLittleMemory(
            f"KV memory of {self.kv / MIB:.1f} MiB is too small for one sequence of "
            f"{capacity.sequence_tokens} tokens, which needs "
            f"{sequence_bytes(capacity, geometry) / MIB:.1f} MiB; {advice} "
            f"(device {self.total / MIB:.0f} MiB, activations {self.activations / MIB:.0f} MiB,"
            f" graphs {self.graphs / MIB:.0f} MiB, slots {self.slots / MIB:.0f} MiB)"
        )


def cpu_budget(capacity: Capacity, geometry: KvGeometry, wanted: int) -> Budget:
    """Returns a budget of `wanted` KV bytes; 0 selects 512 MiB, or what one full sequence needs."""
    one = sequence_bytes(capacity, geometry)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kv = wanted or max(CPU_DEFAULT, one)
    if kv > total:
        raise TooLittleMemory(
            f"KV memory of {kv / MIB:.0f} MiB is more than this machine's {total / MIB:.0f} MiB; "
            "lower --kv-memory or --max-len"
        )
    return Budget(total, 0, 0, slot_bytes(capacity, geometry), kv)


def cuda_budget(
    capacity: Capacity, geometry: KvGeometry, settings: tuple[int, float], activations: int
) -> Budget:
    """Measures the budget. `settings` are (requested KV bytes, share of the device's memory)."""
    wanted, fraction = settings
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    graphs = int(total * GRAPHS_SHARE)
    slots = slot_bytes(capacity, geometry)
    room = room_left((0, fraction)) - activations - graphs - slots
    if wanted > max(room, 0):
        raise TooLittleMemory(
            f"--kv-memory asks for {wanted / MIB:.0f} MiB, but {max(room, 0) / MIB:.0f} MiB are "
            f"left of the device's {total / MIB:.0f} MiB (fraction {fraction:.2f}, in use "
            f"{(total - free) / MIB:.0f} MiB, activations {activations / MIB:.0f} MiB, graphs "
            f"{graphs / MIB:.0f} MiB, slots {slots / MIB:.0f} MiB); lower it or raise the fraction"
        )
    return Budget(total, activations, graphs, slots, wanted or max(room, 0))


def measure_activations(model: Model, capacity: Capacity, context: StepContext) -> int:
    """Measures the peak bytes of the largest step beyond the current allocation, on the current
    GPU.

    Run `exercise` before: the workspaces that it creates stay allocated.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    exercise(model, capacity, context)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)
