"""Cases of expert_mlp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..case import DTYPES, TOLERANCE, Case, Size
from ..device import power_of_two
from ..packed_linear.weight import Kind, PackedWeight, pack
from ..route_experts.routing import Routed
from .experts import Activation, Experts, Matrices
from .plan import FEW_TILE_ROWS

# Operations of an H100's matrix units while it reads a byte: cases above that are bound by them.
OPERATIONS_PER_BYTE = 240


@dataclass(frozen=True)
class Packing:
    """How a case's matrices are packed."""

    kind: Kind
    group: int
    zeros: bool = False


@dataclass(frozen=True)
class Problem:
    """Shapes of a case."""

    tokens: int
    experts: int
    top_k: int
    hidden: int
    inner: int
    activation: Activation = Activation.SILU
    bias: bool = False
    packing: Packing | None = None
    skew: float = 0.0
    """Expert i is chosen in proportion to 1 / (i + 1) ** skew; 0: all equally often."""
    first: int = 0
    """Experts of the model before those of this rank."""
    after: int = 0
    """And after them."""

    @cached_property
    def ids(self) -> Tensor:
        """Experts [T, top_k] int32 of the tokens, different ones of a token."""
        everyone = self.first + self.experts + self.after
        if not self.skew:
            choices = torch.arange(self.tokens * self.top_k, dtype=torch.int32)
            return (choices % everyone).view(self.tokens, self.top_k)
        drawn = torch.Generator().manual_seed(everyone)
        odds = torch.arange(1.0, everyone + 1) ** -self.skew
        rows = odds.expand(self.tokens, everyone)
        return torch.multinomial(rows, self.top_k, generator=drawn).int()

    @property
    def used(self) -> int:
        """Experts of this rank that have tokens."""
        here = (self.ids >= self.first) & (self.ids < self.first + self.experts)
        return len(self.ids[here].unique())

    @property
    def chosen(self) -> int:
        """Choices of experts of this rank."""
        return int(((self.ids >= self.first) & (self.ids < self.first + self.experts)).sum())


def _case(size: Size, dtype_name: str, problem: Problem, name: str = "") -> Case:
    dtype = DTYPES[dtype_name]

    def make(device: torch.device) -> dict[str, Any]:
        # Rows of x may be strided, as slices of fused outputs are.
        pad = 0 if size is Size.BENCH else 8
        x = torch.randn(problem.tokens, problem.hidden + pad, device=device, dtype=dtype)
        weights = torch.rand(problem.ids.shape, device=device) + 0.05
        weights = weights / weights.sum(-1, keepdim=True)
        routed = Routed(problem.ids.to(device), weights)
        experts = _experts(problem, dtype, device)
        return {"x": x[:, : problem.hidden], "routed": routed, "experts": experts}

    packing = problem.packing
    elements = (2 + problem.activation.gated) * problem.inner * problem.hidden
    bits = packing.kind.bits if packing else 8 * dtype.itemsize
    moved = problem.used * elements * bits // 8
    moved += 2 * problem.tokens * problem.hidden * dtype.itemsize
    operations = 2 * problem.chosen * elements
    bound = operations > OPERATIONS_PER_BYTE * moved
    # Gates and ups, what the activation makes, and the summands of many rows are rounded; where a
    # GPU multiplies float8, rows of x and what the activation makes, to 4 bits.
    everyone = problem.first + problem.experts + problem.after
    mean = power_of_two(problem.tokens) * problem.top_k / everyone
    float8 = packing == FP8 and dtype == torch.bfloat16 and mean > FEW_TILE_ROWS[-1][1]
    tolerance = 0.09 if float8 else 4 * TOLERANCE[dtype]
    return Case(
        _name(dtype_name, problem, name), size, make, tolerance, moved, operations if bound else 0
    )


def _name(dtype_name: str, problem: Problem, name: str) -> str:
    kind = problem.packing.kind.value if problem.packing else dtype_name
    shape = f"{problem.hidden}x{problem.inner}"
    full = f"{kind}-{problem.tokens}-of{problem.experts}-top{problem.top_k}-{shape}"
    if problem.activation is not Activation.SILU:
        full += f"-{problem.activation.value}"
    if problem.packing:
        full += f"-g{problem.packing.group}{'-zeros' if problem.packing.zeros else ''}"
    full += "-bias" if problem.bias else ""
    full += f"-skew{problem.skew:g}" if problem.skew else ""
    return full + (f"-{name}" if name else "")


def _experts(problem: Problem, dtype: torch.dtype, device: torch.device) -> Experts:
    count, hidden, inner = problem.experts, problem.hidden, problem.inner
    first = inner * (1 + problem.activation.gated)

    def bias(outputs: int) -> Tensor | None:
        if not problem.bias:
            return None
        found = torch.randn(count, outputs, device=device, dtype=dtype)
        # So that gates and ups reach their limits.
        return 8 * found if problem.activation in (LIMITED, CAPPED) else found

    return Experts(
        gate_up=_matrices(problem, (first, hidden), dtype, device),
        down=_matrices(problem, (hidden, inner), dtype, device),
        gate_up_bias=bias(first),
        down_bias=bias(hidden),
        activation=problem.activation,
        first=problem.first,
        elsewhere=problem.first + problem.after,
    )


