"""What hashed n-grams add to all residual streams (Qwen4-Exp), and the table of their rows.

The layer is recurrent: a state has the ids of the tokens before, and the convolution's last inputs.
Ranks share the table by rows; everything else is on every rank, as the streams are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from penstock_kernels import causal_conv
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.config import NgramSpec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer
from penstock.layers.gated_streams import StreamNorm
from penstock.layers.ngram_hash import NgramHash, padded_rows
from penstock.layers.per_layer import WholeLinear
from penstock.layers.recurrent import StateRuns
from penstock.weights import Target

LEAST = 1e-6  # of what the square root of a gate is taken of


class NgramTable(Layer):
    """This rank's rows of the table, which checkpoints store in parts."""

    def __init__(self, build: Build, spec: NgramSpec) -> None:
        self.group = build.group
        self.whole, self.parts = padded_rows(spec), spec.parts
        self.rows = -(-self.whole // self.group.size)
        self.first = self.rows * self.group.rank
        self.weight = build.empty(self.rows, spec.size // spec.tables).zero_()

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the parts; a rank has all, some or no rows of each."""
        each = -(-self.whole // self.parts)
        starts = range(0, self.whole, each)
        return {f"parts.{i}.weight": self._part(start, each) for i, start in enumerate(starts)}

    def _part(self, start: int, rows: int) -> Target:
        """The target of the part of at most `rows` rows from `start` on."""
        stop = min(start + rows, self.whole)
        begin, end = max(start, self.first), min(stop, self.first + self.rows)
        width = self.weight.shape[1]
        if begin >= end:
            begin = end = start
        own = self.weight.narrow(0, max(begin - self.first, 0) * (end > begin), end - begin)
        region = slice(begin - start, end - start), slice(0, width)
        return Target(own, (stop - start, width), region)

    def __call__(self, rows: Tensor) -> Tensor:
        """rows [T, tables] int64 -> [T, size], the same on every rank."""
        if self.group.size == 1:
            return F.embedding(rows, self.weight).flatten(1)
        local = rows - self.first
        found = F.embedding(local.clamp(0, self.rows - 1), self.weight)
        found.mul_(((local >= 0) & (local < self.rows)).unsqueeze(-1))
        return self.group.summed(found.flatten(1))


class DilatedConvolution(Layer):
    """The weights of a convolution that reads tokens some way apart."""

    def __init__(self, build: Build, spec: NgramSpec) -> None:
        self.dilation = spec.order
        self.weight = build.empty(spec.channels, 1, spec.width)
        self.taps: Tensor | None = None
        """[channels, (width - 1) dilation + 1], zeros between the weights."""

    def targets(self) -> dict[str, Target]:
        """Returns the target of all channels."""
        return {"weight": Target.whole(self.weight)}

    def finish(self) -> None:
        """Spreads the weights."""
        channels, _, width = self.weight.shape
        self.taps = self.weight.new_zeros(channels, (width - 1) * self.dilation + 1)
        self.taps[:, :: self.dilation] = self.weight[:, 0]


class NgramLayer(StateRuns):
    """Layer `index`: rows of the token's n-grams, times a gate of each stream, and a convolution
    of that."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: NgramSpec, index: int, vocab: int
    ) -> None:
        self.index, self.end, self.order = index, spec.end, spec.order
        self.hash = NgramHash(spec, vocab, build.device)
        self.table = NgramTable(build, spec)
        self.key = WholeLinear(build, spec.channels, spec.size)
        self.value = WholeLinear(build, residual.hidden, spec.size)
        self.key_norm, self.query_norm, self.value_norm = (
            StreamNorm(build, residual) for _ in range(3)
        )
        self.convolution = DilatedConvolution(build, spec)
        # The channel i of a convolution of ids yields the id i + 1 tokens before. Ids are exact.
        wide = torch.promote_types(build.dtype, torch.float32)
        eye = torch.eye(spec.order - 1, dtype=wide, device=build.device).flip(1)
        self.shifts = F.pad(eye, (0, 1)).contiguous()

    def __call__(self, streams: Tensor, context: StepContext) -> Tensor:
        """streams [T, N, hidden] -> what is added to them, [T, N, hidden]."""
        rows = self.table(self.hash(self.ngrams(context)))
        keys = self.key_norm(self.key(rows).view(streams.shape))
        wide = torch.promote_types(streams.dtype, torch.float32)
        score = (keys * self.query_norm(streams)).to(wide).sum(-1, keepdim=True)
        score *= streams.shape[-1] ** -0.5
        gate = (score.abs().clamp_min(LEAST).sqrt() * score.sign()).sigmoid_()
        value = (gate * self.value(rows)[:, None]).to(streams.dtype)
        x = self.value_norm(value).flatten(1)
        out = torch.empty_like(x)

        def convolve(tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
            assert self.convolution.taps is not None and cache.inputs is not None
            causal_conv(tokens[0], self.convolution.taps, cache.inputs, runs, tokens[1])

        self.run([x, out], context, convolve)
        return value + out.view(value.shape)

    def ngrams(self, context: StepContext) -> Tensor:
        """Returns the ids of each token and of those before it [T, order] int64. Beyond the end of
        the text before, or of the sequence, ids are that end."""
        assert context.ids is not None
        own = context.ids.long()
        # A state without tokens is zeros, so ids count from 1.
        x = (own + 1).to(self.shifts.dtype)[:, None].expand(-1, self.order - 1).contiguous()
        before = torch.zeros_like(x)

        def shift(tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
            assert cache.memory is not None
            causal_conv(tokens[0], self.shifts, cache.memory, runs, tokens[1], silu=False)

        self.run([x, before], context, shift)
        found, last = [own], own
        for column in before.long().unbind(1):
            known = column > 0
            if len(found) > 1:
                known = known & (last != self.end)
            last = (column - 1).where(known, self.end)
            found.append(last)
        return torch.stack(found, 1)
