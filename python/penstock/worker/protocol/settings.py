"""Request and result of Load as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.models import Backend


@dataclass(frozen=True)
class KvPool:
    """The blocks of one KV group."""

    blocks: int
    block_bytes: int = 0  # over the group's layers of this rank
    window: int = 0  # in tokens; 0 = unlimited
    recurrent: bool = False  # whether a sequence has one block, its state


@dataclass(frozen=True)
class Limits:
    """Limits of a loaded worker. The loader sets them; Load reports them to the router."""

    slots: int
    step_tokens: int
    sequence_tokens: int
    block_tokens: int  # of all KV groups
    pools: tuple[KvPool, ...]  # by KV group
    vocab: int

    @property
    def table_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.sequence_tokens // self.block_tokens)

    @property
    def has_states(self) -> bool:
        """Whether a step changes states, so that no token may be computed again."""
        return any(pool.recurrent for pool in self.pools)


@dataclass(frozen=True)
class Settings:
    """All of a worker's configuration. Where the protocol allows 0, the worker chooses the
    value."""

    model: Path
    device: str  # "cuda" | "cpu"
    dtype: str
    rank: int
    world_size: int
    rendezvous: str
    max_sequence_tokens: int
    max_slots: int  # 0 = the worker's choice
    max_step_tokens: int  # 0 = the worker's choice
    kv_memory_bytes: int
    memory_fraction: float
    block_tokens: int
    threads: int
    kv_dtype: str  # "auto" = dtype
    quantize: str  # a weight format; "" = as the checkpoint is stored
    expert_parallel: bool  # whether ranks share the experts of a layer, not each one's inner size
    model_backend: Backend = Backend.AUTO  # what may compute the model


@dataclass(frozen=True)
class MemoryReport:
    """Bytes on the device, by use."""

    total: int
    weights: int
    activations: int  # of the largest step, sampling included, measured
    graphs: int  # reserved for CUDA graphs
    slots: int  # device-resident state of all slots
    kv: int


@dataclass(frozen=True)
class Loaded:
    """The result of Load."""

    limits: Limits
    device_name: str
    memory: MemoryReport
    model_backend: Backend  # what computes the model: NATIVE or TRANSFORMERS
    limitations: tuple[str, ...]  # what is given up with TRANSFORMERS, in phrases for people
    step_sizes: list[int]  # tokens of a step with prompts that suit the device, rising; [] = all
