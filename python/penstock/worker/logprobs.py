"""Computes top logprobs and prompt logprobs of a step, and copies them to the host.

The kernels run only in steps with such requests, outside the captured graphs. The logits of a
prompt are computed in pieces of PIECE rows, to save memory. All ranks compute the same pieces,
because each piece of logits is gathered from all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from penstock_kernels import top_logprobs
from torch import Tensor

from penstock.worker.protocol.step import (
    Bools,
    FaultKind,
    Ints,
    Longs,
    NewSequence,
    Outcome,
    PromptLogprobs,
    SlotError,
    TopLogprobs,
)

# Prompt rows per piece: their logits take 31 MiB for a vocabulary of 128k in bfloat16. The head's
# weights are read once per piece.
PIECE = 128
# Up to this many top logprobs, `top_logprobs` finds them one by one; for more, all are sorted.
MOST_SOUGHT = 20
# Prompt rows per piece when all are sorted: the indices take 12 MiB for a vocabulary of 128k.
WHOLE_PIECE = 8

TopLogprobsTensors = tuple[Tensor, Tensor, Tensor, Tensor]  # as top_logprobs returns it


@dataclass(frozen=True)
class PromptSpan:
    """The prompt tokens whose logprobs one run returns: those after each token that it computes."""

    run: int
    slot: int
    request_id: int
    start: int  # position of the first
    targets: Ints  # their ids
    top: int


@dataclass(frozen=True)
class StepLogprobRequests:
    """The logprobs that the runs of one step return, beside those of the sampled tokens."""

    indices: Longs  # of the runs with top logprobs, among the yielding runs
    counts: Longs  # top logprobs of each of these runs
    token_ids: list[Ints]  # requested token ids of each of these runs; empty if no run has any
    spans: list[PromptSpan]


class LogprobRequests:
    """The logprob options of the slots that have any."""

    def __init__(self, slots: int, vocab: int) -> None:
        self.vocab = vocab
        self.slots: set[int] = set()
        self.top = np.zeros(slots, np.int32)
        self.token_ids: dict[int, Ints] = {}
        # Tokens of the prompt whose logprobs are requested; 0 = none.
        self.prompt = np.zeros(slots, np.int32)
        self.prompt_top = np.zeros(slots, np.int32)
        self.request = np.zeros(slots, np.uint64)

    def enter(self, new: NewSequence) -> None:
        """Stores the options of a sequence that enters a slot."""
        sampling, slot = new.sampling, new.slot
        named = sampling.logprob_token_ids
        if not sampling.top_logprobs and sampling.prompt_logprobs is None and named is None:
            return
        self.slots.add(slot)
        if named is not None:
            self.token_ids[slot] = named
        self.top[slot] = min(sampling.top_logprobs, self.vocab)
        self.request[slot] = new.request_id
        if sampling.prompt_logprobs is not None:
            self.prompt[slot] = len(new.token_ids) - new.generated
            self.prompt_top[slot] = min(sampling.prompt_logprobs, self.vocab)

    def fork(self, source: int, slot: int) -> None:
        """Copies the options of `source` to `slot`, except for prompt logprobs."""
        if source in self.slots and (self.top[source] or source in self.token_ids):
            self.slots.add(slot)
            self.top[slot] = self.top[source]
            if source in self.token_ids:
                self.token_ids[slot] = self.token_ids[source]

    def leave(self, slots: Ints) -> None:
        """Removes the options of these slots."""
        for slot in self.slots.intersection(slots.tolist()) if self.slots else ():
            self.slots.remove(slot)
            self.token_ids.pop(slot, None)
            self.top[slot] = self.prompt[slot] = 0

    def clear(self) -> None:
        """Removes the options of all slots."""
        self.slots.clear()
        self.token_ids.clear()
        self.top[:] = self.prompt[:] = 0

    def for_step(
        self, runs: tuple[Ints, Ints, Ints], yields: Bools, ids: Sequence[Ints]
    ) -> StepLogprobRequests | None:
        """Returns the requests of a step's runs (slots, starts, counts); None if there are none.

        `ids` are the known tokens of all slots.
        """
        slots, starts, counts = runs
        yielding = slots[yields]
        top = self.top[yielding]
        names = np.isin(yielding, list(self.token_ids)) if self.token_ids else top > 0
        indices = np.flatnonzero(names | (top > 0))
        none = np.zeros(0, np.int32)
        named = (
            [self.token_ids.get(int(slot), none) for slot in yielding[indices]]
            if self.token_ids
            else []
        )
        lengths = np.minimum(counts, self.prompt[slots] - 1 - starts)
        spans = []
        for run in np.flatnonzero(lengths > 0):
            slot, first = slots[run], int(starts[run]) + 1
            targets = ids[slot][first : first + lengths[run]]
            request, prompt_top = int(self.request[slot]), int(self.prompt_top[slot])
            spans.append(PromptSpan(int(run), int(slot), request, first, targets, prompt_top))
        if not len(indices) and not spans:
            return None
        return StepLogprobRequests(indices, top[indices].astype(np.int64), named, spans)


@dataclass
class LogprobCollector:
    """The logprobs of one step. The launch thread fills it, the reply thread reads it
    afterwards."""

    requests: StepLogprobRequests
    device: torch.device
    top_logprobs: TopLogprobsTensors | None = None
    token_id_logprobs: Tensor | None = None  # of the requested token ids, run after run
    prompt_logprobs: list[tuple[list[PromptSpan], TopLogprobsTensors]] = field(default_factory=list)

    def add_top_logprobs(self, logits: Tensor, ids: Tensor, samples: Longs) -> None:
        """Launches top logprobs, from logits [R, V] and the sampled `ids` [R]."""
        if not len(self.requests.indices):
            return
        rows = _to_device(samples[self.requests.indices], self.device)
        most = int(self.requests.counts.max())
        found = top_logprobs(logits, rows, ids.index_select(0, rows), most)
        self.top_logprobs = self._all_to_host(found)
        if self.requests.token_ids:
            counts = [len(ids) for ids in self.requests.token_ids]
            rows = _to_device(np.repeat(samples[self.requests.indices], counts), self.device)
            targets = _to_device(np.concatenate(self.requests.token_ids), self.device)
            self.token_id_logprobs = _to_host(top_logprobs(logits, rows, targets, 0)[0])

    def add_prompt_logprobs(
        self, hidden: Tensor, head: Callable[[Tensor], Tensor], counts: Ints
    ) -> None:
        """Launches the logprobs of all spans, from the hidden states [T, hidden] of the step."""
        first = np.cumsum(counts) - counts
        whole = [span for span in self.requests.spans if span.top > MOST_SOUGHT]
        few = [span for span in self.requests.spans if span.top <= MOST_SOUGHT]
        for spans, piece in ((few, PIECE), (whole, WHOLE_PIECE)):
            if spans:
                found = self._compute_spans(spans, first, piece, lambda rows: head(hidden[rows]))
                self.prompt_logprobs.append((spans, found))

    def _compute_spans(
        self,
        spans: list[PromptSpan],
        first: Ints,
        piece: int,
        logits_of: Callable[[Tensor], Tensor],
    ) -> TopLogprobsTensors:
        """Returns the logprobs of spans; run i has the rows from `first[i]` on."""
        rows = np.concatenate([first[s.run] + np.arange(len(s.targets)) for s in spans])
        targets = np.concatenate([s.targets for s in spans])
        # Pieces of one size on a GPU: the kernels of each size would have to be compiled.
        spare = -len(rows) % piece if self.device.type == "cuda" else 0
        both = _to_device(np.pad(np.stack((rows, targets)), ((0, 0), (0, spare))), self.device)
        most = max(span.top for span in spans)
        parts = []
        for part in both.split(piece, dim=1):
            logits = logits_of(part[0])
            each = torch.arange(part.shape[1], device=self.device)
            compute = top_logprobs if most <= MOST_SOUGHT else _all_logprobs
            parts.append(compute(logits, each, part[1], most))
        joined = [torch.cat(part) for part in zip(*parts, strict=True)]
        return self._all_to_host((joined[0], joined[1], joined[2], joined[3]))

    def add_to(self, outcome: Outcome, places: Longs) -> None:
        """Adds the logprobs to the outcome of the finished step.

        `places` are the indices of the outcome's tokens among the yielding runs.
        """
        if self.top_logprobs is not None:
            self._add_top_logprobs(outcome, self.top_logprobs, places)
        for spans, found in self.prompt_logprobs:
            at = 0
            for span in spans:
                logprobs = _prompt_logprobs(span, found, at)
                at += len(span.targets)
                if any(math.isnan(logprob) for logprob in logprobs.logprobs):
                    text = "the model's logits are not finite numbers for this prompt"
                    outcome.faults.append(SlotError(span.slot, text, FaultKind.INTERNAL))
                else:
                    outcome.prompt_logprobs.append(logprobs)

    def _add_top_logprobs(self, outcome: Outcome, found: TopLogprobsTensors, places: Longs) -> None:
        """Adds top logprobs, and replaces the logprob of each such token by that of the same
        kernel."""
        own, _, ids, logprobs = (tensor.numpy() for tensor in found)
        requests = self.requests
        at = np.minimum(np.searchsorted(requests.indices, places), len(requests.indices) - 1)
        asks = requests.indices[at] == places
        rows = at[asks]
        for token, logprob in zip(np.flatnonzero(asks), own[rows].tolist(), strict=True):
            outcome.logprobs[token] = logprob
        counts = np.where(asks, requests.counts[at], 0)
        included = np.arange(ids.shape[1]) < counts[asks][:, None]
        top = ids[rows][included].tolist(), logprobs[rows][included].tolist()
        outcome.top_logprobs = TopLogprobs(counts.tolist(), *top)
        if self.token_id_logprobs is not None:
            self._add_token_ids(outcome.top_logprobs, asks, rows)

    def _add_token_ids(self, tops: TopLogprobs, asks: Bools, rows: Longs) -> None:
        """Appends the requested ids to the top logprobs of each token, without duplicates."""
        assert self.token_id_logprobs is not None
        values = self.token_id_logprobs.tolist()
        ends = np.cumsum([len(ids) for ids in self.requests.token_ids]).tolist()
        ids, logprobs = list[int](), list[float]()
        start = 0
        for token, row in zip(np.flatnonzero(asks).tolist(), rows.tolist(), strict=True):
            likely = tops.token_ids[start : start + tops.counts[token]]
            ids += likely
            logprobs += tops.logprobs[start : start + len(likely)]
            start += len(likely)
            token_ids = self.requests.token_ids[row].tolist()
            pairs = zip(token_ids, values[ends[row] - len(token_ids) : ends[row]], strict=True)
            others = [pair for pair in pairs if pair[0] not in likely]
            ids += [token_id for token_id, _ in others]
            logprobs += [logprob for _, logprob in others]
            tops.counts[token] += len(others)
        tops.token_ids[:], tops.logprobs[:] = ids, logprobs

    def _all_to_host(self, found: TopLogprobsTensors) -> TopLogprobsTensors:
        chosen, ranks, ids, logprobs = (_to_host(tensor) for tensor in found)
        return chosen, ranks, ids, logprobs


def _to_device(values: Longs, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values.astype(np.int64, copy=False))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def _to_host(tensor: Tensor) -> Tensor:
    """Copies to pinned memory; the copy is complete when the step is."""
    if tensor.device.type == "cpu":
        return tensor
    home = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return home.copy_(tensor, non_blocking=True)


def _all_logprobs(logits: Tensor, rows: Tensor, targets: Tensor, _: int) -> TopLogprobsTensors:
    """As `top_logprobs`, for the whole vocabulary; of equal logprobs, the lower id comes first."""
    chosen, ranks, _ids, _none = top_logprobs(logits, rows, targets, 0)
    inner = logits if logits.dtype == torch.float64 else logits.float()
    found, ids = inner.log_softmax(-1).sort(dim=-1, descending=True, stable=True)
    return chosen, ranks, ids.int(), found.float()


def _prompt_logprobs(span: PromptSpan, found: TopLogprobsTensors, at: int) -> PromptLogprobs:
    part = slice(at, at + len(span.targets))
    chosen, ranks, ids, logprobs = (tensor.numpy()[part] for tensor in found)
    return PromptLogprobs(
        request_id=span.request_id,
        start=span.start,
        logprobs=chosen.tolist(),
        ranks=ranks.tolist(),
        top=span.top,
        top_token_ids=ids[:, : span.top].ravel().tolist(),
        top_logprobs=logprobs[:, : span.top].ravel().tolist(),
    )
