"""Compiles portable kernels for GPUs, on a machine without one.

    python compile_portable.py CAPABILITY PROCESSORS SHARED_BYTES, say 80 108 166912 of an A100

Fails where one does not fit the GPU, or keeps what it adds up in memory instead of registers.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from absent import Absent
from penstock_kernels import recurrence_triton
from penstock_kernels.act_mul import ACTIVATIONS
from penstock_kernels.act_mul.triton import act_mul
from penstock_kernels.case import (
    PLAIN,
    PLAIN_KV,
    QUANTIZED_KV,
    Heads,
    Index,
    Latent,
    Scoring,
    paged,
    runs,
    stored,
)
from penstock_kernels.causal_conv import triton as convolution
from penstock_kernels.channel_scan import triton as channel_scan
from penstock_kernels.expert_mlp import Activation, Experts
from penstock_kernels.expert_mlp import triton as experts
from penstock_kernels.expert_mlp.sort import place_chunk
from penstock_kernels.gated_delta_rule import channel_chunks
from penstock_kernels.gated_delta_rule import chunks as delta_chunks
from penstock_kernels.gated_delta_rule import triton as delta
from penstock_kernels.gated_head_norm import triton as gated_norm
from penstock_kernels.index_blocks import triton as choose_blocks
from penstock_kernels.index_blocks.cases import Blocks, block_arguments
from penstock_kernels.index_pool import triton as index_pool
from penstock_kernels.index_pool.cases import pool_arguments
from penstock_kernels.index_tokens import triton as choose
from penstock_kernels.index_tokens.cases import index_arguments
from penstock_kernels.index_write import triton as index_write
from penstock_kernels.index_write.cases import write_arguments as index_write_arguments
from penstock_kernels.latent_attention import splits as latent_splits
from penstock_kernels.latent_attention import triton as latent
from penstock_kernels.latent_attention.cases import latent_arguments
from penstock_kernels.latent_kv_write import triton as latent_write
from penstock_kernels.latent_kv_write.cases import write_arguments
from penstock_kernels.linear import triton as choice
from penstock_kernels.linear.plan import BUCKETS
from penstock_kernels.norm_route import triton as norm_router
from penstock_kernels.packed_linear import Kind, PackedWeight
from penstock_kernels.paged_decode_attention import splits
from penstock_kernels.paged_decode_attention import triton as decode
from penstock_kernels.paged_decode_attention.cases import decode_arguments
from penstock_kernels.paged_prefill_attention import triton as prefill
from penstock_kernels.rg_lru import triton as gated_unit
from penstock_kernels.rope_kv_write import triton as rope
from penstock_kernels.route_experts import Routed, Routing
from penstock_kernels.route_experts import triton as router
from penstock_kernels.selective_scan import chunks as scan_chunks
from penstock_kernels.selective_scan import triton as scan
from penstock_kernels.sinkhorn import triton as balance
from penstock_kernels.window_sum import triton as summed
from penstock_kernels.window_sum.cases import CHOSEN, HEAVY, KEYS, window_arguments
from triton.runtime import driver
from triton.runtime.jit import JITFunction

CPU = torch.device("cpu")
DUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
CAPABILITY, PROCESSORS, SHARED_BYTES = map(int, sys.argv[1:])
run = JITFunction.run
FULL_OF_NUMBERS = (
    prefill._attend_tile.fn,
    place_chunk.fn,
    delta._step_through.fn,
    delta_chunks._prepare.fn,
    delta_chunks._run_chunks.fn,
    channel_chunks._prepare.fn,
    channel_chunks._run_chunks.fn,
    scan._scan.fn,
    scan_chunks._run_chunks.fn,
)


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """In place of a launch."""
    kernel = run(self, *args, grid=grid, warmup=True, **options)
    name = f"{self.__name__} {options}"
    assert kernel.metadata.shared <= SHARED_BYTES, f"{name}: {kernel.metadata.shared}"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(DUMP), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True)
    stack = re.findall(r" STACK:(\d+) ", usage.stdout + usage.stderr)
    # A few registers, on some GPUs, of tiles of many rows, where numbers have fewer bits, of heads
    # of 512, of a sort, of states, and of attention to chosen tokens.
    narrow = options.get("BITS") or options.get("LARGEST")
    wide = options.get("D", 0) > 256
    spill = 128 if narrow or wide or self.fn in FULL_OF_NUMBERS else 0
    many = options.get("ROWS") == 64 or options.get("C", 0) > latent.WIDE
    spill = 256 if self.fn is latent._attend_tile.fn and many else spill
    listed = self.fn in (choose._choose_row.fn, choose_blocks._list_blocks.fn)
    sparse = options.get("W", 0) > 576 or listed
    spill = 48 if not spill and sparse else spill
    assert stack and all(int(bytes_) <= spill for bytes_ in stack), f"{name}: {usage.stdout}"
    sys.stdout.write(f"{self.__name__}: compiled\n")
    return kernel


BF16, F32 = torch.bfloat16, torch.float32
KINDS = [kv for kv in QUANTIZED_KV if kv != "e4m3" or CAPABILITY >= 89]  # what can convert it
# Llama 3.1 8B, a rank of it, Gemma 2 9B, Gemma 3 1B, gpt-oss 20B, Llama 4 Scout, MPT 30B, Inkling
# and Inkling 2, full layers of Gemma 4 E2B and 31B; and their kernels for float32.
LAYERS = [
    (Heads(32, 8, 128, 16), 0, PLAIN, BF16),
    (Heads(8, 1, 128, 16), 0, PLAIN, BF16),
    (Heads(16, 8, 256, 16), 4096, Scoring(50.0), BF16),
    (Heads(4, 1, 256, 16), 0, PLAIN, BF16),
    (Heads(4, 1, 256, 16), 512, Scoring(50.0), F32),
    (Heads(64, 8, 64, 16), 128, Scoring(sinks=True), BF16),
    (Heads(40, 8, 128, 16), 8192, Scoring(aligned=True), BF16),
    (Heads(64, 64, 112, 16), 0, Scoring(alibi=True), BF16),
    (Heads(64, 8, 128, 16), 0, Scoring(extent=1024), BF16),
    (Heads(64, 16, 128, 16), 512, Scoring(extent=512), BF16),
    (Heads(48, 8, 128, 16), 1024, Scoring(extent=1024, by_query=True), BF16),
    (Heads(16, 16, 464, 16), 0, PLAIN, BF16),
    (Heads(8, 1, 512, 16), 0, PLAIN, BF16),
    (Heads(32, 4, 512, 16), 0, PLAIN, BF16),
    (Heads(8, 1, 512, 16), 0, PLAIN, F32),
]


def attention(
    heads: Heads, window: int, rule: Scoring, kind: torch.dtype, kv: str = PLAIN_KV
) -> None:
    """Decode, and prefill of many rows."""
    rest = {"scale": 0.1, "window": window, **rule.arguments(heads, CPU)}
    case = decode_arguments(heads, [40, 5000], kind, CPU, kv=kv)
    decode.paged_decode_attention(**case, **rest, **rule.biases(heads, case["q"]))
    q = torch.empty((1100, heads.query, heads.size), dtype=kind)
    rest |= rule.biases(heads, q)
    start = torch.tensor([0, len(q)], dtype=torch.int32)
    pages = stored(paged([len(q)], heads, kind, CPU), kv)
    prefill.paged_prefill_attention(q, **pages, query_start=start, max_query=len(q), **rest)


def write(heads: Heads, kv: str) -> None:
    """Rotation and the write of a prompt's keys and values."""
    case = decode_arguments(heads, [40, 5000], BF16, CPU, kv=kv)
    names = "q", "k", "v", "cos_sin", "positions", "slot_mapping", "kv_cache"
    rope.rope_kv_write(*(case[name] for name in names), kv_params=case.get("kv_params"))


