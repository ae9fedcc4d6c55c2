"""Compressed convolutional attention (CCA, arXiv:2510.04476; ZAYA1).

Queries and keys go through two short convolutions, to which means of the two are added, before a
norm of each head. Half of the values are those of the token before.
"""

from __future__ import annotations

import torch
from penstock_kernels import head_norm
from torch import Tensor

from penstock.config import AttentionSpec, CcaSpec, ResidualSpec
from penstock.faults import BadSetting
from penstock.layers.attention import Attention, StepContext, attend
from penstock.layers.base import Build
from penstock.layers.cca_convolutions import CcaConvolutions
from penstock.layers.linear import ColumnLinear
from penstock.parallel import Share
from penstock.weights import Target

HALVES = "v_current", "v_delayed"
EPS = 1e-12  # of a head's mean square, which is divided by its length


class CcaInputs(ColumnLinear):
    """Projections of queries, keys, and two halves of values. Of several ranks, each has all
    queries of its KV heads, and values of one half."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, share: Share
    ) -> None:
        """`share`: of the KV heads. Raises BadSetting for values of both halves on some ranks."""
        parts = {"q": spec.heads * spec.head_dim, "k": spec.kv_heads * spec.head_dim}
        halves = _halves(share)
        shares = dict.fromkeys(parts, share) | halves
        parts |= dict.fromkeys(halves, spec.kv_heads * spec.head_dim // 2)
        super().__init__(build, parts, residual, spec.qkv_bias, shares=shares)

    def targets(self) -> dict[str, Target]:
        """As `ColumnLinear.targets`; the half that other ranks have is checked, and not read."""
        found = super().targets()
        here = next(half for half in HALVES if half in self.parts)
        own = {name: target for name, target in found.items() if name.startswith(here)}
        for half in HALVES:
            if half not in self.parts:
                found |= {name.replace(here, half): each.nothing() for name, each in own.items()}
        return found


def _halves(share: Share) -> dict[str, Share]:
    """The halves of values that are on a rank with this share of the KV heads, and its share of
    each."""
    if share.count == 1:
        return dict.fromkeys(HALVES, share)
    each, odd = divmod(share.count, 2)
    if odd:
        raise BadSetting(
            f"the values of KV heads have two halves, which cannot be cut in {share.count} parts "
            "together; set --tp to 1, or to an even number"
        )
    return {HALVES[share.index // each]: Share(share.index % each, each)}


class CcaAttention(Attention):
    """Attention whose queries and keys are convolved; the convolutions' states are those of the
    layer before. A head is divided by its length; each KV head's keys have a learned factor."""

    def __init__(
        self,
        build: Build,
        residual: ResidualSpec,
        spec: AttentionSpec,
        states: CcaSpec,
        index: int,
    ) -> None:
        super().__init__(build, residual, spec, index)
        self.group_heads = spec.heads // spec.kv_heads
        projected = self.kv_heads * self.group_heads
        self.split = [projected, self.kv_heads, self.kv_heads]
        # With more ranks than KV heads, a rank attends with some of its KV head's queries.
        first = build.group.rank * self.heads % projected
        self.own = slice(first, first + self.heads)
        self.convolutions = CcaConvolutions(build, states, index - 1, self.kv_share)
        self.factors = build.empty(self.kv_heads)
        self.ones = torch.ones(self.head_dim, dtype=build.dtype, device=build.device)

    def _inputs(self, build: Build, residual: ResidualSpec, spec: AttentionSpec) -> ColumnLinear:
        return CcaInputs(build, residual, spec, self.kv_share)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the factors of this rank's KV heads."""
        share = self.kv_share
        factors = Target.share(self.factors, 0, share.index, share.count)
        return {**super().targets(), "factors": factors}

    def finish(self) -> None:
        """Also takes the bias out of delayed values: where there is no token before, they are the
        bias, not 0."""
        super().finish()
        if self.qkv.bias is not None:
            self.convolutions.take_bias(self.qkv.bias)

    def _reorder(self, within: Tensor) -> None:
        super()._reorder(within)
        self.convolutions.reorder(within)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, of projections before the convolutions."""
        tokens, projected = len(qkv), self.split[0]
        convolved, v = self.convolutions(qkv, context)
        q, k = self._means(qkv)
        q = (q + convolved[:, :projected])[:, self.own]
        k = k + convolved[:, projected:]
        head_norm(q, k, self.ones, self.ones, EPS)
        k *= self.factors[:, None]
        return attend(q, k, v, self, context).view(tokens, -1)

    def _means(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """The means of each query and its key [T, heads, head_dim], and of these over each KV
        head's queries [T, KV heads, head_dim]."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, _ = torch.split(heads, self.split, dim=1)
        q = (q.unflatten(1, (-1, self.group_heads)) + k[:, :, None]) * 0.5
        return q.flatten(1, 2), q.mean(2)
