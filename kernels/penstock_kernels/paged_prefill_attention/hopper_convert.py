"""How the Hopper kernel of paged_prefill_attention reads quantized caches: a warp group converts.

The copying warp brings codes as they are stored, keys and values of a tile in turn, into a ring of
their own. The converting group makes tiles of float16 of them, where the groups that multiply
expect tiles of a plain cache: integers are multiplied with their scales, and their zeros added, two
at a time. Its instructions compete with the softmax, so there must be few.

Two words of codes become pairs of every second element. So tiles have the middle two of four
elements of a head interchanged, and so do queries; results are put in order.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from ..hopper import as_blocks, barrier, copy_pages, make_bars, pages_at
from ..kv_quantization_hopper import SLOT, numbers_of, slot_of

LARGEST = gl.constexpr(64_992.0)  # so that rounding makes no infinity of it
# Rows of a tile that are converted at once: more would not fit the registers. Their parameters fill
# whole slots.
ROWS = gl.constexpr(32)


@gluon.constexpr_function
def _tokens(block_tokens):
    """Of ROWS, those in a block."""
    return min(ROWS.value, block_tokens)


@gluon.constexpr_function
def _params_layout(words, tokens):
    """Parameters [ROWS // tokens, tokens] of rows whose codes threads have in `_words_layout`."""
    at = [[row // tokens, row % tokens] for row in (1, 2, 4, 8, 16)]
    beside = (words // 4).bit_length() - 1  # bits of the lane that are in a row
    lanes = [[0, 0]] * beside + at[: 5 - beside]
    warps, registers = at[5 - beside : 7 - beside], at[7 - beside :]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [ROWS.value // tokens, tokens])


@gluon.constexpr_function
def _words_layout(words):
    return gl.BlockedLayout([1, 4], [128 // words, words // 4], [4, 1], [1, 0])


@gluon.jit
def code_rings(
    codes_desc, params_desc,
    KEYS: gl.constexpr, BLOCK_TOKENS: gl.constexpr, STAGES: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """(codes by block, parameters by block, codes by ROWS, parameters likewise, barriers).

    Without parameters, codes stand in for them.
    """
    WORDS: gl.constexpr = codes_desc.block_shape[1]
    PAGES: gl.constexpr = STAGES * KEYS // BLOCK_TOKENS
    TOKENS: gl.constexpr = _tokens(BLOCK_TOKENS)
    C_LAYOUT: gl.constexpr = codes_desc.layout
    codes = gl.allocate_shared_memory(gl.int16, [STAGES, KEYS, WORDS], C_LAYOUT)
    blocks = as_blocks(codes, PAGES, BLOCK_TOKENS, WORDS, C_LAYOUT)
    rows = as_blocks(codes, STAGES * KEYS // ROWS, ROWS, WORDS, C_LAYOUT)
    bars = make_bars(STAGES, 1)
    if BITS == 0:
        return blocks, blocks, rows, rows, bars
    else:  # noqa: RET505
        P_LAYOUT: gl.constexpr = params_desc.layout
        shape: gl.constexpr = [PAGES, 1, slot_of(BLOCK_TOKENS)]
        params = gl.allocate_shared_memory(gl.int32, shape, P_LAYOUT)
        param_rows = as_blocks(params, STAGES * KEYS // ROWS, ROWS // TOKENS, SLOT, P_LAYOUT)
        return blocks, params, rows, param_rows, bars


@gluon.jit
def copy_codes(
    descs, table, rings, plane, last, tiles, blocks,
    BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """The copying warp: copies the tiles from `last` down. `blocks` = (first visible one, end)."""
    codes, params, _, _, bars = rings
    full, empty = bars
    heads, head, nowhere = plane
    passed, end = blocks
    PAGES: gl.constexpr = KEYS // BLOCK_TOKENS
    WORDS: gl.constexpr = descs[0].block_shape[1]
    BYTES: gl.constexpr = KEYS * (2 * WORDS if BITS == 0 else 2 * WORDS + 4)
    for i in range(tiles):
        pages = pages_at(table, ((last - i) * PAGES, passed, end), PAGES)
        for kind in gl.static_range(2):
            item = 2 * i + kind
            stage = item % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), (item // STAGES & 1) ^ 1)
            mbarrier.expect(bar, BYTES)
            source = (2 * heads, kind * heads + head, nowhere)
            copy_pages(descs[0], pages, source, bar, codes, stage, BLOCK_TOKENS, PAGES, 1)
            if BITS != 0:
                copy_pages(descs[1], pages, source, bar, params, stage, 1, PAGES, 1)


@gluon.jit
def interchanged(rows):
    """Rows [N, D] with the middle two of every four elements interchanged."""
    N: gl.constexpr = rows.shape[0]
    D: gl.constexpr = rows.shape[1]
    return rows.reshape([N, D // 4, 2, 2]).permute((0, 1, 3, 2)).reshape([N, D])


@gluon.jit
def _factors(words, BITS: gl.constexpr):
    """Of parameters as words: (factors, terms) in float16 of codes less half of their range.

    A factor that makes numbers too large for float16 becomes the largest that does not.
    """
    LEVELS: gl.constexpr = (1 << BITS) - 1
    scale = (words & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True)
    zero = (words >> 16).to(gl.int16).to(gl.float16, bitcast=True)
    room = gl.maximum(LARGEST - zero, gl.full_like(zero, 0.0))
    scale = gl.minimum(scale, room * (1 / LEVELS))
    return scale, scale * (LEVELS // 2 + 1.0) + zero


@gluon.jit
def _convert_rows(
    codes, params, target, at, TOKENS: gl.constexpr, FORM: gl.constexpr, BITS: gl.constexpr
):
    """Rows `at` of the rings as numbers, into shared memory."""
    WORDS: gl.constexpr = codes.shape[2]
    LAYOUT: gl.constexpr = _words_layout(WORDS)
    words = codes.index(at).load(LAYOUT)
    if BITS == 0:
        target.store(interchanged(numbers_of((words,), FORM)))
    else:
        pairs = params.index(at).slice(0, TOKENS, 1).load(_params_layout(WORDS, TOKENS))
        L: gl.constexpr = gl.SliceLayout(1, LAYOUT)
        pairs = gl.convert_layout(pairs.reshape([ROWS]), L, assert_trivial=True)
        factor, term = _factors(pairs, BITS)
        blank = gl.zeros([ROWS, WORDS], gl.float16, LAYOUT)
        arguments = (words, blank + factor[:, None], blank + term[:, None])
        target.store(interchanged(numbers_of(arguments, FORM)))


@gluon.jit
def convert_tiles(
    rings, tiles_of, bars, tiles,
    BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    CODE_STAGES: gl.constexpr, FORM: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """The converting group: keys and values of each tile. `tiles_of` = (keys', values') ring."""
    _, _, codes, params, code_bars = rings
    code_full, code_empty = code_bars
    TOKENS: gl.constexpr = _tokens(BLOCK_TOKENS)
    for i in range(tiles):
        stage = i % STAGES
        for kind in gl.static_range(2):
            full, empty = bars[kind]
            item = 2 * i + kind
            source = item % CODE_STAGES
            mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
            mbarrier.wait(code_full.index(source), item // CODE_STAGES & 1)
            tile = tiles_of[kind].index(stage)
            for part in gl.static_range(KEYS // ROWS):
                _convert_rows(
                    codes, params, tile.slice(part * ROWS, ROWS, 0), source * (KEYS // ROWS) + part,
                    TOKENS, FORM, BITS,
                )  # fmt: skip
            fence_async_shared()
            barrier()
            mbarrier.arrive(code_empty.index(source), count=1)
            mbarrier.arrive(full.index(stage), count=1)
