"""The context of a step, which layers read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from penstock.cache import LayerCache


@dataclass(frozen=True)
class KvPlaces:
    """Where the layers of one KV group read and write keys and values.

    Tables list blocks by position from 0 on. Entries before a group's window may be the ids of
    other sequences' blocks; kernels do not read them.
    """

    tables: Tensor  # [table rows, blocks] int32: of all slots, not only of the step's
    slot_mapping: Tensor  # [T] int32: block * block_tokens + offset; -1 = a padded row


@dataclass(frozen=True)
class Decodes:
    """The sequences that run one token: the first rows of the step.

    The rows of `count` after the last decode are padding with a kv_len of 0. They may be chunk
    rows.
    """

    count: int
    slots: Tensor  # [count] int32: each sequence's row of its tables
    kv_len: Tensor  # [count] int32, this step's token included


@dataclass(frozen=True)
class Chunks:
    """The sequences that run several tokens: all rows after the last decode."""

    slots: Tensor  # [count] int32: each sequence's row of its tables
    query_start: Tensor  # [count + 1] int32, rows of the step
    kv_len: Tensor  # [count] int32, this step's tokens included
    max_query: int  # longest chunk


@dataclass(frozen=True)
class StepContext:
    """Built by the worker for each step; read by layers."""

    positions: Tensor  # [T] int32
    places: Sequence[KvPlaces]  # of each layer: those of its KV group
    caches: Sequence[LayerCache]  # of each layer
    decodes: Decodes | None
    chunks: Chunks | None
