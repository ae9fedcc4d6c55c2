"""Kernel of paged_prefill_attention for Hopper GPUs, in Gluon: copy engine, wgmma, own warps.

A program takes 128 rows of one sequence and key head, (query, head of the group) pairs, queries
first. One warp copies keys and values, a block of the cache at a time, into a ring of tiles; two
warp groups take half of the rows each. A group starts the product with the next tile of keys and
the one with the last tile of values together, and does its softmax while the second one runs. Where
rows are few, the keys of a long context are split among enough programs to fill the
multiprocessors a whole number of times, or nearly; each leaves its part, and who comes last adds
them up in their order. How many there are is read on the device: a launch that is replayed knows
shapes alone. Of a window, tiles that no row of a program sees are left out.

Source: Shah et al., FlashAttention-3, 2024.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..device import arrivals, divided_up, processors
from ..hopper import (
    ATOM,
    ROWS,
    Rule,
    add,
    as_blocks,
    barrier,
    blocks_of,
    copy_tile,
    fits,
    make_bars,
)
from ..kv_quantization import bits_of
from ..kv_quantization_hopper import code_blocks, form_of, normalized, param_blocks
from ..online_softmax import LOG2_E, LOWEST, first_seen, with_sink
from .hopper_convert import code_rings, convert_tiles, copy_codes, interchanged
from .splits import (
    LEAST,
    ROUNDS,
    most_splits,
    put_part,
    scratch_of,
    splits_of,
    sum_parts,
)

NO_WINDOW = 1 << 30  # more tokens than any sequence has
SEQUENCES = gl.constexpr(32)  # of a launch, at most: a warp adds up their items by itself


@gluon.jit
def _copy(
    desc, table, rings, bars, plane, last, tiles, blocks,
    BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp: copies the tiles from `last` down. `blocks` = (first visible one, end)."""
    full_keys, empty_keys = bars[0]
    full_values, empty_values = bars[1]
    heads, head, nowhere = plane
    passed, end = blocks
    for i in range(tiles):
        stage = i % STAGES
        phase = (i // STAGES & 1) ^ 1
        span = ((last - i) * (KEYS // BLOCK_TOKENS), passed, end)
        mbarrier.wait(empty_keys.index(stage), phase)
        mbarrier.expect(full_keys.index(stage), KEYS * D * 2)
        copy_tile(
            desc, table, (2 * heads, head, nowhere), span, full_keys.index(stage), rings[0], stage,
            BLOCK_TOKENS, KEYS // BLOCK_TOKENS, D // ATOM,
        )  # fmt: skip
        mbarrier.wait(empty_values.index(stage), phase)
        mbarrier.expect(full_values.index(stage), KEYS * D * 2)
        copy_tile(
            desc, table, (2 * heads, heads + head, nowhere), span, full_values.index(stage),
            rings[1], stage, BLOCK_TOKENS, KEYS // BLOCK_TOKENS, D // ATOM,
        )  # fmt: skip


@gluon.jit
def _clear(
    blocks, page, rest, BLOCK_TOKENS: gl.constexpr, PAGES: gl.constexpr, HALVES: gl.constexpr
):
    """Zeros in rows `rest`.. of a block of the ring's first tile.

    Rows past a sequence's end may hold anything, NaN included, which a weight of 0 would not
    silence. Both warp groups clear them, each for itself.
    """
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = gl.arange(0, BLOCK_TOKENS, gl.SliceLayout(1, L))
    for half in gl.static_range(HALVES):
        block = blocks.index(half * PAGES + page)
        block.store(gl.where((row < rest)[:, None], block.load(L), 0.0))
    fence_async_shared()
    barrier()


@gluon.jit
def _put_result(
    acc, total, out, targets, place,
    GROUP: gl.constexpr, D: gl.constexpr, CONVERTED: gl.constexpr,
):  # fmt: skip
    """The quotient of both sums, to its rows of `out`."""
    token, row, column, live = targets
    _, _, _, _, heads, head = place
    whole = gl.convert_layout(total, gl.SliceLayout(1, acc.type.layout))
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    result = (acc / whole[:, None]).to(out.dtype.element_ty)
    if CONVERTED:
        result = interchanged(result)
    result = gl.convert_layout(result, LOAD)
    places = ((token * heads + head) * GROUP + row % GROUP) * D
    gl.store(out + places[:, None] + column[None, :], result, mask=live)


@gluon.jit
def _masked(scores, key, position, window, WINDOWED: gl.constexpr, ALIGNED: gl.constexpr):
    """Scores of the keys at positions `key` that the queries at `position` see; else -inf."""
    seen = key[None, :] <= position[:, None]
    if WINDOWED:
        if ALIGNED:
            seen = seen & (key[None, :] >= first_seen(position, window, True)[:, None])
        else:
            seen = seen & (key[None, :] > (position - window)[:, None])
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
def _attend_rows(
    q, outs, which, rings, bars, queries, place, strides, span, rule,
    GROUP: gl.constexpr, BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, WINDOWED: gl.constexpr, ALIGNED: gl.constexpr,
    SINKS: gl.constexpr, CONVERTED: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """A warp group: its rows against every tile of keys and values."""
    out, parts, peaks, arrived = outs
    item, wanted, split, used = which
    key_tiles, value_tiles, value_blocks = rings
    full_keys, empty_keys = bars[0]
    full_values, empty_values = bars[1]
    start, count, earlier, first_row, _, head = place
    last_tile, tiles, masked, windowed, length = span
    scale, window, sinks = rule
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    kind: gl.constexpr = queries.dtype

    row = first_row + PART * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LOAD))
    column = gl.arange(0, D, gl.SliceLayout(0, LOAD))
    token = (start + row // GROUP).to(gl.int64)
    rows = token * strides[0] + (head * GROUP + row % GROUP) * strides[1]
    live = (row // GROUP < count)[:, None]
    own = queries.index(PART)
    x = gl.load(q + rows[:, None] + column[None, :], mask=live, other=0)
    scales = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, S_LAYOUT)) * scale
    if CONVERTED:
        x, power = normalized(interchanged(x))
        scales *= gl.convert_layout(power, gl.SliceLayout(1, S_LAYOUT))
    own.store(x)
    fence_async_shared()
    barrier()

    s_row = first_row + PART * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    position = earlier + s_row // GROUP
    column_key = gl.arange(0, KEYS, gl.SliceLayout(0, S_LAYOUT))
    blank = gl.zeros([ROWS, KEYS], gl.float32, S_LAYOUT)
    acc = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)

    mbarrier.wait(full_keys.index(0), 0)
    scores = warpgroup_mma(own, key_tiles.index(0).permute((1, 0)), blank, use_acc=False)
    mbarrier.arrive(empty_keys.index(0), count=1)
    last = last_tile * KEYS
    scores = _masked(scores, last + column_key, position, window, WINDOWED, ALIGNED)
    peak = gl.maximum(gl.max(scores, 1) * scales, LOWEST)
    weights = gl.exp2(scores * scales[:, None] - peak[:, None])
    total = gl.sum(weights, 1)
    p = gl.convert_layout(weights.to(kind), P_LAYOUT)
    mbarrier.wait(full_values.index(0), 0)
    if (length % BLOCK_TOKENS > 0) & (length - last < KEYS):
        page = (length - last) // BLOCK_TOKENS
        PAGES: gl.constexpr = KEYS // BLOCK_TOKENS
        _clear(value_blocks, page, length % BLOCK_TOKENS, BLOCK_TOKENS, PAGES, D // ATOM)
    for i in range(1, tiles):
        stage = i % STAGES
        before = (i - 1) % STAGES
        mbarrier.wait(full_keys.index(stage), i // STAGES & 1)
        keys = key_tiles.index(stage).permute((1, 0))
        flying = warpgroup_mma(own, keys, blank, use_acc=False, is_async=True)
        mbarrier.wait(full_values.index(before), (i - 1) // STAGES & 1)
        adding = warpgroup_mma(p, value_tiles.index(before), acc, is_async=True)
        scores = warpgroup_mma_wait(1, [flying])
        mbarrier.arrive(empty_keys.index(stage), count=1)
        if (i < masked) | (WINDOWED & (i >= windowed)):
            key = (last_tile - i) * KEYS + column_key
            scores = _masked(scores, key, position, window, WINDOWED, ALIGNED)
        new_peak = gl.maximum(peak, gl.max(scores, 1) * scales)
        weights = gl.exp2(scores * scales[:, None] - new_peak[:, None])
        shrink = gl.exp2(peak - new_peak)
        total = total * shrink + gl.sum(weights, 1)
        peak = new_peak
        acc = warpgroup_mma_wait(0, [adding])
        mbarrier.arrive(empty_values.index(before), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, O_LAYOUT))[:, None]
        p = gl.convert_layout(weights.to(kind), P_LAYOUT)
    stage = (tiles - 1) % STAGES
    mbarrier.wait(full_values.index(stage), (tiles - 1) // STAGES & 1)
    acc = warpgroup_mma(p, value_tiles.index(stage), acc)

    targets = (token, row, column, live)
    own_sinks = sinks + head * GROUP
    if SPLITS == 1:
        total = with_sink(total, peak, own_sinks, s_row % GROUP, s_row >= 0, SINKS)
        _put_result(acc, total, out, targets, place, GROUP, D, CONVERTED)
    else:
        if used == 1:
            total = with_sink(total, peak, own_sinks, s_row % GROUP, s_row >= 0, SINKS)
            _put_result(acc, total, out, targets, place, GROUP, D, CONVERTED)
        else:
            first = item * wanted * 2 + PART
            put_part(acc, peak, total, parts, peaks, first + 2 * split, D)
            counter = arrived + item * 2 + PART
            others = gl.atomic_add(counter, 1, sem="acq_rel")
            if others == used - 1:
                gl.store(counter, 0)  # for the next launch
                sums, top, whole = sum_parts(parts, peaks, first, used, O_LAYOUT, D)
                o_row = first_row + PART * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, O_LAYOUT))
                whole = with_sink(whole, top, own_sinks, o_row % GROUP, o_row >= 0, SINKS)
                _put_result(sums, whole, out, targets, place, GROUP, D, CONVERTED)


@gluon.jit(do_not_specialize=["sequences"])
def _attend(
    desc, params_desc, q, tables, query_start, kv_len, outs, rule, strides, heads, sequences,
    nowhere,
    GROUP: gl.constexpr, BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr,
    STAGES: gl.constexpr, CODE_STAGES: gl.constexpr, FORM: gl.constexpr, BITS: gl.constexpr,
    SPLITS: gl.constexpr, PROGRAMS: gl.constexpr, WINDOWED: gl.constexpr, ALIGNED: gl.constexpr,
    SINKS: gl.constexpr,
):  # fmt: skip
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    every = gl.arange(0, SEQUENCES, L)
    exists = every < sequences
    counts = gl.load(query_start + every + 1, mask=exists, other=0)
    counts -= gl.load(query_start + every, mask=exists, other=0)
    items = gl.cdiv(counts * GROUP, 2 * ROWS)
    ends = gl.associative_scan(items, 0, add)
    total = gl.sum(items, 0)
    _, window, _ = rule
    lengths = gl.load(kv_len + every, mask=exists & (counts > 0), other=0)
    lengths = gl.minimum(lengths, window + 2 * ROWS // GROUP)  # what a program sees, at most
    wanted = splits_of(total * heads, gl.cdiv(gl.max(lengths, 0), KEYS), PROGRAMS, SPLITS)
    # All items of a split run side by side: they read the same keys and values.
    head = gl.program_id(0) % heads
    item = gl.program_id(0) // heads % gl.maximum(total, 1)
    split = gl.program_id(0) // heads // gl.maximum(total, 1)
    if (item >= total) | (split >= wanted):
        return
    sequence = gl.sum(gl.where(exists & (ends <= item), 1, 0), 0)
    start = gl.load(query_start + sequence)
    count = gl.load(query_start + sequence + 1) - start
    # The rows that see most keys come first, so that no long one ends alone.
    behind = gl.sum(gl.where(every <= sequence, items, 0), 0) - 1 - item
    first_row = behind * 2 * ROWS
    length = gl.load(kv_len + sequence)
    block_tables, slots, table_stride = tables
    table = block_tables + gl.load(slots + sequence).to(gl.int64) * table_stride
    earlier = length - count
    end = gl.minimum(length, earlier + (first_row + 2 * ROWS - 1) // GROUP + 1)
    begin = first_seen(earlier + first_row // GROUP, window, ALIGNED)
    first = begin // KEYS
    seen = gl.cdiv(end, KEYS) - first
    whole = (earlier + first_row // GROUP + 1) // KEYS  # tiles before them end before the first row
    # From there on tiles are in all windows.
    inside = gl.cdiv(first_seen(end - 1, window, ALIGNED), KEYS)
    used = gl.minimum(gl.maximum(seen // LEAST, 1), wanted)
    if split >= used:
        return
    after = first + seen * (split + 1) // used
    tiles = after - first - seen * split // used

    kind: gl.constexpr = q.dtype.element_ty if FORM == "" else gl.float16
    BLOCKS: gl.constexpr = STAGES * (D // ATOM) * (KEYS // BLOCK_TOKENS)
    T_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, D], kind)
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], kind)
    queries = gl.allocate_shared_memory(kind, [2, ROWS, D], Q_LAYOUT)
    keys = gl.allocate_shared_memory(kind, [STAGES, KEYS, D], T_LAYOUT)
    values = gl.allocate_shared_memory(kind, [STAGES, KEYS, D], T_LAYOUT)
    B_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_TOKENS, ATOM], kind)
    key_blocks = as_blocks(keys, BLOCKS, BLOCK_TOKENS, ATOM, B_LAYOUT)
    value_blocks = as_blocks(values, BLOCKS, BLOCK_TOKENS, ATOM, B_LAYOUT)
    bars = (make_bars(STAGES, 2), make_bars(STAGES, 2))

    place = (start, count, earlier, first_row, heads, head)
    span = (after - 1, tiles, after - whole, after - inside, length)
    blocks = (begin // BLOCK_TOKENS, gl.cdiv(length, BLOCK_TOKENS))
    which = (item * heads + head, wanted, split, used)
    plane = (heads, head, nowhere)
    rings = (keys, values, value_blocks)
    if FORM == "":
        fence_async_shared()
        gl.warp_specialize(
            [
                (_attend_rows, (
                    q, outs, which, rings, bars, queries, place, strides, span, rule,
                    GROUP, BLOCK_TOKENS, KEYS, D, STAGES, SPLITS, WINDOWED, ALIGNED, SINKS,
                    FORM != "", 0,
                )),
                (_attend_rows, (
                    q, outs, which, rings, bars, queries, place, strides, span, rule,
                    GROUP, BLOCK_TOKENS, KEYS, D, STAGES, SPLITS, WINDOWED, ALIGNED, SINKS,
                    FORM != "", 1,
                )),
                (_copy, (
                    desc, table, (key_blocks, value_blocks), bars, plane, after - 1, tiles, blocks,
                    BLOCK_TOKENS, KEYS, D, STAGES,
                )),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        code = code_rings(desc, params_desc, KEYS, BLOCK_TOKENS, CODE_STAGES, BITS)
        fence_async_shared()
        gl.warp_specialize(
            [
                (_attend_rows, (
                    q, outs, which, rings, bars, queries, place, strides, span, rule,
                    GROUP, BLOCK_TOKENS, KEYS, D, STAGES, SPLITS, WINDOWED, ALIGNED, SINKS,
                    FORM != "", 0,
                )),
                (_attend_rows, (
                    q, outs, which, rings, bars, queries, place, strides, span, rule,
                    GROUP, BLOCK_TOKENS, KEYS, D, STAGES, SPLITS, WINDOWED, ALIGNED, SINKS,
                    FORM != "", 1,
                )),
                (convert_tiles, (
                    code, (keys, values), bars, tiles,
                    BLOCK_TOKENS, KEYS, STAGES, CODE_STAGES, FORM, BITS,
                )),
                (copy_codes, (
                    (desc, params_desc), table, code, plane, after - 1, tiles, blocks,
                    BLOCK_TOKENS, KEYS, CODE_STAGES, BITS,
                )),
            ],
            [4, 4, 1],
            [224, 40, 24],
        )  # fmt: skip


# Keys of a tile, for heads of each size. On an H200, 32 query and 8 key heads of 128, one prompt of
# 4,096 tokens: 484 TFLOP/s; with three stages of 64 keys 448, with four 435. Of heads of 256, no
# more keys fit the shared memory.
KEYS = {64: 128, 128: 128, 256: 64}
CONVERTED = (64, 128)  # sizes of heads of a quantized cache: its codes need room beside the tiles
STAGES = 2


def launch(
    tensors: tuple[Tensor, Tensor], memory: tuple[Tensor, ...], kv_params: Tensor | None, rule: Rule
) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched.

    `tensors` = (q, out), `memory` = (kv_cache, block_tables, slots, query_start, kv_len), `rule` as
    in `Rule`.
    """
    q, out = tensors
    kv_cache, block_tables, slots, query_start, kv_len = memory
    if not fits(q, kv_cache, tuple(KEYS) if kv_cache.dtype == q.dtype else CONVERTED):
        return False
    cache = kv_cache, kv_params
    most = SEQUENCES.value
    splits = most_splits(q, kv_cache.shape[2])
    outs = (out, out, out, out)  # without splits no more is needed
    if splits > 1:
        outs = (
            out,
            *scratch_of(q.device, q.shape[2]),
            arrivals(q.device, ROUNDS.value * processors(q.device)),
        )
    for first in range(0, len(kv_len), most):
        last = min(first + most, len(kv_len))
        some = slots[first:last], query_start[first : last + 1], kv_len[first:last]
        _launch(q, outs, cache, (block_tables, *some), rule, splits)
    return True


def _launch(
    q: Tensor,
    outs: tuple[Tensor, ...],
    cache: tuple[Tensor, Tensor | None],
    places: tuple[Tensor, ...],
    rule: Rule,
    splits: int,
) -> None:
    """`outs` = (out, parts, peaks, arrivals), `places` = (block_tables, slots, query_start, kv_len)
    of SEQUENCES or fewer."""
    kv_cache, kv_params = cache
    block_tables, slots, query_start, kv_len = places
    scale, window, aligned, sinks = rule
    tokens, heads, size = q.shape
    _, _, kv_heads, block_tokens, _ = kv_cache.shape
    group, programs = heads // kv_heads, processors(q.device)
    full = divided_up(tokens * group, 2 * ROWS.value)
    most = kv_heads * (full + len(kv_len))  # each sequence may begin a tile of rows
    quantized = kv_cache.dtype != q.dtype
    blocks = code_blocks(kv_cache) if quantized else blocks_of(kv_cache)
    _attend[(max(most, ROUNDS.value * programs) if splits > 1 else most,)](
        blocks,
        blocks if kv_params is None else param_blocks(kv_params),
        q,
        (block_tables, slots, block_tables.stride(0)),
        query_start,
        kv_len,
        outs,
        (scale * LOG2_E, window or NO_WINDOW, kv_len if sinks is None else sinks),
        q.stride()[:2],
        kv_heads,
        len(kv_len),
        kv_cache.numel() // kv_cache.shape[4],
        GROUP=group,
        BLOCK_TOKENS=block_tokens,
        KEYS=KEYS[size],
        D=size,
        STAGES=STAGES,
        CODE_STAGES=2,
        FORM=form_of(kv_cache, size) if quantized else "",
        BITS=bits_of(kv_cache, size),
        SPLITS=splits,
        PROGRAMS=programs,
        WINDOWED=window > 0,
        ALIGNED=aligned and window > 0,
        SINKS=sinks is not None,
        num_warps=4,
        maxnreg=128 if quantized else 168,
    )
