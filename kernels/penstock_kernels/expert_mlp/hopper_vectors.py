"""Kernels of packed experts of one token or two on Hopper GPUs, in Gluon: words to registers.

As in `vectors` nothing is sorted: a choice's expert is read where its weights are. A program makes
16 outputs, of a choice's gates and ups, or of the weighted sum over a token's choices. Its warps
share a choice's inputs; in the second kernel, each choice has warps of its own. A warp makes
numbers of its words as operands of a small matrix instruction (m16n8k16), all of whose 8 columns
are the same row. At the end the warps' sums are added, in the order of warps. Words of fp8 are
loaded as whole lines, as `packed_linear.hopper_row` does.

The second kernel loads its first words before the first one has ended.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, power_of_two, processors
from ..hopper import KINDS, as_blocks, barrier
from ..packed_linear.hopper_codes import (
    halves_of_lines,
    lines_layout,
    pieces,
    strip_layout,
    x_layout,
)
from ..packed_linear.line_codes import add_lines, by_output, numbers_of_line, powers_of, unit
from ..packed_linear.parts import add_parts, with_parts
from ..packed_linear.weight import Kind, PackedWeight
from ..route_experts.routing import Routed
from .experts import Experts
from .hopper import activated

LINE = gl.constexpr(16)  # outputs of a matrix instruction
TURN = gl.constexpr(128)  # inputs of a warp's turn
HALF = gl.constexpr(64)
# Of a program. With gpt-oss 20b's MXFP4 experts, one token and an H100, both products take 34.6 us
# with 4 warps in the first, 36.4 with 8; 45.9 us if nothing splits the second's inputs, 37.9 if
# three programs share them. Qwen3 30B-A3B in fp8 on an H200: 15.4 us, of two tokens 24.7, and 32.7
# if threads of the first product have so few registers that they spill.
FIRST_WARPS, SECOND_WARPS = 4, 8
MOST_CHOICES = 16  # of a token: each has a warp of its own in the second product
FIRST_STAGES, SECOND_STAGES = 1, 2  # turns whose words a warp has in its registers
RESIDENT = 3  # programs of the second product on a multiprocessor, unless they had MOST_TURNS
MOST_TURNS = 6
LEAST_REGISTERS, MOST_REGISTERS = 80, 128  # of a thread


@gluon.jit
def _experts(routed, token, L: gl.constexpr, PARTS: gl.constexpr, WARPS: gl.constexpr):
    """Of each warp [WARPS]: its expert's place, its choice, and whether the expert is here."""
    ids, first, count, top_k = routed
    number = gl.arange(0, WARPS, L) // PARTS
    choice = token * top_k + number
    expert = gl.load(ids + choice, mask=number < top_k, other=-1, cache_modifier=".cg") - first
    here = (number < top_k) & (expert >= 0) & (expert < count)
    return gl.where(here, expert, 0).to(gl.int64), choice, here


