"""What the ops of recurrent layers share: runs of sequences, and where their states are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import INDEX, expect, expect_contiguous, expect_rank


@dataclass(frozen=True)
class Runs:
    """The tokens of a step that sequences run, and the blocks of their states."""

    block_tables: Tensor
    """[N, B] int32; the first entry of a row is the block of a sequence's state."""
    slots: Tensor
    """[S] int32, the row of block_tables of each sequence."""
    query_start: Tensor | None
    """[S + 1] int32, rising: each sequence's rows; None: one row of each (T = S)."""
    kv_len: Tensor
    """[S] int32, tokens of each sequence with those of this run. If the run has all of them, it
    begins with the empty state, whatever the block contains. 0 marks padding: nothing is read or
    written."""
    max_query: int
    """At least the largest number of rows of a sequence; it sizes the launch."""

    def check(self, tokens: int) -> None:
        """Raises ValueError unless the tensors fit together and `tokens` rows."""
        expect_rank("block_tables", self.block_tables, "N, B")
        expect("block_tables", self.block_tables, tuple(self.block_tables.shape), INDEX)
        expect("slots", self.slots, (len(self.slots),), INDEX)
        expect("kv_len", self.kv_len, (len(self.slots),), INDEX)
        if self.query_start is not None:
            expect("query_start", self.query_start, (len(self.slots) + 1,), INDEX)
        elif tokens != len(self.slots):
            raise ValueError(f"there are {tokens} rows for {len(self.slots)} sequences; one each")
        if self.max_query < 1:
            raise ValueError(f"max_query is {self.max_query}; expected 1 or more")

    def blocks(self) -> Tensor:
        """The block of each sequence's state, [S] int64."""
        return self.block_tables[self.slots.long(), 0].long()

    def each(self) -> Iterator[tuple[slice, int, bool]]:
        """Yields of each sequence that runs its rows, its block, and whether it has a state. Reads
        values on the host."""
        start = self.query_start
        starts = list(range(len(self.slots) + 1)) if start is None else start.tolist()
        kv_len, blocks = self.kv_len.tolist(), self.blocks().tolist()
        for index, (length, block) in enumerate(zip(kv_len, blocks, strict=True)):
            rows = slice(starts[index], starts[index + 1])
            count = rows.stop - rows.start
            if length and count:
                yield rows, block, length > count


Chunk = Callable[[list[Tensor], Tensor], tuple[Tensor, Tensor]]
"""From the tokens of a chunk, tensors [heads, n, ...], and the state before it to its outputs
[heads, n, E] and the state after it."""


def in_chunks(
    compute: Chunk, tokens: Sequence[Tensor], states: Tensor, runs: Runs, out: Tensor, size: int
) -> Tensor:
    """Takes the runs through chunks of `size` tokens; for references, since it reads values on the
    host. `tokens`: tensors [T, heads, ...]. Writes states and `out` [T, heads, E]."""
    for rows, block, begun in runs.each():
        state = states[block, 0] if begun else torch.zeros_like(states[block, 0])
        for start in range(rows.start, rows.stop, size):
            some = slice(start, min(start + size, rows.stop))
            found, state = compute([each[some].transpose(0, 1) for each in tokens], state)
            out[some] = found.transpose(0, 1).to(out.dtype)
        states[block, 0] = state
    return out


def accumulated(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    """The states [n, ...] after each of n tokens, which multiply them by decays of at most 1 and
    add something, [n, ...] each; `state` [...] is before them.

    Two maps of a state to a S + s in a row are one: (a2 a1, a2 s1 + s2). So those from the start to
    each token are a prefix sum, which takes as many passes as n has binary digits (Hillis and
    Steele, Data parallel algorithms, 1986).
    """
    total = torch.cat((decay[:1] * state + added[:1], added[1:]))
    reach = 1
    while reach < len(total):
        total = torch.cat((total[:reach], decay[reach:] * total[:-reach] + total[reach:]))
        decay = torch.cat((decay[:reach], decay[reach:] * decay[:-reach]))
        reach *= 2
    return total


def expect_states(name: str, states: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless `states` is contiguous, with blocks of this shape, of floats."""
    floats = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    expect(name, states, (len(states), *shape), floats)
    expect_contiguous(name, states)