def read_alone(heads: Heads) -> None:
    """Of a layer that reads the cache of another one."""
    case = decode_arguments(heads, [40, 5000], BF16, CPU, reads=True)
    decode.paged_decode_attention(**case, scale=1.0)
    names = "q", "k", "v", "cos_sin", "positions", "slot_mapping", "kv_cache"
    rope.rope_kv_write(*(case[name] for name in names))


def fp4(outputs: int, inputs: int) -> PackedWeight:
    """Codes of gpt-oss 20B's 32 experts, in groups of 32."""
    words = torch.empty((32, outputs // 64, inputs // 64, 4, 128), dtype=torch.int32)
    scales = torch.empty((32, inputs // 32, outputs), dtype=BF16)
    return PackedWeight(words, scales, None, Kind.FP4, inputs)


def mixtures() -> None:
    """Qwen3 30B-A3B's router and experts, and those of gpt-oss 20B and Nemotron 3 Nano, of few
    tokens and many."""
    router.route_experts(torch.empty(3, 128), None, Routing(8, renormalise=True))
    x, scale = torch.empty((1, 2048), dtype=BF16), torch.empty(2048, dtype=BF16)
    matrix = torch.empty((128, 2048), dtype=BF16)
    norm_router.norm_route(x, x, scale, 1e-6, matrix, None, None, Routing(8, renormalise=True))
    gate_up, down = (
        torch.empty((128, 1536, 2048), dtype=BF16),
        torch.empty((128, 2048, 768), dtype=BF16),
    )
    qwen3 = Experts(gate_up, down)
    biases = torch.empty((32, 5760), dtype=BF16), torch.empty((32, 2880), dtype=BF16)
    clamped = Activation.CLAMPED_SWIGLU
    gpt_oss = Experts(fp4(5760, 2880), fp4(2880, 2880), *biases, clamped)
    ups, downs = (
        torch.empty((128, 1856, 2688), dtype=BF16),
        torch.empty((128, 2688, 1856), dtype=BF16),
    )
    nemotron = Experts(ups, downs, activation=Activation.RELU_SQUARED)
    hunyuan = Experts(gate_up, down, activation=Activation.LIMITED_SILU)
    step = Experts(gate_up, down, activation=Activation.CAPPED_SILU)
    inkling = Experts(gate_up, down, activation=Activation.SOFTCAPPED_SILU)
    for tokens, top_k, layer, hidden in (
        (1, 8, qwen3, 2048),
        (32, 8, qwen3, 2048),
        (2048, 8, qwen3, 2048),
        (4, 4, gpt_oss, 2880),
        (2048, 4, gpt_oss, 2880),
        (1, 8, hunyuan, 2048),
        (2048, 8, hunyuan, 2048),
        (1, 8, step, 2048),
        (2048, 8, step, 2048),
        (1, 8, inkling, 2048),
        (2048, 8, inkling, 2048),
        (1, 6, nemotron, 2688),
        (32, 6, nemotron, 2688),
        (2048, 6, nemotron, 2688),
    ):
        ids = torch.empty((tokens, top_k), dtype=torch.int32)
        x = torch.empty((tokens, hidden), dtype=BF16)
        experts.expert_mlp(x, Routed(ids, torch.empty(ids.shape)), layer)


def latents(heads: int, kind: torch.dtype) -> None:
    """Latent attention of decodes, of a prompt, and the write of its rows."""
    shape = Latent(heads, 512, 64)
    for chunks in ([(1, 40), (1, 5000)], [(1100, 1100)]):
        latent.latent_attention(**latent_arguments(shape, chunks, kind, CPU))
    latent_write.latent_kv_write(**write_arguments(shape, 3, kind, CPU))


def indexers(kind: torch.dtype) -> None:
    """The indexers of DeepSeek-V3.2 and GLM-5, and attention to what they choose."""
    for heads, index_heads in ((128, 64), (64, 32), (8, 64)):
        index = Index(index_heads, 128, 64, 704)
        for chunks in ([(1, 40), (1, 5000)], [(300, 5000), (4, 4)]):
            choose.index_tokens(**index_arguments(index, chunks, 2048, kind, CPU))
        index_write.index_write(**index_write_arguments(index, 3, kind, CPU))
        shape = Latent(heads, 512, 64, 128)
        chosen = latent_arguments(shape, [(1, 40), (1, 2048)], kind, CPU, block_tokens=1)
        latent.latent_attention(**chosen)
        latent_write.latent_kv_write(**write_arguments(shape, 3, kind, CPU))


def sinks(kind: torch.dtype) -> None:
    """Latent attention of Hunyuan 4 to chosen tokens and to all, and its index keys."""
    shape, index = Latent(32, 512, 64, 128), Index(16, 128, 64, 704)
    for chunks, block_tokens in (([(1, 40), (1, 2048)], 1), ([(1100, 1100)], 16)):
        given = latent_arguments(shape, chunks, kind, CPU, block_tokens, sinks=True)
        latent.latent_attention(**given)
    index_write.index_write(**index_write_arguments(index, 3, kind, CPU), at_end=True)


def pools(kind: torch.dtype) -> None:
    """Latent attention of GLM-5-next to chosen pools and to all tokens, and its index keys."""
    shape = Latent(64, 512, 0, 256)
    for chunks in ([(1, 40), (1, 2063)], [(1100, 1100)]):
        latent.latent_attention(**latent_arguments(shape, chunks, kind, CPU))
    latent_write.latent_kv_write(**write_arguments(shape, 3, kind, CPU))
    index_pool.index_pool(**pool_arguments(40, 128, 16, 768, kind, CPU))
    index = Index(32, 128, 0, 16 * 768)
    choose.index_tokens(**index_arguments(index, [(1, 40), (1, 5000)], 128, kind, CPU, 1))


def shared_keys(kind: torch.dtype) -> None:
    """Attention of DeepSeek-V4 to last tokens, to chosen entries, and to entries of blocks; what
    sums up entries."""
    for block_tokens, row in ((1, 2560), (1, 128), (4, 0)):
        shape = Latent(64, 512, 0, row)
        chosen = [(1, 40), (1, 640)]
        given = latent_arguments(shape, chosen, kind, CPU, block_tokens, lse=True)
        latent.latent_attention(**given)
    for windows, first in ((CHOSEN, 512), (KEYS, 2560), (HEAVY, 512)):
        summed.window_sum(**window_arguments(windows, [windows[1]], kind, CPU, first))


def windows(kind: torch.dtype) -> None:
    """Latent attention of Dots3-Note to listed tokens and to all, with latents of 1,024."""
    for heads in (8, 64):
        shape = Latent(heads, 1024, 64)
        for chunks, block_tokens in (([(1, 40), (1, 512)], 1), ([(1100, 1100)], 16)):
            latent.latent_attention(**latent_arguments(shape, chunks, kind, CPU, block_tokens))
        latent_write.latent_kv_write(**write_arguments(shape, 3, kind, CPU))


def chosen_blocks(kind: torch.dtype) -> None:
    """The choice of blocks of Qwen4-Exp, attention to them, and the convolutions of its n-grams."""
    index = Index(16, 128, 64, 16 * 640)
    decodes = [(1, 2), (1, 500)]
    choose.index_tokens(**index_arguments(index, decodes, 128, kind, CPU, block_tokens=1))
    shape = Latent(8, 256, 256, 128)
    latent.latent_attention(**latent_arguments(shape, [(1, 40), (1, 2063)], kind, CPU))
    for dtype, channels, width in ((kind, 8192, 10), (torch.float32, 2, 3)):
        states = torch.empty((4, 1, 1, channels, width - 1), dtype=dtype)
        weight = torch.empty((channels, width), dtype=dtype)
        for lengths in ([(1, 1), (1, 7)], [(300, 300)]):
            x = torch.empty((sum(count for count, _ in lengths), channels), dtype=dtype)
            convolution.causal_conv(x, weight, states, runs(lengths, CPU))


def token_convolutions(kind: torch.dtype) -> None:
    """The convolution of keys and values of Inkling 2, whose weights depend on the token."""
    states = torch.empty((4, 1, 1, 2048, 3), dtype=kind)
    weight = torch.empty((2048, 4))
    for lengths in ([(1, 1), (1, 7)], [(300, 300)]):
        x = torch.empty((sum(count for count, _ in lengths), 2048), dtype=kind)
        taps = torch.empty((len(x), 16, 4))
        run_of = runs(lengths, CPU)
        convolution.causal_conv(x, weight, states, run_of, silu=False, taps=taps)


def blocks_of_heads(kind: torch.dtype) -> None:
    """The choice of blocks of each head of MiniMax-M3, and attention to them."""
    index, blocks = Index(4, 128, 64, 384), Blocks(128, 16, 1)
    choose_blocks.index_blocks(**block_arguments(index, blocks, [2, 5000], kind, CPU, 16, 4))
    shape = Latent(16, 128, 128, 128)
    latent.latent_attention(**latent_arguments(shape, [(1, 40), (1, 2063)], kind, CPU))


def recurrent(kind: torch.dtype) -> None:
    """Gated DeltaNet of Qwen3-Next, of decodes, few tokens and a prompt."""
    channels, heads, gate = 8192, (32, 128), torch.empty(32)
    for lengths in ([(1, 1), (1, 7)], [(5, 9)], [(300, 300)]):
        run_of = runs(lengths, CPU)
        tokens = sum(count for count, _ in lengths)
        x = torch.empty((tokens, channels + 4096), dtype=kind)
        states = torch.empty((4, 1, 1, channels, 3), dtype=kind)
        weight = torch.empty((channels, 4), dtype=kind)
        mixed = convolution.causal_conv(x[:, :channels], weight, states, run_of)
        q, k, v = mixed.split([2048, 2048, 4096], 1)
        q, k = (each.unflatten(1, (16, 128)) for each in (q, k))
        taken, forget = torch.empty((tokens, 64), dtype=kind).chunk(2, 1)
        memory = torch.empty((4, 1, 32, 128, 128))
        gates = taken, forget, gate, gate
        out = delta.gated_delta_rule(q, k, v.unflatten(1, heads), *gates, memory, run_of)
        gated_norm.gated_head_norm(out, x[:, channels:].unflatten(1, heads), x[0, :128], 1e-6)


def channels(kind: torch.dtype) -> None:
    """Kimi Delta Attention of Kimi Linear, of decodes, few tokens and a prompt."""
    heads, biases = (32, 128), torch.empty((32, 128))
    for lengths in ([(1, 1), (1, 7)], [(5, 9)], [(300, 300)]):
        tokens = sum(count for count, _ in lengths)
        x = torch.empty((tokens, 5 * 4096 + 32), dtype=kind)
        parts = x[:, 32:].unflatten(1, (5, *heads)).unbind(1)
        gates = x[:, :32], parts[3], biases[:, 0].contiguous(), biases
        memory = torch.empty((4, 1, 32, 128, 128))
        for bound in (0.0, -5.0):  # as in Ling 3.0
            given = *parts[:3], *gates, memory, runs(lengths, CPU)
            out = delta.gated_delta_rule(*given, bound=bound)
        gated_norm.gated_head_norm(out, parts[4], x[0, :128], 1e-5, activation="sigmoid")


def mamba(kind: torch.dtype, heads: int, groups: int, rows: int) -> None:
    """Mamba-2 with states of `rows` x 64, of decodes, few tokens and a prompt."""
    inner, both, gate = 64 * heads, rows * groups, torch.empty(heads)
    for lengths in ([(1, 1), (1, 7)], [(5, 9)], [(300, 300)]):
        run_of = runs(lengths, CPU)
        tokens = sum(count for count, _ in lengths)
        x = torch.empty((tokens, inner + 2 * both + heads), dtype=kind)
        states = torch.empty((4, 1, 1, inner + 2 * both, 3), dtype=kind)
        weight, channels = torch.empty((inner + 2 * both, 4), dtype=kind), x[:, :-heads]
        mixed = convolution.causal_conv(channels, weight, states, run_of, bias=x[0, :-heads])
        values, b, c = mixed.split([inner, both, both], 1)
        b, c = (each.unflatten(1, (groups, rows)) for each in (b, c))
        memory, values = torch.empty((4, 1, heads, rows, 64)), values.unflatten(1, (heads, 64))
        given = values, b, c, x[:, -heads:], (gate, gate, gate), memory, run_of
        out = scan.selective_scan(*given, (0.0, math.inf)).flatten(1).unflatten(1, (groups, -1))
        gated_norm.gated_head_norm(out, out, out[0], 1e-5, gate_first=True)


def lightning(kind: torch.dtype) -> None:
    """Lightning attention of MiniMax-Text-01 on one of 8 ranks, of decodes, few tokens and a
    prompt."""
    heads, none = (8, 128), torch.zeros(8)
    for lengths in ([(1, 1), (1, 7)], [(5, 9)], [(300, 300)]):
        tokens = sum(count for count, _ in lengths)
        q, k, v = torch.empty((tokens, 3, *heads), dtype=kind).unbind(1)
        step = torch.zeros((1, 8), dtype=kind).expand(tokens, -1)
        memory = torch.empty((4, 1, 8, 128, 128))
        given = v, k, q, step, (none, none, none), memory, runs(lengths, CPU)
        scan.selective_scan(*given, (1.0, 1.0))


def mamba1(kind: torch.dtype) -> None:
    """Mamba-1 of Jamba 1.7 Mini, and of Zamba 7B with two heads, of decodes and a prompt."""
    for channels, heads in ((8192, 1), (7424, 2)):
        channels_of(channels, heads, kind)


def channels_of(channels: int, heads: int, kind: torch.dtype) -> None:
    """Heads of Mamba-1 with these channels together."""
    rows = 16
    decay, others = torch.empty((channels, rows)), torch.empty(channels)
    for lengths in ([(1, 1), (1, 7)], [(5, 9), (300, 300)]):
        tokens = sum(count for count, _ in lengths)
        x, step, gate = torch.empty((3, tokens, channels), dtype=kind)
        mixed = torch.empty((tokens, heads, 256 + 2 * rows), dtype=kind)
        _, b, c = mixed.split([256, rows, rows], 2)
        memory = torch.empty((4, 1, 1, rows, channels))
        given = x, b, c, step, gate, (decay, others, others), memory
        channel_scan.channel_scan(*given, runs(lengths, CPU))


def rg_lru(kind: torch.dtype) -> None:
    """RecurrentGemma 2B, of decodes and a prompt."""
    channels, of_gates = 2560, (10, 2, 256)
    for lengths in ([(1, 1), (1, 7)], [(5, 9), (300, 300)]):
        tokens = sum(count for count, _ in lengths)
        x, beside = torch.empty((2, tokens, channels), dtype=kind)
        gates = torch.empty((tokens, *of_gates), dtype=kind)
        numbers, memory = (torch.empty(channels), torch.empty(of_gates)), torch.empty((4, channels))
        given = x, gates, beside, numbers, memory.view(4, 1, 1, 1, channels)
        gated_unit.rg_lru(*given, runs(lengths, CPU))


def pretend() -> None:
    """A GPU with these processors and this shared memory."""
    driver.set_active(Absent(CAPABILITY))
    JITFunction.run = compile_only
    for module in (splits, choice, latent_splits):
        module.processors = lambda _device: PROCESSORS
    prefill.is_hopper = lambda _device: CAPABILITY == 90  # of its tiles
    for module in (choice, experts, latent, recurrence_triton):
        module.shared_bytes = lambda _device: SHARED_BYTES


def caches_of_keys(kinds: tuple[torch.dtype, ...]) -> None:
    """Attention, and what writes its caches."""
    for layer in (layer for layer in LAYERS if layer[3] in kinds):
        attention(*layer)
    read_alone(Heads(8, 1, 512, 16))
    for kv in KINDS:
        for layer in (LAYERS[0], LAYERS[2]):
            attention(*layer, kv)
        write(LAYERS[0][0], kv)
    for heads in (16, 20, 128):  # DeepSeek-V2-Lite, GLM-4.7-Flash, DeepSeek-V3
        latents(heads, BF16)
    if F32 in kinds:
        latents(16, F32)
    for kind in kinds:
        if kind is not torch.float16:
            indexers(kind)
    sinks(BF16)
    pools(BF16)
    shared_keys(BF16)
    windows(BF16)
    chosen_blocks(BF16)
    token_convolutions(BF16)
    blocks_of_heads(BF16)


def main() -> None:
    pretend()
    # Between the limits of the other two GPUs an A100 compiles what most models run.
    kinds = (BF16,) if CAPABILITY == 80 else (BF16, torch.float16, F32)
    caches_of_keys(kinds)
    for kind in kinds:
        recurrent(kind)
        channels(kind)
        mamba(kind, 48, 1, 128)  # Granite 4.0 H Tiny
        mamba(kind, 128, 8, 128)  # Nemotron-H 8B
        mamba(kind, 48, 1, 256)  # Falcon-H1 1.5B
        lightning(kind)
        mamba1(kind)
        rg_lru(kind)
    for activation in ACTIVATIONS:
        limit = {"limited_silu": 10.0, "clamped_swiglu": 7.0}.get(activation, 0.0)
        act_mul(torch.empty((3, 2 * 14336), dtype=torch.bfloat16), activation, limit)
    act_mul(torch.empty((3, 2 * 1280), dtype=torch.bfloat16), "silu", 16.0)
    balance.sinkhorn(torch.empty((3, 4, 4)), 20, 1e-6)
    weight = torch.empty((2 * 14336, 4096), dtype=torch.bfloat16)
    for rows in (rows for rows in BUCKETS if rows <= 64):
        choice.linear(torch.empty((rows, 4096), dtype=torch.bfloat16), weight, None, gated=True)
    mixtures()


if __name__ == "__main__":
    main()
