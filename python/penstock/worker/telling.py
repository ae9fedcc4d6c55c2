"""Computes the log-probabilities that a step is asked for, on their way to the host.

Launched only in steps in which somebody asks, outside the captured graphs. Of a prompt's rows the
logits of one piece exist at a time: a piece is joined from the ranks like any logits, so that all
ranks go through the same pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from penstock_kernels import top_logprobs
from torch import Tensor

from penstock.worker.asking import Asked, Span
from penstock.worker.batch import Packed
from penstock.worker.state import Work
from penstock.worker.step import Bools, FaultKind, Ints, Longs, Outcome, PromptTold, SlotFault, Tops

# Prompt rows whose logits exist at once: 31 MiB for 128k bfloat16 words. The head's weights are
# read once a piece.
PIECE = 128
# Alternatives that are sought one by one; more are sorted.
MOST_SOUGHT = 20

# The same where the whole vocabulary is told, which is sorted: 12 MiB of places for 128k words.
WHOLE_PIECE = 8

Found = tuple[Tensor, Tensor, Tensor, Tensor]  # as top_logprobs returns it


@dataclass
class Telling:
    """What one step tells. Filled by the launch thread, read by the reply thread after the step."""

    asked: Asked
    device: torch.device
    tops: Found | None = None
    named: Tensor | None = None  # log-probabilities of the tokens named, run after run
    prompts: list[tuple[list[Span], Found]] = field(default_factory=list)

    def tell_tops(self, logits: Tensor, ids: Tensor, packed: Packed) -> None:
        """The likeliest tokens beside the chosen `ids` [R], from their logits [R, V]."""
        if not len(self.asked.places):
            return
        rows = _on(packed.samples[self.asked.places], self.device)
        most = int(self.asked.counts.max())
        found = top_logprobs(logits, rows, ids.index_select(0, rows), most)
        self.tops = self._home(found)
        if self.asked.named:
            counts = [len(ids) for ids in self.asked.named]
            rows = _on(np.repeat(packed.samples[self.asked.places], counts), self.device)
            targets = _on(np.concatenate(self.asked.named), self.device)
            self.named = _to_host(top_logprobs(logits, rows, targets, 0)[0])

    def tell_prompts(self, hidden: Tensor, head: Callable[[Tensor], Tensor], work: Work) -> None:
        """All spans, from the hidden states [T, hidden] of the step."""
        first = np.cumsum(work.counts) - work.counts
        whole = [span for span in self.asked.spans if span.top > MOST_SOUGHT]
        few = [span for span in self.asked.spans if span.top <= MOST_SOUGHT]
        for spans, piece in ((few, PIECE), (whole, WHOLE_PIECE)):
            if spans:
                found = self._of_spans(spans, first, piece, lambda rows: head(hidden[rows]))
                self.prompts.append((spans, found))

    def _of_spans(
        self, spans: list[Span], first: Ints, piece: int, logits_of: Callable[[Tensor], Tensor]
    ) -> Found:
        """What these spans tell, of rows that begin with `first` of each run."""
        rows = np.concatenate([first[s.run] + np.arange(len(s.targets)) for s in spans])
        targets = np.concatenate([s.targets for s in spans])
        # Pieces of one size on a GPU: the kernels of each size would have to be compiled.
        spare = -len(rows) % piece if self.device.type == "cuda" else 0
        both = _on(np.pad(np.stack((rows, targets)), ((0, 0), (0, spare))), self.device)
        most = max(span.top for span in spans)
        parts = []
        for part in both.split(piece, dim=1):
            logits = logits_of(part[0])
            each = torch.arange(part.shape[1], device=self.device)
            tell = top_logprobs if most <= MOST_SOUGHT else _whole
            parts.append(tell(logits, each, part[1], most))
        joined = [torch.cat(part) for part in zip(*parts, strict=True)]
        return self._home((joined[0], joined[1], joined[2], joined[3]))

    def add_to(self, outcome: Outcome, places: Longs) -> None:
        """Once the step is done. `places` are those of the outcome's tokens among yielding runs."""
        if self.tops is not None:
            self._add_tops(outcome, self.tops, places)
        for spans, found in self.prompts:
            at = 0
            for span in spans:
                told = _prompt(span, found, at)
                at += len(span.targets)
                if any(math.isnan(logprob) for logprob in told.logprobs):
                    text = "the model's logits are not finite numbers for this prompt"
                    outcome.faults.append(SlotFault(span.slot, text, FaultKind.INTERNAL))
                else:
                    outcome.prompts.append(told)

    def _add_tops(self, outcome: Outcome, found: Found, places: Longs) -> None:
        """Those who ask get their token's log-probability from the same sum as the others'."""
        own, _, ids, logprobs = (tensor.numpy() for tensor in found)
        asked = self.asked
        at = np.minimum(np.searchsorted(asked.places, places), len(asked.places) - 1)
        asks = asked.places[at] == places
        rows = at[asks]
        for token, logprob in zip(np.flatnonzero(asks), own[rows].tolist(), strict=True):
            outcome.logprobs[token] = logprob
        counts = np.where(asks, asked.counts[at], 0)
        wanted = np.arange(ids.shape[1]) < counts[asks][:, None]
        told = ids[rows][wanted].tolist(), logprobs[rows][wanted].tolist()
        outcome.tops = Tops(counts.tolist(), *told)
        if self.named is not None:
            self._add_named(outcome.tops, asks, rows)

    def _add_named(self, tops: Tops, asks: Bools, rows: Longs) -> None:
        """Puts the tokens named behind the likeliest of each token, but for those among them."""
        assert self.named is not None
        values = self.named.tolist()
        ends = np.cumsum([len(named) for named in self.asked.named]).tolist()
        ids, logprobs = list[int](), list[float]()
        start = 0
        for token, row in zip(np.flatnonzero(asks).tolist(), rows.tolist(), strict=True):
            likely = tops.token_ids[start : start + tops.counts[token]]
            ids += likely
            logprobs += tops.logprobs[start : start + len(likely)]
            start += len(likely)
            named = self.asked.named[row].tolist()
            told = zip(named, values[ends[row] - len(named) : ends[row]], strict=True)
            others = [pair for pair in told if pair[0] not in likely]
            ids += [token_id for token_id, _ in others]
            logprobs += [logprob for _, logprob in others]
            tops.counts[token] += len(others)
        tops.token_ids[:], tops.logprobs[:] = ids, logprobs

    def _home(self, found: Found) -> Found:
        chosen, ranks, ids, logprobs = (_to_host(tensor) for tensor in found)
        return chosen, ranks, ids, logprobs


def _on(values: Longs, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values.astype(np.int64, copy=False))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, there when the step is done."""
    if tensor.device.type == "cpu":
        return tensor
    home = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return home.copy_(tensor, non_blocking=True)


def _whole(logits: Tensor, rows: Tensor, targets: Tensor, _: int) -> Found:
    """As top_logprobs, for all tokens: sorted, of equally likely ones the lower id first."""
    chosen, ranks, _ids, _none = top_logprobs(logits, rows, targets, 0)
    inner = logits if logits.dtype == torch.float64 else logits.float()
    found, ids = inner.log_softmax(-1).sort(dim=-1, descending=True, stable=True)
    return chosen, ranks, ids.int(), found.float()


def _prompt(span: Span, found: Found, at: int) -> PromptTold:
    part = slice(at, at + len(span.targets))
    chosen, ranks, ids, logprobs = (tensor.numpy()[part] for tensor in found)
    return PromptTold(
        request_id=span.request_id,
        start=span.start,
        logprobs=chosen.tolist(),
        ranks=ranks.tolist(),
        top=span.top,
        top_token_ids=ids[:, : span.top].ravel().tolist(),
        top_logprobs=logprobs[:, : span.top].ravel().tolist(),
    )