def _matrices(
    problem: Problem, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Matrices:
    if problem.packing is None:
        drawn = torch.empty((problem.experts, *shape), device=device, dtype=dtype)
        return drawn.normal_().mul_(shape[1] ** -0.5)
    kind = problem.packing.kind
    codes = torch.randint(1 << kind.bits, (problem.experts, *shape), device=device)
    if kind is Kind.FP8:
        codes[codes & 0x7F == 0x7F] = 0x7E  # NaN
    words = torch.stack([pack(matrix.to(torch.uint8), kind) for matrix in codes])
    largest = {Kind.INT4: 8, Kind.INT8: 128, Kind.FP8: 100, Kind.FP4: 4}[kind]
    groups = problem.experts, shape[1] // problem.packing.group, shape[0]
    scales = torch.exp2(-3 * torch.rand(groups, device=device)) / largest * shape[1] ** -0.5
    zeros = None
    if problem.packing.zeros:
        zeros = torch.randint(1 << kind.bits, groups, device=device).to(dtype)
    return PackedWeight(words, scales.to(dtype), zeros, kind, shape[1])


INT4 = Packing(Kind.INT4, 64)
INT4_ZEROS = Packing(Kind.INT4, 32, zeros=True)
FP8 = Packing(Kind.FP8, 128)
MXFP4 = Packing(Kind.FP4, 32)
MXFP8 = Packing(Kind.FP8, 32)
CLAMPED, GELU = Activation.CLAMPED_SWIGLU, Activation.GELU_TANH
UNGATED, LIMITED = Activation.RELU_SQUARED, Activation.LIMITED_SILU
CAPPED, SOFTCAPPED = Activation.CAPPED_SILU, Activation.SOFTCAPPED_SILU

SMALL = [
    ("f16", Problem(1, 8, 2, 64, 48), "one"),
    ("f32", Problem(1, 3, 3, 72, 40, bias=True), "all"),
    ("f16", Problem(5, 7, 2, 80, 72), ""),
    ("f32", Problem(6, 5, 3, 96, 56, CLAMPED, bias=True), ""),
    ("f32", Problem(6, 5, 3, 96, 56, LIMITED, bias=True), ""),
    ("f32", Problem(6, 5, 3, 96, 56, CAPPED, bias=True), ""),
    ("f32", Problem(6, 5, 3, 96, 56, SOFTCAPPED, bias=True), ""),
    ("f16", Problem(1, 5, 3, 96, 64, SOFTCAPPED), "one"),
    ("f16", Problem(7, 6, 2, 64, 64, GELU, skew=2.0), ""),
    ("f16", Problem(20, 3, 1, 64, 32, skew=30.0), "all-on-one"),
    ("f16", Problem(70, 4, 2, 64, 48, bias=True, skew=1.0), "many"),
    ("f16", Problem(5, 4, 3, 64, 32, bias=True, first=3, after=2), "rank"),
    ("f16", Problem(1, 2, 2, 64, 32, first=4), "no-expert-here"),
    ("f16", Problem(0, 4, 2, 64, 32), "none"),
    ("f16", Problem(3, 4, 2, 128, 64, packing=INT4), ""),
    ("f16", Problem(2, 3, 2, 64, 96, CLAMPED, bias=True, packing=MXFP4), "tail"),
    ("f16", Problem(1, 3, 2, 128, 128, packing=FP8), ""),
    ("f16", Problem(2, 3, 2, 64, 96, SOFTCAPPED, packing=MXFP8), "tail"),
    ("f16", Problem(4, 3, 2, 64, 64, packing=INT4_ZEROS, first=1), "rank"),
    ("f16", Problem(1, 5, 3, 80, 40, UNGATED, bias=True), "one"),
    ("f16", Problem(9, 4, 2, 64, 72, UNGATED, bias=True, first=2, after=1), "rank"),
    ("f32", Problem(3, 4, 2, 72, 40, UNGATED), ""),
    ("f16", Problem(3, 4, 2, 64, 96, UNGATED, packing=INT4), "tail"),
    ("f16", Problem(1, 4, 2, 128, 128, UNGATED, packing=FP8), ""),
]

# Qwen3-30B-A3B, gpt-oss 20B, Mixtral 8x7B, Nemotron 3 Nano 30B-A3B, Hunyuan 4, Step 3.5 Flash of
# four ranks.
QWEN3 = Problem(1, 128, 8, 2048, 768)
GPT_OSS = Problem(1, 32, 4, 2880, 2880, CLAMPED, bias=True)
MIXTRAL = Problem(1, 8, 2, 4096, 14336)
NEMOTRON = Problem(1, 128, 6, 2688, 1856, UNGATED)
HY4 = Problem(1, 256, 8, 2816, 768, LIMITED)
STEP = Problem(1, 288, 8, 4096, 320, CAPPED)
MIDDLE = Problem(1, 20, 3, 520, 200)

FULL = [
    *(("bf16", replace(QWEN3, tokens=tokens), "") for tokens in (2, 7, 32, 300, 1100)),
    *(("bf16", replace(QWEN3, tokens=tokens, skew=1.2), "") for tokens in (1, 5, 64, 700)),
    *(("bf16", replace(GPT_OSS, tokens=tokens), "") for tokens in (3, 40, 500)),
    *(("bf16", replace(MIXTRAL, tokens=tokens), "") for tokens in (4, 90)),
    *(("bf16", replace(HY4, tokens=tokens), "") for tokens in (1, 40, 1100)),
    *(("bf16", replace(STEP, tokens=tokens), "") for tokens in (1, 40, 1100)),
    *(("f32", replace(MIDDLE, tokens=tokens, activation=LIMITED), "") for tokens in (1, 200)),
    *(("bf16", replace(MIDDLE, tokens=tokens, activation=SOFTCAPPED), "") for tokens in (1, 200)),
    *(
        ("f32", replace(MIDDLE, tokens=tokens, activation=CAPPED, bias=True), "")
        for tokens in (1, 200)
    ),
    *(("f16", replace(MIDDLE, tokens=tokens, bias=True), "") for tokens in (1, 6, 33, 400)),
    *(("bf16", replace(MIDDLE, tokens=tokens, skew=30.0), "one") for tokens in (4, 33, 1000)),
    *(("bf16", replace(MIDDLE, tokens=tokens, first=9, after=7), "rank") for tokens in (1, 9, 500)),
    *(("f32", replace(MIDDLE, tokens=tokens, activation=GELU), "") for tokens in (1, 5, 200)),
    ("bf16", replace(QWEN3, tokens=9, experts=70, first=58), "rank"),
    *(
        ("bf16", replace(GPT_OSS, tokens=tokens, experts=8, packing=MXFP4), "")
        for tokens in (1, 5, 64, 400)
    ),
    ("bf16", replace(GPT_OSS, tokens=700, experts=8, packing=MXFP4, skew=1.2), ""),
    *(
        ("bf16", Problem(tokens, 24, 4, 1024, 384, packing=packing), "")
        for packing in (FP8, Packing(Kind.INT4, 128), Packing(Kind.INT4, 128, zeros=True))
        for tokens in (1, 7, 60, 600)
    ),
    *(
        ("bf16", replace(problem, packing=FP8), "")
        for problem in (
            Problem(300, 5, 2, 512, 384, GELU, bias=True, first=2, after=1),
            Problem(700, 20, 4, 384, 256, UNGATED, skew=1.5),
            replace(QWEN3, tokens=500, skew=0.8),
        )
    ),
    *(
        ("bf16", Problem(tokens, 24, 4, 1024, 384, SOFTCAPPED, packing=MXFP8), "")
        for tokens in (1, 7, 60, 600)
    ),
    ("bf16", Problem(11, 6, 2, 320, 96, packing=MXFP4), "tail"),
    *(("bf16", replace(NEMOTRON, tokens=tokens), "") for tokens in (1, 5, 60, 700)),
    *(
        ("bf16", replace(NEMOTRON, tokens=tokens, experts=16, bias=True, packing=packing), "")
        for packing in (Packing(Kind.FP8, 64), Packing(Kind.INT4, 64), MXFP4)
        for tokens in (1, 5, 600)
    ),
    ("bf16", Problem(1, 8, 4, 1024, 512, UNGATED, packing=FP8), ""),
    # Programs share the inputs of the second product of one token.
    *(
        ("bf16", replace(QWEN3, tokens=tokens, experts=18, bias=True, packing=FP8, first=2), "rank")
        for tokens in (1, 2)
    ),
]

BENCH = [
    *(
        ("bf16", replace(shape, tokens=tokens, skew=skew), "")
        for shape in (
            MIXTRAL,
            replace(QWEN3, experts=64),
            QWEN3,
            replace(QWEN3, experts=256),
        )
        for skew in (0.0, 0.8)
        for tokens in (1, 8, 64, 512, 4096)
    ),
    *(("bf16", replace(GPT_OSS, tokens=tokens), "") for tokens in (1, 32, 256)),
    *(
        ("bf16", replace(GPT_OSS, tokens=tokens, packing=MXFP4), "")
        for tokens in (1, 8, 32, 256, 512, 1024, 4096)
    ),
    *(
        ("bf16", replace(QWEN3, tokens=tokens, packing=FP8), "")
        for tokens in (1, 8, 128, 512, 4096)
    ),
    *(("bf16", replace(NEMOTRON, tokens=tokens), "") for tokens in (1, 8, 64, 4096)),
]

CASES = [
    *(_case(Size.SMALL, *one) for one in SMALL),
    *(_case(Size.FULL, *one) for one in FULL),
    *(_case(Size.BENCH, *one) for one in BENCH),
]
