"""Compiles the kernels for Hopper GPUs on a machine without one: `python compile_hopper.py`.

Prints a line for each. Fails where this version of Triton takes one of them no more: Gluon, which
they are written in, is an experiment of Triton's, whose names change.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from absent import Absent
from penstock_kernels.case import QUANTIZED_KV, Heads, paged, stored
from penstock_kernels.expert_mlp import Activation, Experts
from penstock_kernels.expert_mlp import hopper_float8 as experts_float8
from penstock_kernels.expert_mlp import hopper_many as experts_many
from penstock_kernels.expert_mlp import hopper_many_codes as experts_codes
from penstock_kernels.expert_mlp import triton as experts
from penstock_kernels.linear import hopper as product
from penstock_kernels.linear import triton as choice
from penstock_kernels.linear.plan import TALL, Problem
from penstock_kernels.packed_linear import Kind, PackedWeight, pack
from penstock_kernels.packed_linear import hopper as packed
from penstock_kernels.packed_linear import hopper_many as packed_many
from penstock_kernels.packed_linear import hopper_row as packed_row
from penstock_kernels.paged_decode_attention import hopper as decode
from penstock_kernels.paged_decode_attention import hopper_quantized as decode_quantized
from penstock_kernels.paged_decode_attention.cases import decode_arguments
from penstock_kernels.paged_prefill_attention import hopper as prefill
from penstock_kernels.paged_prefill_attention import splits
from penstock_kernels.peer_sum import probe
from penstock_kernels.peer_sum import triton as peer_sum
from penstock_kernels.rms_norm import NormInput
from penstock_kernels.route_experts import Routed
from sass import early_releases
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import driver
from triton.runtime.jit import JITFunction

CPU = torch.device("cpu")
PROCESSORS = 132  # of an H200
SHARED_BYTES = 232_448  # that a program may have there


launch = JITFunction.run


def _has_descriptor(values: tuple[Any, ...]) -> bool:
    return any(isinstance(value, TensorDescriptor) for value in values)


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """In place of a launch."""
    kernel = launch(self, *args, grid=grid, warmup=True, **options)
    may_be_zeros = self.fn is decode_quantized._attend.fn
    assert not early_releases(kernel.asm["cubin"], before_barrier=may_be_zeros)
    # Arguments that compile, but that this version of Triton cannot pass.
    assert not any(isinstance(arg, tuple) and _has_descriptor(arg) for arg in args)
    assert kernel.metadata.shared <= SHARED_BYTES
    sys.stdout.write(f"{self.__module__}.{self.__name__}: compiled\n")
    return kernel


def attention(heads: Heads, quantized: tuple[str, ...], aligned: bool = False) -> None:
    """Decode, and prefill of few rows and of many, which are kernels of their own; both over
    `quantized` caches too, prefill over the first kind. Of heads of 256 also decode that only
    reads."""
    sinks = torch.zeros(heads.query)
    plain = [("", False), ("", True)] if heads.size == 256 else [("", False)]
    for kv, reads in (*plain, *((kv, False) for kv in quantized)):
        case = decode_arguments(heads, [40, 0], torch.bfloat16, CPU, kv=kv)
        cache, *places = (case[name] for name in ("kv_cache", "block_tables", "slots", "kv_len"))
        names = "q", "k", "v", "cos_sin", "slot_mapping"
        tensors = *(case[name] for name in names), torch.empty_like(case["q"])
        kernel = decode_quantized if kv else decode
        memory = (cache, *places, case.get("kv_params"))
        assert kernel.launch(tensors, memory, (0.1, 20 * aligned, aligned, sinks), reads)
    many = [(1100, kv) for kv in ("", *quantized[:1])]
    for tokens, kv in ((40, ""), *many[aligned:]):
        q = torch.empty((tokens, heads.query, heads.size), dtype=torch.bfloat16)
        start = torch.tensor([0, tokens], dtype=torch.int32)
        pages = stored(paged([tokens], heads, torch.bfloat16, CPU), kv)
        cache = pages["kv_cache"], pages["block_tables"], pages["slots"], start, pages["kv_len"]
        out = torch.empty_like(q)
        assert prefill.launch((q, out), cache, pages.get("kv_params"), (0.1, 50, aligned, sinks))


def gated() -> None:
    """A product for each tiling, and products that are cuBLAS's."""
    weight = torch.empty((2 * 14336, 512), dtype=torch.bfloat16)
    problem = Problem(outputs=14336, inputs=512, gated=True)
    for rows, taken in ((192, True), (256, True), (1024, True), (500, False)):
        x, out = (torch.empty((rows, size), dtype=torch.bfloat16) for size in (512, 14336))
        tiles = choice._tiles(problem, x)
        assert (tiles is not None) == taken
        assert tiles is None or product.launch(tiles, x, weight, out)
    x, out = x[:192], out[:192]
    assert not product.launch(TALL, x[:, :480], weight[:, :480].contiguous(), out)
    assert not product.launch(TALL, x.float(), weight.float(), out.float())
    assert not product.launch(TALL, torch.empty(192, 515).to(x)[:, :512], weight, out)


