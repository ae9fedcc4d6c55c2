"""A step and its outcome as plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.grammar import Matcher
from penstock.worker.protocol.sampling_params import Ints as Ints
from penstock.worker.protocol.sampling_params import Longs as Longs
from penstock.worker.protocol.sampling_params import SamplingParams

Bools = npt.NDArray[np.bool_]
Tables = Mapping[int, Ints]  # KV group -> blocks of a sequence, in order of positions from 0 on


class FaultKind(enum.Enum):
    """Why a sequence cannot run; named as in the protocol."""

    INVALID = enum.auto()  # the request is to blame
    INTERNAL = enum.auto()  # the worker is
    UNPREPARED = enum.auto()  # what Prepare made is gone: once that is done again, it may enter


@dataclass(frozen=True)
class SlotError:
    """Why the sequence in a slot failed; the text is for its client."""

    slot: int
    message: str
    kind: FaultKind = FaultKind.INVALID


@dataclass(frozen=True)
class NewSequence:
    """A sequence that enters a slot, with its entire state."""

    slot: int
    token_ids: Ints
    generated: int  # of token_ids, at their end
    computed: int  # tokens whose KV is in the blocks
    tables: Tables
    sampling: SamplingParams
    matcher: Matcher | None = None  # where it is in what its tokens must spell
    fault: SlotError | None = None  # why it cannot be
    request_id: int = 0


@dataclass(frozen=True)
class Fork:
    """`destination` becomes a copy of `source`, with its own blocks and seed."""

    source: int
    destination: int
    tables: Tables
    seed: int  # as signed 64 bits


@dataclass(frozen=True)
class Copies:
    """Whole blocks of a KV group that are copied."""

    group: int
    sources: Longs
    destinations: Longs


@dataclass(frozen=True)
class Growth:
    """Blocks of a KV group that are appended to the tables of the step's runs."""

    group: int
    counts: Ints  # one per run
    blocks: Ints


@dataclass(frozen=True)
class Step:
    """The work of one step; the parts are applied in the order of the fields."""

    epoch: int
    step: int
    finished: Ints
    new: list[NewSequence]
    forks: list[Fork]
    copies: list[Copies]
    growth: list[Growth]  # at most one of each KV group
    run_slots: Ints
    run_tokens: Ints
    steered_slots: Ints  # slots whose last known token is replaced
    steered_tokens: Ints
    received: float = 0.0  # when the request was parsed, on the host's monotonic clock


@dataclass(frozen=True)
class TopLogprobs:
    """The most likely tokens at the position of each token of an outcome."""

    counts: list[int]  # one per token of the outcome
    token_ids: list[int]  # sum(counts), of each token the likeliest first
    logprobs: list[float]


@dataclass(frozen=True)
class PromptLogprobs:
    """Logprobs that a run returns for the prompt tokens from position `start` on."""

    request_id: int
    start: int
    logprobs: list[float]
    ranks: list[int]
    top: int
    top_token_ids: list[int]  # `top` of each
    top_logprobs: list[float]


@dataclass
class Outcome:
    """The result of a step: one token for each of `slots`, in run order."""

    epoch: int
    step: int
    slots: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    faults: list[SlotError] = field(default_factory=list)
    closing: list[int] = field(default_factory=list)  # slots whose grammar lets nothing be opened
    top_logprobs: TopLogprobs | None = None
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    host_us: int = 0
    device_us: int = 0
