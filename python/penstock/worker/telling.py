"""Computes the log-probabilities that a step is asked for, on their way to the host.

Launched only in steps in which somebody asks, outside the captured graphs. Of a prompt's rows the
logits of one piece exist at a time: a piece is joined from the ranks like any logits, so that all
ranks go through the same pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from penstock_kernels import top_logprobs
from torch import Tensor

from penstock.worker.asking import Asked, Span
from penstock.worker.batch import Packed
from penstock.worker.state import Work
from penstock.worker.step import FaultKind, Longs, Outcome, PromptTold, SlotFault, Tops

# Prompt rows whose logits exist at once: 31 MiB for 128k bfloat16 words. The head's weights are
# read once a piece.
PIECE = 128

Found = tuple[Tensor, Tensor, Tensor, Tensor]  # as top_logprobs returns it


@dataclass
class Telling:
    """What one step tells. Filled by the launch thread, read by the reply thread after the step."""

    asked: Asked
    device: torch.device
    tops: Found | None = None
    prompts: Found | None = None

    def tell_tops(self, logits: Tensor, ids: Tensor, packed: Packed) -> None:
        """The likeliest tokens beside the chosen `ids` [R], from their logits [R, V]."""
        if not len(self.asked.places):
            return
        rows = _on(packed.samples[self.asked.places], self.device)
        most = int(self.asked.counts.max())
        found = top_logprobs(logits, rows, ids.index_select(0, rows), most)
        self.tops = self._home(found)

    def tell_prompts(self, hidden: Tensor, head: Callable[[Tensor], Tensor], work: Work) -> None:
        """All spans, from the hidden states [T, hidden] of the step."""
        spans = self.asked.spans
        first = np.cumsum(work.counts) - work.counts
        rows = np.concatenate([first[s.run] + np.arange(len(s.targets)) for s in spans])
        targets = np.concatenate([s.targets for s in spans])
        # Pieces of one size on a GPU: the kernels of each size would have to be compiled.
        spare = -len(rows) % PIECE if self.device.type == "cuda" else 0
        both = _on(np.pad(np.stack((rows, targets)), ((0, 0), (0, spare))), self.device)
        most = max(span.top for span in spans)
        parts = []
        for piece in both.split(PIECE, dim=1):
            logits = head(hidden.index_select(0, piece[0]))
            each = torch.arange(piece.shape[1], device=self.device)
            parts.append(top_logprobs(logits, each, piece[1], most))
        joined = [torch.cat(part) for part in zip(*parts, strict=True)]
        self.prompts = self._home((joined[0], joined[1], joined[2], joined[3]))

    def add_to(self, outcome: Outcome, places: Longs) -> None:
        """Once the step is done. `places` are those of the outcome's tokens among yielding runs."""
        if self.tops is not None:
            self._add_tops(outcome, self.tops, places)
        at = 0
        for span in self.asked.spans:
            assert self.prompts is not None
            told = _prompt(span, self.prompts, at)
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