def packed_weight(kind: Kind, inputs: int, group: int) -> PackedWeight:
    """256 outputs, with zero points where the kind has them."""
    words = pack(torch.zeros((256, inputs), dtype=torch.uint8), kind)
    scales = torch.empty((inputs // group, 256), dtype=torch.bfloat16)
    return PackedWeight(words, scales, scales if kind.integer else None, kind, inputs)


def packed_product(kind: Kind, rows: int, group: int, gated: bool = False) -> None:
    """A product with packed weights."""
    x, out = (torch.empty((rows, size), dtype=torch.bfloat16) for size in (512, 256))
    weight = packed_weight(kind, 512, group)
    assert packed.launch(x, weight, None, gated, out[:, :128] if gated else out)


def packed_many_product(kind: Kind, group: int, gated: bool = False) -> None:
    """A product of many rows with packed weights; weights and rows it does not take."""
    weight = packed_weight(kind, 512, group)
    rows = 256 * PROCESSORS
    x, out = (torch.empty((rows, size), dtype=torch.bfloat16) for size in (512, 256))
    if gated:
        out = out[:, :128]
    assert packed_many.launch(x, weight, None if gated else out[0], gated, out) == (group > 16)
    assert not packed_many.launch(x[:256], weight, None, gated, out[:256])
    assert not packed_many.launch(x, packed_weight(Kind.INT8, 512, 128), None, gated, out)


def packed_row_product(kind: Kind, inputs: int, group: int, gated: bool = False) -> None:
    """A product of one row with packed weights, gated ones of a norm; weights it does not take."""
    x, out = (torch.empty((1, size), dtype=torch.bfloat16) for size in (inputs, 256))
    weight = packed_weight(kind, inputs, group)
    if gated:
        norm = NormInput(x, x, x[0], 1e-5), torch.empty_like(x)
        assert packed_row.launch(x, weight, None, gated, out[:, :128], norm)
        assert not packed_row.launch(x, weight, None, gated, out[:, :120])
    else:
        assert packed_row.launch(x, weight, out[0], gated, out)
        assert not packed_row.launch(x.float(), weight, out[0], gated, out.float())


def mixture(kind: Kind, tokens: int, group: int, activation: Activation, inner: int = 128) -> None:
    """Experts with packed weights: both products."""

    def packed_experts(outputs: int, inputs: int) -> PackedWeight:
        words = pack(torch.zeros((outputs, inputs), dtype=torch.uint8), kind)
        scales = torch.empty((4, inputs // group, outputs), dtype=torch.bfloat16)
        zeros = scales if kind.integer else None
        return PackedWeight(torch.stack([words] * 4), scales, zeros, kind, inputs)

    gate_up = packed_experts(inner * (1 + activation.gated), 512)
    layer = Experts(gate_up, packed_experts(512, inner), activation=activation)
    ids = torch.empty((tokens, 2), dtype=torch.int32)
    x = torch.empty((tokens, 512), dtype=torch.bfloat16)
    experts.expert_mlp(x, Routed(ids, torch.empty(ids.shape)), layer)


def plain_mixture(tokens: int, activation: Activation, dtype: torch.dtype) -> None:
    """Experts of many rows with weights of 16 bits: both products, one with float32 sums."""
    sizes = (512, 200)  # the second is no multiple of a tile's outputs, nor of a turn's inputs
    gate_up = torch.empty((4, sizes[1] * (1 + activation.gated), sizes[0]), dtype=dtype)
    biases = torch.empty(gate_up.shape[:2]), torch.empty(4, sizes[0])
    layer = Experts(gate_up, torch.empty((4, *sizes), dtype=dtype), *biases, activation)
    ids = torch.empty((tokens, 2), dtype=torch.int32)
    x = torch.empty((tokens, sizes[0]), dtype=dtype)
    experts.expert_mlp(x, Routed(ids, torch.empty(ids.shape)), layer)


def main() -> None:
    driver.set_active(Absent())
    JITFunction.run = compile_only
    choice.is_hopper = lambda _device: True
    packed_kernels = packed, packed_many, packed_row
    of_all = decode, decode_quantized, prefill, splits, product, choice
    for module in (experts_codes, experts_float8, experts_many, *of_all, *packed_kernels):
        module.processors = lambda _device: PROCESSORS
    for module in (decode, decode_quantized, peer_sum, *packed_kernels):
        module.early_launch = lambda _device: True
    every = tuple(reversed(QUANTIZED_KV))
    kinds = (8, 64, ("int4", "e5m2")), (8, 128, every), (2, 128, ("e4m3",)), (8, 256, ())
    for kv, size, quantized in kinds:
        attention(Heads(query=32, kv=kv, size=size, block_tokens=16), quantized)
    attention(Heads(query=40, kv=8, size=128, block_tokens=16), ("e4m3",), aligned=True)
    gated()
    for kind in Kind:
        packed_product(kind, rows=20, group=64, gated=True)
        packed_product(kind, rows=256, group=128)
        packed_row_product(kind, inputs=4096, group=128, gated=True)
        packed_row_product(kind, inputs=14336, group=14336 if kind is Kind.FP8 else 16)
        packed_row_product(kind, inputs=28672, group=128)
    packed_many_product(Kind.INT4, group=128)
    packed_many_product(Kind.INT4, group=16)  # its zeros and scales do not fit the ring
    packed_many_product(Kind.INT4, group=512, gated=True)
    packed_many_product(Kind.FP4, group=32, gated=True)
    many = experts.HOPPER_MANY, experts.HOPPER_MANY_CODES, experts.HOPPER_FLOAT8
    hopper = experts.HOPPER, experts.HOPPER_VECTORS, *many
    for kernel in hopper:
        kernel.applies = lambda _device: True
    for tokens in (1, 5):
        mixture(Kind.FP4, tokens, 32, Activation.SILU)
        mixture(Kind.FP8, tokens, 128, Activation.SILU)
    mixture(Kind.FP8, 1, 128, Activation.RELU_SQUARED, inner=2048)  # two programs share it
    mixture(Kind.FP4, 5, 32, Activation.RELU_SQUARED)
    mixture(Kind.FP4, 2000, 32, Activation.CLAMPED_SWIGLU)
    for activation in (Activation.SILU, Activation.RELU_SQUARED):
        mixture(Kind.INT4, 2000, 128, activation)
        mixture(Kind.FP8, 2000, 128, activation)
    plain_mixture(200, Activation.CLAMPED_SWIGLU, torch.float16)
    for activation in (
        Activation.LIMITED_SILU,
        Activation.CAPPED_SILU,
        Activation.SOFTCAPPED_SILU,
    ):
        plain_mixture(200, activation, torch.bfloat16)
        mixture(Kind.INT4, 2000, 128, activation)
    mixture(Kind.FP8, 1, 128, Activation.CAPPED_SILU)
    plain_mixture(2000, Activation.RELU_SQUARED, torch.bfloat16)
    # Where one cannot be built, another one is used.
    assert all(kernel.available(CPU) for kernel in hopper)
    probe(CPU)


if __name__ == "__main__":
    main()
