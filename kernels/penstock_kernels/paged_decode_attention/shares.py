"""How the programs of decode attention share its work, which lengths on the device decide.

Places are on a line: of each (sequence, key head) pair, one after another, first `extra` places,
then one for each of its tiles of keys. Of many pairs `extra` is 1, since to begin and to end a pair
takes as long as a tile; of few it is 0, where single tiles are worth sharing. Each program has an
equal share of the line, wherever that falls. Padding behind the last sequence has no place.

Source: Osama et al., Stream-K, 2023; Sanovar et al., Lean Attention, 2024.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..hopper import add
from ..online_softmax import first_seen

# A pair is one program's share if the longest has at most UNEVEN times an equal share, since who is
# left at the end has more of the bandwidth, and ADDING tiles, the time that adding up parts takes.
UNEVEN, ADDING = gl.constexpr(2), gl.constexpr(3)


@gluon.jit
def tiles_in(length, window, KEYS: gl.constexpr, ALIGNED: gl.constexpr):
    """(first visible tile, number of tiles) of a sequence; one, empty, for one without keys."""
    first = first_seen(length - 1, window, ALIGNED) // KEYS
    return first, gl.maximum(gl.cdiv(length, KEYS) - first, 1)


@gluon.jit
def begin_of(program, total, programs):
    """Where a program's share begins."""
    return (program.to(gl.int64) * total // programs).to(gl.int32)


@gluon.jit
def owner_of(place, total, programs):
    """The program in whose share a place is."""
    return (((place + 1).to(gl.int64) * programs - 1) // total).to(gl.int32)


@gluon.jit
def share_of(
    kv_len, kv_heads, sequences, window,
    KEYS: gl.constexpr, SEQUENCES: gl.constexpr, LEAST: gl.constexpr, ALIGNED: gl.constexpr,
    FEW: gl.constexpr = 0,
):  # fmt: skip
    """(begin, end, first sequence, where that begins, all places, programs, extra, live).

    `programs` share all places, LEAST each or more, but single ones if no pair has more than FEW
    tiles; padding follows the first `live` sequences. Where the pairs are few
    enough and of a size, each is the share of one program, and no pair is shared: that is 1 sharing
    program.
    """
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    every = gl.arange(0, SEQUENCES, L)
    length = gl.load(kv_len + every, mask=every < sequences, other=0)
    live = gl.max(gl.where(length > 0, every + 1, 0), 0)
    exists = every < live
    _, tiles = tiles_in(length, window, KEYS, ALIGNED)
    tiles = gl.where(exists, tiles, 0)
    program, pairs = gl.program_id(0), live * kv_heads
    extra = gl.where(pairs > gl.num_programs(0), 1, 0)
    places = gl.where(exists, (tiles + extra) * kv_heads, 0)
    ends = gl.associative_scan(places, 0, add)
    total = gl.sum(places, 0)
    longest = gl.max(tiles, 0)
    shares = gl.where(longest <= FEW, total, total // LEAST)
    programs = gl.minimum(gl.num_programs(0), gl.maximum(shares, 1))
    begin = begin_of(program, total, programs)
    end = gl.minimum(begin_of(program + 1, total, programs), total)
    before = ends <= begin
    sequence = gl.sum(gl.where(before & exists, 1, 0), 0)
    most = longest - ADDING
    if (pairs <= gl.num_programs(0)) & (most * gl.num_programs(0) <= total * UNEVEN):
        sequence = gl.minimum(program // kv_heads, live)
        before = every < sequence
        own = gl.sum(gl.where(every == sequence, tiles, 0), 0)
        begin = gl.sum(gl.where(before, places, 0), 0) + program % kv_heads * own
        end = begin + own
        programs = gl.minimum(programs, 1)
    base = gl.sum(gl.where(before, places, 0), 0)
    return begin, end, sequence, base, total, programs, extra, live


@gluon.jit
def part_at(at, end, base, tiles, extra):
    """Of the pair at `at`: (key head, where it begins, its tiles before the share, those in it)."""
    head = (at - base) // (tiles + extra)
    start = base + head * (tiles + extra)
    skipped = gl.maximum(at - start - extra, 0)
    return head, start, skipped, gl.minimum(tiles - skipped, end - start - extra - skipped)