@gluon.jit
def _words(
    words, line, turn, sizes,
    KIND: gl.constexpr, EVEN: gl.constexpr, PARTS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Loads the words of 16 outputs and of a turn of every warp; `words` [WARPS] point at their
    matrices. Of fp8, (those of 8 outputs, those of the others), else of half a turn each."""
    outputs, _, width = sizes
    if KIND == "fp8":
        L: gl.constexpr = lines_layout(WARPS)
        W: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, L))
        k = (turn * PARTS + gl.arange(0, WARPS, W) % PARTS) * TURN
        n = line * LINE + gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, L)))
        at = (words + k // 4)[:, None, None]
        at += gl.minimum(n, outputs - 1).to(gl.int64)[None, :, None] * (width // 4)
        at += gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
        found = gl.load(at) if EVEN else gl.load(at, mask=(k < width)[:, None, None], other=0)
        return halves_of_lines(found)
    else:  # noqa: RET505
        return (
            _half_of_words(words, line, turn, width, 0, KIND, EVEN, PARTS, WARPS),
            _half_of_words(words, line, turn, width, 1, KIND, EVEN, PARTS, WARPS),
        )


@gluon.jit
def _half_of_words(
    words, line, turn, width, half: gl.constexpr,
    KIND: gl.constexpr, EVEN: gl.constexpr, PARTS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    L: gl.constexpr = strip_layout(KIND, 4, WARPS)
    W: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, L))
    N: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, L))
    C: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, L))
    k = (turn * PARTS + gl.arange(0, WARPS, W) % PARTS) * TURN + half * HALF
    block = (line // 4).to(gl.int64) * width * 8 + line % 4 * 128
    at = (words + (block + k * 8))[:, None, None] + gl.arange(0, 1, N)[None, :, None]
    at += gl.arange(0, 128, C)[None, None, :]
    if EVEN:
        return gl.load(at)
    return gl.load(at, mask=(k < width)[:, None, None], other=0)


@gluon.jit
def _of_groups(
    table, line, turn, sizes, at: gl.constexpr, PIECE: gl.constexpr, KIND: gl.constexpr,
    GROUP: gl.constexpr, L: gl.constexpr, PARTS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Scales [WARPS, 16] of sum `at` of each warp's turn, of fp8 of set `at` of outputs."""
    outputs, inputs, _ = sizes
    row = gl.arange(0, 16, gl.SliceLayout(0, L))
    n = line * LINE + (at * 8 + row // 2 if KIND == "fp8" else row)
    n = gl.minimum(n, outputs - 1)
    if GROUP == 0:
        return gl.load(table[:, None] + n[None, :])
    else:  # noqa: RET505
        k = (turn * PARTS + gl.arange(0, WARPS, gl.SliceLayout(1, L)) % PARTS) * TURN
        k += at * PIECE if KIND != "fp8" else 0
        group = gl.minimum(k, inputs - 1) // GROUP  # beyond the inputs x is 0
        return gl.load((table + group * outputs)[:, None] + n[None, :])


@gluon.jit
def _load(
    tables, line, turn, sizes, KIND: gl.constexpr, PIECE: gl.constexpr,
    GROUP: gl.constexpr, EVEN: gl.constexpr, SUM: gl.constexpr, PARTS: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """A line's words of a turn, and the scale of each sum."""
    words, scales = tables
    L: gl.constexpr = gl.SliceLayout(2, SUM)
    found = _words(words, line, turn, sizes, KIND, EVEN, PARTS, WARPS)
    factors = ()
    for at in gl.static_range(2 if KIND == "fp8" else TURN // PIECE):
        one = _of_groups(scales, line, turn, sizes, at, PIECE, KIND, GROUP, L, PARTS, WARPS)
        factors = factors + (one,)  # noqa: RUF005 (Triton unpacks no tuples)
    return found, factors


@gluon.jit
def _add(sums, loaded, ring, turn, KIND: gl.constexpr, PIECE: gl.constexpr, WARPS: gl.constexpr):
    """The sums of a side, with a turn's products: [WARPS, 16, 8] of fp8's sets of outputs, else of
    all, and zeros."""
    if KIND == "fp8":
        return add_lines(sums, loaded[0], loaded[1], ring.index(turn), True)
    else:  # noqa: RET505
        return _add_halves(sums[0], loaded, ring, turn, KIND, PIECE, WARPS), sums[1]


@gluon.jit
def _add_halves(
    total, loaded, ring, turn, KIND: gl.constexpr, PIECE: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """The total [WARPS, 16, 8] with a turn's products; each sum of PIECE inputs is scaled."""
    words, scales = loaded
    SUM: gl.constexpr = total.type.layout
    A: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, SUM, 2)
    COUNT: gl.constexpr = 64 // PIECE if PIECE < 64 else 1
    blank = gl.zeros([WARPS, 16, 8], gl.float32, SUM)
    part = blank
    for half in gl.static_range(2):
        numbers = numbers_of_line(words[half], KIND)
        x = ring.index(turn * 2 + half).load(x_layout(WARPS)).reshape([WARPS, 4, 4, 2, 2])
        x = x.permute((0, 2, 3, 1, 4)).reshape([WARPS, 64])
        a, b = pieces(numbers, 2, COUNT), pieces(x, 1, COUNT)
        for at in gl.static_range(COUNT):
            left = gl.convert_layout(a[at], A, assert_trivial=True)
            right = gl.convert_layout(b[at], gl.SliceLayout(2, B), assert_trivial=True)
            right = gl.expand_dims(right, 2).broadcast_to([WARPS, 64 // COUNT, 8])
            part = mma_v2(left, right, part)
            if PIECE < 128 or half == 1:
                scale = scales[half * COUNT + at if PIECE < 128 else 0].to(gl.float32)
                total += part * scale[:, :, None]
                part = blank
    return total


@gluon.jit
def _spread(
    x, stride, choice, count, inputs, KIND: gl.constexpr, CHOICES: gl.constexpr,
    PARTS: gl.constexpr, SPAN: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """(rows of x in shared memory, what undoes their scales [WARPS]).

    Rows are those of CHOICES choices from `choice` on, from `count` on zeros: halves of turns, in
    the order in which lanes take them (see `pack`). They become float16.
    """
    WARPS: gl.constexpr = CHOICES * PARTS
    at = gl.arange(0, CHOICES * SPAN, gl.BlockedLayout([8], [32], [WARPS], [0]))
    number, k = at // SPAN, at % SPAN
    live = (number < count) & (k < inputs)
    rows = gl.load(x + (choice + number).to(gl.int64) * stride + k, mask=live, other=0)
    rows = rows.to(gl.float32).reshape([CHOICES, SPAN])
    up, down = powers_of(gl.max(gl.abs(rows), 1))
    rows = (rows * up[:, None]).to(gl.float16)
    if KIND == "fp8":  # of the bits k6 k5 k4 k3 k2 k1 k0: k2 is the half
        bits = rows.reshape([CHOICES, SPAN // TURN // PARTS, PARTS, 2, 2, 2, 2, 2, 2, 2])
        order = bits.permute((1, 7, 0, 2, 8, 3, 4, 5, 6, 9))
    else:  # k6 is the half
        bits = rows.reshape([CHOICES, SPAN // TURN // PARTS, PARTS, 2, 2, 2, 2, 4, 2])
        order = bits.permute((1, 3, 0, 2, 7, 4, 5, 6, 8))
    COUNT: gl.constexpr = SPAN // HALF // PARTS
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    memory = gl.allocate_shared_memory(gl.float16, [COUNT, WARPS, HALF], FLAT)
    memory.store(order.reshape([COUNT, WARPS, HALF]))
    every = down[:, None].broadcast_to([CHOICES, PARTS])
    downs = gl.convert_layout(every.reshape([WARPS]), L)
    barrier()
    HALVES: gl.constexpr = 2 if KIND == "fp8" else 1  # of a block
    BLOCKS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    ring = as_blocks(memory, COUNT // HALVES, HALVES * WARPS, HALF, BLOCKS)
    return ring, downs


@gluon.jit
def _bases(tables, strides, experts):
    """Pointers at the experts' words and scales."""
    return tables[0] + experts[0] * strides[0], tables[1] + experts[1] * strides[1]


@gluon.jit
def _scaled(sums, units, KIND: gl.constexpr):
    """The sums of a side, as of `by_output`, their scales undone by `units` [WARPS]."""
    wide = units[:, None, None]
    return by_output((sums[0] * wide, sums[1] * wide), KIND)


@gluon.jit
def _gates(
    sums, units, out, bias, line, inner, expert,
    KIND: gl.constexpr, HAS_BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Writes a choice's 16 outputs: gates and ups of all warps added up, and multiplied; or the
    ups, activated. `units` undo the scales of sums."""
    SIDES: gl.constexpr = len(sums)
    gates = _scaled(sums[0], units, KIND)
    ups = _scaled(sums[1], units, KIND) if SIDES == 2 else gates
    for i in gl.static_range(len(gates)):
        gate, up = gl.sum(gates[i], 0), gl.sum(ups[i], 0)
        n = line * LINE + i * 8 + gl.arange(0, gate.shape[0], gate.type.layout)
        keep = n < inner
        if HAS_BIAS:
            at = bias + expert * (SIDES * inner) + n
            gate += gl.load(at, mask=keep, other=0).to(gl.float32)
            if SIDES == 2:
                up += gl.load(at + inner, mask=keep, other=0).to(gl.float32)
        value = activated(gate, up, ACTIVATION).to(out.dtype.element_ty)
        gl.store(out + n, value, mask=keep)


@gluon.jit
def _weighted(
    totals, outs, bias, line, hidden, places, factors,
    HAS_BIAS: gl.constexpr, PARTS: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Writes a token's 16 outputs: the sum over the warps' choices, weighted.

    Of programs that share inputs, the one that comes last adds up their sums, in their order.
    """
    out, partial, arrived = outs
    split, token = gl.program_id(2), gl.program_id(1)
    out += token.to(gl.int64) * hidden
    parts = partial + token * SPLITS * hidden
    for i in gl.static_range(len(totals)):
        one = _sum_of_choices(totals[i], bias, line, i, hidden, places, factors, HAS_BIAS, PARTS)
        n = line * LINE + i * 8 + gl.arange(0, one.shape[0], one.type.layout)
        if SPLITS == 1:
            gl.store(out + n, one.to(out.dtype.element_ty), mask=n < hidden)
        else:
            gl.store(parts + split * hidden + n, one, mask=n < hidden)
    if SPLITS > 1:
        arrived += token * gl.num_programs(0) + line
        add_parts(out, parts, arrived, line * LINE, hidden, SPLITS, totals[0].shape[0])


@gluon.jit
def _sum_of_choices(
    total, bias, line, i: gl.constexpr, hidden, places, factors,
    HAS_BIAS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """The weighted sum of the warps' sums [WARPS, outputs], of set `i` of the outputs."""
    W: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    WARPS: gl.constexpr = total.shape[0]
    expert, choice = gl.convert_layout(places[0], W), gl.convert_layout(places[1], W)
    here = gl.convert_layout(places[2], W)
    if HAS_BIAS:
        n = gl.arange(0, total.shape[1], gl.SliceLayout(0, total.type.layout))
        n += line * LINE + i * 8
        once = here & (gl.arange(0, WARPS, W) % PARTS + gl.program_id(2) == 0)
        keep = once[:, None] & (n < hidden)[None, :]
        at = (bias + expert * hidden)[:, None] + n[None, :]
        total += gl.load(at, mask=keep, other=0).to(gl.float32)
    factor = gl.load(factors + choice, mask=here, other=0).to(gl.float32)
    return gl.sum(gl.where(here[:, None], total * factor[:, None], 0.0), 0)


@gluon.jit
def _first_turns(
    bases, line, origin, sizes,
    KIND: gl.constexpr, PIECE: gl.constexpr, GROUP: gl.constexpr, EVEN: gl.constexpr,
    STAGES: gl.constexpr, SIDES: gl.constexpr, SUM: gl.constexpr, PARTS: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Words and scales of the first STAGES turns, of each side."""
    up, loaded = sizes[0] // SIDES // LINE, ()
    for i in gl.static_range(STAGES):
        for side in gl.static_range(SIDES):
            one = _load(
                bases, line + side * up, origin + i, sizes, KIND, PIECE, GROUP, EVEN, SUM, PARTS,
                WARPS,
            )  # fmt: skip
            loaded = loaded + (one,)  # noqa: RUF005 (Triton unpacks no tuples)
    return loaded


@gluon.jit
def _sums(
    loaded, bases, ring, line, origin, sizes,
    KIND: gl.constexpr, PIECE: gl.constexpr, GROUP: gl.constexpr,
    EVEN: gl.constexpr, TURNS: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr,
    SUM: gl.constexpr, PARTS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The sums of each side, as of `_add`; the words of the first STAGES turns are `loaded`."""
    up = sizes[0] // SIDES // LINE
    blank = gl.zeros([WARPS, 16, 8], gl.float32, SUM)
    sums = ((blank, blank),) * SIDES
    for begin in range(0, TURNS - STAGES, STAGES):
        following = ()
        for i in gl.static_range(STAGES):
            more = ()
            for side in gl.static_range(SIDES):
                one = loaded[i * SIDES + side]
                more = more + (  # noqa: RUF005
                    _add(sums[side], one, ring, begin + i, KIND, PIECE, WARPS),
                )
                one = _load(
                    bases, line + side * up, origin + begin + i + STAGES, sizes,
                    KIND, PIECE, GROUP, EVEN, SUM, PARTS, WARPS,
                )  # fmt: skip
                following = following + (one,)  # noqa: RUF005
            sums = more
        loaded = following
    for i in gl.static_range(STAGES):
        more = ()
        for side in gl.static_range(SIDES):
            one, turn = loaded[i * SIDES + side], TURNS - STAGES + i
            more = more + (  # noqa: RUF005
                _add(sums[side], one, ring, turn, KIND, PIECE, WARPS),
            )
        sums = more
    return sums


@gluon.jit
def _product(
    tables, strides, x, x_stride, routed, factors, outs, bias, outputs, inputs, width,
    KIND: gl.constexpr, PIECE: gl.constexpr, GROUP: gl.constexpr,
    HAS_BIAS: gl.constexpr, FIRST: gl.constexpr, SIDES: gl.constexpr, ACTIVATION: gl.constexpr,
    TOP_K: gl.constexpr, EVEN: gl.constexpr, TURNS: gl.constexpr, STAGES: gl.constexpr,
    SPAN: gl.constexpr, CHOICES: gl.constexpr, PARTS: gl.constexpr, SPLITS: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """FIRST: gates and ups of each choice, multiplied, or its ups alone; otherwise the weighted sum
    of each token.

    `outputs` are those of a side. A program of the first product has one choice, which counts as
    the only one of a token.
    """
    WARPS: gl.constexpr = CHOICES * PARTS
    SUM: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    line, number = gl.program_id(0), gl.program_id(1)
    ids, first, count = routed
    if FIRST:
        if EARLY:
            gdc_wait()
            gdc_launch_dependents()
        expert = gl.load(ids + number, cache_modifier=".cg") - first
        if (expert < 0) | (expert >= count):
            return
    routed = ids, first, count, 1 if FIRST else TOP_K
    WORDS: gl.constexpr = lines_layout(WARPS) if KIND == "fp8" else strip_layout(KIND, 4, WARPS)
    W: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, WORDS))
    of_words = _experts(routed, number, W, PARTS, WARPS)
    V: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, SUM))
    places = _experts(routed, number, V, PARTS, WARPS)
    sizes = outputs * SIDES, inputs, width
    origin = gl.program_id(2) * TURNS
    bases = _bases(tables, strides, (of_words[0], places[0]))
    loaded = _first_turns(
        bases, line, origin, sizes, KIND, PIECE, GROUP, EVEN, STAGES, SIDES, SUM, PARTS, WARPS
    )
    if not FIRST and EARLY:
        gdc_wait()
        gdc_launch_dependents()
    choice, choices = (number // TOP_K, 1) if FIRST else (number * TOP_K, TOP_K)
    skipped = origin * (PARTS * TURN)
    ring, downs = _spread(
        x + skipped, x_stride, choice, choices, inputs - skipped, KIND, CHOICES, PARTS, SPAN, V
    )
    sums = _sums(
        loaded, bases, ring, line, origin, sizes, KIND, PIECE, GROUP, EVEN, TURNS, STAGES,
        SIDES, SUM, PARTS, WARPS,
    )  # fmt: skip
    units = downs * unit(KIND)
    if FIRST:
        _gates(
            sums, units, outs[0] + number.to(gl.int64) * outputs, bias, line, outputs,
            expert.to(gl.int64), KIND, HAS_BIAS, ACTIVATION,
        )  # fmt: skip
    else:
        _weighted(
            _scaled(sums[0], units, KIND), outs, bias, line, outputs, places,
            factors, HAS_BIAS, PARTS, SPLITS,
        )  # fmt: skip


def launch(x: Tensor, routed: Routed, experts: Experts, out: Tensor) -> bool:
    """Whether these kernels take such tensors; if so, they are launched."""
    gate_up, down = experts.gate_up, experts.down
    assert isinstance(gate_up, PackedWeight) and isinstance(down, PackedWeight)
    pieces = inputs_of_sum(gate_up), inputs_of_sum(down)
    tokens, top_k = routed.ids.shape
    fits = top_k <= MOST_CHOICES and experts.inner % LINE.value == 0
    if x.dtype not in KINDS or None in pieces or not fits:
        return False
    rows = torch.empty((tokens * top_k, experts.inner), dtype=x.dtype, device=x.device)
    count = processors(x.device)
    first = _shares_of_first(tokens * top_k, experts.inner, gate_up.kind, count)
    second = _shares_of_second(routed, x.shape[1], experts.inner, count)
    _multiply(first, x, gate_up, (routed, experts), experts.gate_up_bias, rows, first=True)
    _multiply(second, rows, down, (routed, experts), experts.down_bias, out, first=False)
    return True


def _shares_of_first(choices: int, inner: int, kind: Kind, count: int) -> Shares:
    """For the gates and ups of `choices`, on `count` multiprocessors."""
    programs = choices * divided_up(inner, LINE.value)
    # Whole lines of both sides do not fit fewer registers.
    least = MOST_REGISTERS if kind is Kind.FP8 else LEAST_REGISTERS
    room = registers(divided_up(programs, count), FIRST_WARPS, least)
    return Shares(1, FIRST_WARPS, FIRST_STAGES, room, splits=1)


def _shares_of_second(routed: Routed, hidden: int, inner: int, count: int) -> Shares:
    """For the weighted sums of all tokens."""
    tokens, top_k = routed.ids.shape
    choices = power_of_two(top_k)
    parts = max(1, SECOND_WARPS // choices)
    lines = tokens * divided_up(hidden, LINE.value)
    turns = divided_up(inner, parts * TURN.value)
    splits = min(RESIDENT * count // lines, turns // SECOND_STAGES)
    splits = max(1, splits, divided_up(turns, MOST_TURNS))
    room = registers(divided_up(lines * splits, count), choices * parts, LEAST_REGISTERS)
    return Shares(choices, parts, SECOND_STAGES, room, splits)


def registers(programs: int, warps: int, least: int) -> int:
    """Of a thread, with which that many programs run on a multiprocessor at once, within bounds."""
    fitting = (1 << 16) // (programs * warps * 32) // 8 * 8
    return max(least, min(MOST_REGISTERS, fitting))


class Shares(NamedTuple):
    """How the warps of a program share its choices and their inputs."""

    choices: int
    """Of a program, filled up to a power of two."""
    parts: int
    """Warps of a choice."""
    stages: int
    """Turns whose words a warp has in its registers, at most."""
    registers: int
    """Of a thread."""
    splits: int
    """Programs that share their inputs."""

    def turns(self, inputs: int) -> tuple[int, int]:
        """(turns of a warp, those at once): the fewest turns, then the most at once."""
        least = divided_up(inputs, self.splits * self.parts * TURN.value)
        rounded = {at: divided_up(least, at) * at for at in range(self.stages, 0, -1)}
        at = min(rounded, key=lambda stages: rounded[stages])
        return rounded[at], at


def _multiply(
    shares: Shares,
    x: Tensor,
    weight: PackedWeight,
    layer: tuple[Routed, Experts],
    bias: Tensor | None,
    out: Tensor,
    first: bool,
) -> None:
    """Launches a product: the `first` one, or the second."""
    routed, experts = layer
    outputs = out.shape[1]
    turns, stages = shares.turns(weight.inputs)
    words = weight.words.view(torch.int32)
    eight = weight.kind is Kind.FP8
    _product[(divided_up(outputs, LINE.value), len(out), shares.splits)](
        (words, weight.scales),
        (words.stride(0), weight.scales.stride(0)),
        x,
        x.stride(0),
        (routed.ids, experts.first, experts.count),
        routed.weights,
        with_parts(out, shares.splits),
        x if bias is None else bias,
        outputs,
        weight.inputs,
        weight.words.shape[2] * (1 if eight else 64),
        KIND=weight.kind.value,
        PIECE=inputs_of_sum(weight),
        GROUP=0 if weight.group == weight.inputs else weight.group,
        HAS_BIAS=bias is not None,
        FIRST=first,
        SIDES=experts.sides if first else 1,
        ACTIVATION=experts.activation.value if first else "",
        TOP_K=routed.ids.shape[1],
        EVEN=turns * shares.parts * shares.splits * TURN.value == weight.inputs,
        TURNS=turns,
        STAGES=stages,
        SPAN=power_of_two(turns * shares.parts * TURN.value),
        CHOICES=shares.choices,
        PARTS=shares.parts,
        SPLITS=shares.splits,
        num_warps=shares.choices * shares.parts,
        maxnreg=shares.registers,
        **early_options(x.device),
    )


def inputs_of_sum(weight: PackedWeight) -> int | None:
    """Inputs whose sum is scaled. None if the kernels do not take the weight."""
    if weight.kind.integer:
        return None
    if weight.group == weight.inputs:
        return int(TURN.value)
    # Of fp8, a half of a turn has inputs of all of it.
    sizes = (128,) if weight.kind is Kind.FP8 else (128, 64, 32, 16)
    return next((size for size in sizes if weight.group % size == 0), None)
