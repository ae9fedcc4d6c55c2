"""Triton kernels of the sum over ranks, with residual and normalisation. No barrier, no counter.

Every rank writes its words (4 bytes: two elements of 16 bits, or one of 32) into inboxes of the
other ranks' memory, and reads its own. An inbox that waits holds EMPTY in every word, so a word
says by itself whether it has arrived: no flag, no order between stores, nothing to wait for but
the data. EMPTY is a NaN that no arithmetic makes; a word that is EMPTY all the same is sent as
another NaN. Who has read a word makes it EMPTY again.

A channel (program i of all ranks) has two slots, which its launches use in turns. Two are enough:
when a rank writes to a slot again, two launches later, it has finished the launch in between, so
it had something of that launch from every other rank, or from one that had something from every
other. They sent that after they had finished the launch before, and with it had emptied the slot.
(A kernel's stores are done before the next kernel on the stream passes its `gdc_wait`.) Within a
launch no word is used twice. Launches may differ in size and plan: each leaves its slot EMPTY.

Program i waits for program i of the others alone, so ranks make progress as long as the lowest
unfinished program of each runs, which holds where programs start in order.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_launch, power_of_two
from ..rms_norm import NormInput
from .plan import (
    CHANNELS,
    PIECE,
    PIECE_WARPS,
    WORD,
    Peers,
    Plan,
    channel_words,
    fitting_warps,
)
from .plan import EMPTY as EMPTY_WORD

EMPTY = tl.constexpr(EMPTY_WORD)
OTHER_NAN = tl.constexpr(0x7FFF7FFF)
# Reads of a word that does not come, before the kernel gives up: some ten minutes.
TIMEOUT_TRIES = tl.constexpr(1 << 32)
KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@triton.jit
def _parts(words, KIND: tl.constexpr):
    """The elements of words in float32: first ones, second ones (zeros where a word holds one)."""
    if KIND.primitive_bitwidth == 32:
        first = words.to(tl.float32, bitcast=True)
        second = tl.zeros_like(first)
    else:
        first = (words & 0xFFFF).to(tl.uint16).to(KIND, bitcast=True).to(tl.float32)
        second = ((words >> 16) & 0xFFFF).to(tl.uint16).to(KIND, bitcast=True).to(tl.float32)
    return first, second


@triton.jit
def _words(first, second, KIND: tl.constexpr):
    """The reverse, rounded to KIND; never EMPTY."""
    if KIND.primitive_bitwidth == 32:
        words = first.to(tl.int32, bitcast=True)
    else:
        low = first.to(KIND).to(tl.uint16, bitcast=True).to(tl.uint32)
        high = second.to(KIND).to(tl.uint16, bitcast=True).to(tl.uint32)
        words = (low | (high << 16)).to(tl.int32, bitcast=True)
    return tl.where(words == EMPTY, OTHER_NAN, words)


@triton.jit
def _inbox(addresses, rank):
    """A rank's inboxes."""
    return tl.multiple_of(tl.load(addresses + rank).to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def _take(at, inside):
    """The words at `at`, once all of them are there; they are EMPTY afterwards."""
    words = tl.load(at, inside, other=0, volatile=True)
    tries = tl.full((), 0, tl.int64)
    while (tl.max((words == EMPTY).to(tl.int32), 0) == 1) & (tries < TIMEOUT_TRIES):
        words = tl.load(at, inside, other=0, volatile=True)
        tries += 1
    if tries == TIMEOUT_TRIES:
        tl.inline_asm_elementwise("trap; // $0", "=r", [], tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()  # nobody reads any more
    tl.store(at, tl.full(words.shape, EMPTY, tl.int32), inside)
    return words


@triton.jit
def _row(tensor, row, words):
    """Where a row's words begin."""
    return tensor.to(tl.pointer_type(tl.int32)) + row.to(tl.int64) * words


@triton.jit
def _sum(
    own,
    residual,
    boxes,
    apart,
    inside,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    KIND: tl.constexpr,
    HAS: tl.constexpr,
):
    """A row's words summed: all ranks', in their order, then the residual's if it HAS one.

    `boxes`: this rank's inbox of the first other rank; the others' follow `apart` words later each.
    """
    if HAS:
        addend = tl.load(residual, inside, other=0)  # on its way while the parts are
    first = tl.zeros(own.shape, tl.float32)
    second = tl.zeros(own.shape, tl.float32)
    for rank in tl.static_range(RANKS):
        part = own
        if rank != RANK:
            part = _take(boxes + (rank - (1 if rank > RANK else 0)) * apart, inside)
        more_first, more_second = _parts(part, KIND)
        first += more_first
        second += more_second
    if HAS:
        more_first, more_second = _parts(addend, KIND)
        first += more_first
        second += more_second
    return _words(first, second, KIND)


@triton.jit
def _finish(words, scale, columns, eps, out, total, inside, KIND: tl.constexpr):
    """Writes a row's sum and what rms_norm makes of it. `scale`: the weight's words."""
    first, second = _parts(words, KIND)
    factor = tl.rsqrt(tl.sum(first * first + second * second) / columns + eps)
    scale_first, scale_second = _parts(scale, KIND)
    normed = _words(first * factor * scale_first, second * factor * scale_second, KIND)
    tl.store(total, words, inside)
    tl.store(out, normed, inside)


@triton.jit(do_not_specialize=["rows", "span"])
def one_shot_sum(
    x,
    residual,
    scale,
    out,
    total,
    addresses,
    turns,
    rows,
    words,
    span,
    columns,
    eps,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    KIND: tl.constexpr,
    CHANNEL: tl.constexpr,
    SLOT: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each rank sends its rows to all others, and sums.

    `words` of a row, `span` rows of a program at most; CHANNEL and SLOT in words. In a slot: the
    rows of the first other rank, those of the second, ...
    """
    channel = tl.program_id(0)
    programs = tl.num_programs(0)
    k = tl.arange(0, BLOCK)
    inside = k < words
    weight = tl.load(_row(scale, channel * 0, words) + k, inside, other=0)
    mine = _inbox(addresses, RANK) + k
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    turn = tl.load(turns + channel)
    slot = turn * SLOT + channel * CHANNEL
    steps = tl.cdiv(rows - channel, programs)
    step = 0
    while step < steps:
        row = channel + step * programs
        own = tl.load(_row(x, row, words) + k, inside, other=0)
        part = tl.where(own == EMPTY, OTHER_NAN, own)
        for rank in tl.static_range(RANKS):
            if rank != RANK:
                place = (RANK - (1 if rank < RANK else 0)) * span + step
                theirs = _inbox(addresses, rank) + slot + k
                tl.store(theirs + place * words, part, inside)
        boxes, addend = mine + slot + step * words, _row(residual, row, words) + k
        found = _sum(own, addend, boxes, span * words, inside, RANK, RANKS, KIND, HAS_RESIDUAL)
        to, summed = _row(out, row, words) + k, _row(total, row, words) + k
        _finish(found, weight, columns, eps, to, summed, inside, KIND)
        step += 1
    tl.store(turns + channel, 1 - turn)


@triton.jit(do_not_specialize=["rows", "span"])
def two_shot_sum(
    x,
    residual,
    scale,
    out,
    total,
    addresses,
    turns,
    rows,
    words,
    span,
    columns,
    eps,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    KIND: tl.constexpr,
    CHANNEL: tl.constexpr,
    SLOT: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each row has an owner that all ranks send it to, and that sends them the sum.

    In a slot: owned rows of the first other rank, those of the second, ..., then sums.
    """
    channel = tl.program_id(0)
    programs = tl.num_programs(0)
    k = tl.arange(0, BLOCK)
    inside = k < words
    weight = tl.load(_row(scale, channel * 0, words) + k, inside, other=0)
    owned = tl.cdiv(span, RANKS)
    sums = (RANKS - 1) * owned
    mine = _inbox(addresses, RANK) + k
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    turn = tl.load(turns + channel)
    slot = turn * SLOT + channel * CHANNEL
    mine += slot
    steps = tl.cdiv(rows - channel, programs)
    step = 0
    while step < steps:
        owner = (channel + step) % RANKS
        if owner != RANK:
            part = tl.load(_row(x, channel + step * programs, words) + k, inside, other=0)
            place = (RANK - (owner < RANK).to(tl.int32)) * owned + step // RANKS
            theirs = _inbox(addresses, owner) + slot + k
            tl.store(theirs + place * words, tl.where(part == EMPTY, OTHER_NAN, part), inside)
        step += 1
    step = (RANK + RANKS - channel % RANKS) % RANKS
    while step < steps:
        row = channel + step * programs
        own = tl.load(_row(x, row, words) + k, inside, other=0)
        boxes, addend = mine + step // RANKS * words, _row(residual, row, words) + k
        found = _sum(own, addend, boxes, owned * words, inside, RANK, RANKS, KIND, HAS_RESIDUAL)
        for rank in tl.static_range(RANKS):
            if rank != RANK:
                theirs = _inbox(addresses, rank) + slot + k
                tl.store(theirs + (sums + step) * words, found, inside)
        to, summed = _row(out, row, words) + k, _row(total, row, words) + k
        _finish(found, weight, columns, eps, to, summed, inside, KIND)
        step += RANKS
    step = 0
    while step < steps:
        if (channel + step) % RANKS != RANK:
            row = channel + step * programs
            found = _take(mine + (sums + step) * words, inside)
            to, summed = _row(out, row, words) + k, _row(total, row, words) + k
            _finish(found, weight, columns, eps, to, summed, inside, KIND)
        step += 1
    tl.store(turns + channel, 1 - turn)


@triton.jit(do_not_specialize=["pieces", "span"])
def one_shot_join(
    x,
    out,
    addresses,
    turns,
    pieces,
    span,
    words,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    CHANNEL: tl.constexpr,
    SLOT: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each rank sends its rows to all others; everyone has all of them side by side in `out`.

    A row of `words` is cut into pieces of BLOCK; a program has `span` of them at most. In a slot:
    the pieces of the first other rank, those of the second, ...
    """
    channel = tl.program_id(0)
    programs = tl.num_programs(0)
    k = tl.arange(0, BLOCK)
    mine = _inbox(addresses, RANK) + k
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    turn = tl.load(turns + channel)
    slot = turn * SLOT + channel * CHANNEL
    cuts = tl.cdiv(words, BLOCK)
    steps = tl.cdiv(pieces - channel, programs)
    step = 0
    while step < steps:
        piece = channel + step * programs
        at = piece % cuts * BLOCK + k
        part = tl.load(_row(x, piece // cuts, words) + at, at < words, other=0)
        part = tl.where(part == EMPTY, OTHER_NAN, part)
        tl.store(_row(out, piece // cuts * RANKS + RANK, words) + at, part, at < words)
        for rank in tl.static_range(RANKS):
            if rank != RANK:
                place = (RANK - (1 if rank < RANK else 0)) * span + step
                theirs = _inbox(addresses, rank) + slot + k
                tl.store(theirs + place * BLOCK, part, at < words)
        step += 1
    step = 0
    while step < steps:
        piece = channel + step * programs
        at = piece % cuts * BLOCK + k
        for rank in tl.static_range(RANKS):
            if rank != RANK:
                place = (rank - (1 if rank > RANK else 0)) * span + step
                part = _take(mine + slot + place * BLOCK, at < words)
                tl.store(_row(out, piece // cuts * RANKS + rank, words) + at, part, at < words)
        step += 1
    tl.store(turns + channel, 1 - turn)


def launch_join(x: Tensor, out: Tensor, peers: Peers) -> None:
    """One launch: x [T, C] of all ranks into out [T, ranks * C], both contiguous."""
    words = x.shape[1] * x.itemsize // WORD
    pieces = len(x) * divided_up(words, PIECE)
    programs = min(pieces, CHANNELS)
    early = early_launch(x.device)
    one_shot_join[(programs,)](
        x,
        out,
        peers.addresses,
        peers.turns,
        pieces,
        divided_up(pieces, programs),
        words,
        RANK=peers.rank,
        RANKS=peers.ranks,
        CHANNEL=channel_words(peers.ranks),
        SLOT=CHANNELS * channel_words(peers.ranks),
        BLOCK=PIECE,
        EARLY=early,
        launch_pdl=early,
        num_warps=PIECE_WARPS,
    )


def launch(norm_input: NormInput, peers: Peers, plan: Plan, to: tuple[Tensor, Tensor]) -> None:
    """One launch: fills `to`, (normed rows, sums), [T, H] contiguous as x and the residual are."""
    x, residual = norm_input.x, norm_input.residual
    rows, columns = x.shape
    words = columns * x.itemsize // WORD
    programs = min(rows, plan.programs, CHANNELS)
    early = early_launch(x.device)
    fixed = {
        "RANK": peers.rank,
        "RANKS": peers.ranks,
        "HAS_RESIDUAL": residual is not None,
        "KIND": KINDS[x.dtype],
        "CHANNEL": channel_words(peers.ranks),
        "SLOT": CHANNELS * channel_words(peers.ranks),
        "BLOCK": power_of_two(words),
        "EARLY": early,
        "launch_pdl": early,
        "num_warps": fitting_warps(plan, words),
    }
    kernel = two_shot_sum if plan.two_shot else one_shot_sum
    kernel[(programs,)](
        x,
        x if residual is None else residual,
        norm_input.scale,
        *to,
        peers.addresses,
        peers.turns,
        rows,
        words,
        divided_up(rows, programs),
        columns,
        norm_input.eps,
        **fixed,
    )
