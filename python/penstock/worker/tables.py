"""The slots' block tables, one per slot and KV group, equal to the router's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock.faults import BadStep
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.protocol.step import Bools, Ints, Step, Tables

NO_BLOCKS: Ints = np.zeros(0, np.int32)


@dataclass
class TableWrite:
    """Blocks to write into a slot's table of a KV group, from `column` on."""

    group: int
    slot: int
    column: int
    blocks: Ints


class BlockTables:
    """Block tables, indexed by position from 0. Entries behind a group's window keep their old
    values; nothing reads them."""

    def __init__(self, limits: Limits) -> None:
        groups = len(limits.pools)
        self.limits = limits
        self.used = np.zeros((groups, limits.slots), np.int32)  # entries of each table
        self.entries = np.zeros((groups, limits.slots, limits.table_blocks), np.int32)

    def check(self, step: Step) -> None:
        """Raises BadStep if a step names an unknown KV group, or lengths of lists do not match."""
        grown = [growth.group for growth in step.growth]
        named = [*grown, *(copies.group for copies in step.copies)]
        for tables in [*(new.tables for new in step.new), *(fork.tables for fork in step.forks)]:
            named += tables
        groups = len(self.limits.pools)
        if any(group >= groups for group in named):
            raise BadStep(f"the step names KV group {max(named)}; this worker declared {groups}")
        if len(set(grown)) != len(grown):
            raise BadStep("growth names a KV group twice")
        for growth in step.growth:
            if len(growth.counts) not in (0, len(step.run_slots)):
                raise BadStep("growth.counts and run_slots differ in length")
            if growth.counts.sum() != len(growth.blocks):
                raise BadStep("growth.blocks is not as long as its counts say")
        for copies in step.copies:
            if len(copies.sources) != len(copies.destinations):
                raise BadStep("copies.sources and copies.destinations differ in length")

    def error(self, tables: Tables, computed: int) -> str | None:
        """Returns why a sequence with this number of computed tokens cannot have these tables, or
        None.

        Blocks behind a window may have any id.
        """
        most = self.limits.table_blocks
        for group, blocks in tables.items():
            pool = self.limits.pools[group]
            if len(blocks) > most:
                return f"a table has {len(blocks)} blocks; at most {most} fit"
            read = blocks[self._passed(pool, computed) :]
            if len(read) and not 0 <= read.min() <= read.max() < pool.blocks:
                return f"block {read.max()} does not exist; the pool has {pool.blocks}"
        return None

    def _passed(self, pool: KvPool, computed: int) -> int:
        """Returns how many blocks at the start of a table no run after `computed` tokens reads."""
        return max(computed + 1 - pool.window, 0) // self.limits.block_tokens if pool.window else 0

    def set(self, slot: int, tables: Tables) -> Iterable[TableWrite]:
        """Sets a slot's tables of all groups."""
        for group in range(len(self.limits.pools)):
            blocks = tables.get(group, NO_BLOCKS)
            self.entries[group, slot, : len(blocks)] = blocks
            self.used[group, slot] = len(blocks)
            yield TableWrite(group, slot, 0, blocks)

    def grow(self, step: Step, active: Bools) -> Iterable[TableWrite]:
        """Appends a step's growth, except to slots that are not active or would grow too long."""
        for growth in step.growth:
            entries, used, start = self.entries[growth.group], self.used[growth.group], 0
            for run in growth.counts.nonzero()[0]:
                slot, count = step.run_slots[run], growth.counts[run]
                blocks = growth.blocks[start : start + count]
                start += count
                column = used[slot]
                if active[slot] and column + count <= self.limits.table_blocks:
                    entries[slot, column : column + count] = blocks
                    used[slot] += count
                    yield TableWrite(growth.group, int(slot), int(column), blocks)

    def room(self, slots: Ints) -> Ints:
        """Returns for how many tokens slots have blocks, in the group with the fewest. A state has
        room for any number."""
        fewest: Ints = np.full(len(slots), self.limits.table_blocks, np.int32)
        for pool, used in zip(self.limits.pools, self.used, strict=True):
            held = used[slots]
            if pool.recurrent:
                held = np.where(held > 0, fewest, 0)
            fewest = np.minimum(fewest, held)
        return fewest * self.limits.block_tokens
