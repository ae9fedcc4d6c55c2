"""Normalisation of the residual stream, of layers' outputs, and of queries and keys."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from penstock_kernels import head_norm
from penstock_kernels.rms_norm import NormInput
from torch import Tensor

from penstock.config import NormKind, NormSpec, QkNorm, QkNormWidth
from penstock.layers.base import Build, Layer, Residual
from penstock.parallel import Share
from penstock.weights import Target


class Norm(Protocol):
    """A norm of the residual stream. `norm_of` builds one."""

    weight: Tensor
    eps: float

    def __call__(self, residual: Residual) -> tuple[Tensor, Tensor]:
        """Returns (the normalised sum, the sum), [T, size] each, the same on every rank."""


class RmsNorm(Layer):
    """RMSNorm (arXiv:1910.07467) with a learned scale, w or 1 + w, or without one."""

    def __init__(self, build: Build, size: int, spec: NormSpec) -> None:
        self.group = build.group
        self.plus_one = spec.kind is NormKind.RMS_PLUS_ONE
        # 1 + w in 16 bits would lose most of a small w.
        wide = torch.promote_types(build.dtype, torch.float32)
        self.weight = build.empty(size, dtype=wide if self.plus_one else build.dtype)
        self.learned = _learned(self.weight, spec)
        self.eps = spec.eps

    def targets(self) -> dict[str, Target]:
        """Returns the target of a learned weight, replicated on every rank."""
        return {"weight": Target.whole(self.weight)} if self.learned else {}

    def finish(self) -> None:
        """Replaces a weight w that stands for 1 + w by 1 + w."""
        if self.plus_one:
            self.weight += 1

    def __call__(self, residual: Residual) -> tuple[Tensor, Tensor]:
        """Returns (the normalised sum, the sum), [T, size] each, the same on every rank."""
        norm_input = NormInput(residual.x, residual.total, self.weight, self.eps)
        return self.group.normed(norm_input) if residual.partial else norm_input.normed()


class LayerNorm(Layer):
    """LayerNorm (arXiv:1607.06450) with a learned scale, w or 1 + w, or without one, and a bias
    where the model has one."""

    def __init__(self, build: Build, size: int, spec: NormSpec) -> None:
        self.group = build.group
        self.plus_one = spec.kind is NormKind.LAYER_PLUS_ONE
        self.weight = build.empty(size)
        self.learned = _learned(self.weight, spec)
        self.bias = build.empty(size) if spec.bias else None
        self.eps = spec.eps

    def targets(self) -> dict[str, Target]:
        """Returns the targets of weight and bias, if there are any, replicated on every rank."""
        found = {"weight": Target.whole(self.weight)} if self.learned else {}
        return found if self.bias is None else {**found, "bias": Target.whole(self.bias)}

    def finish(self) -> None:
        """Replaces a weight w that stands for 1 + w by 1 + w, rounded to the model's dtype as in
        Nemotron's own code."""
        if self.plus_one:
            self.weight += 1

    def __call__(self, residual: Residual) -> tuple[Tensor, Tensor]:
        """Returns (the normalised sum, the sum), [T, size] each, the same on every rank."""
        x = self.group.summed(residual.x) if residual.partial else residual.x
        total = x if residual.total is None else x + residual.total
        return F.layer_norm(total, self.weight.shape, self.weight, self.bias, self.eps), total


def _learned(weight: Tensor, spec: NormSpec) -> bool:
    """Returns whether checkpoints have the weight; else it becomes 1."""
    if not spec.learned:
        weight.fill_(1)
    return spec.learned


def norm_of(build: Build, size: int, spec: NormSpec) -> RmsNorm | LayerNorm:
    """Builds the norm of a specification."""
    return (LayerNorm if spec.centred else RmsNorm)(build, size, spec)


class HeadNorm(RmsNorm):
    """RMSNorm of each head separately; all heads share the weight. See `normed_heads`."""

    def reorder(self, order: Tensor) -> None:
        """Permutes the dimensions of a head."""
        self.weight.copy_(self.weight[order])


class FullWidthNorm(RmsNorm):
    """RMSNorm over all heads of a token; this rank has a share of the heads."""

    def __init__(self, build: Build, size: int, spec: NormSpec, share: Share) -> None:
        super().__init__(build, size // share.count, spec)
        self.size = size
        self.share = share
        self.copies = build.group.size // share.count  # of each head, on as many ranks

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the weights of this rank's heads."""
        return {"weight": Target.share(self.weight, 0, self.share.index, self.share.count)}

    def reorder(self, order: Tensor) -> None:
        """Permutes the dimensions of each head."""
        heads = self.weight.view(-1, len(order))
        heads.copy_(heads[:, order])

    def heads(self, x: Tensor) -> Tensor:
        """Normalises [T, this rank's heads, head_dim]; returns a contiguous tensor of this
        shape."""
        rows = x.flatten(1)
        if self.group.size == 1:
            return NormInput(rows, None, self.weight, self.eps).normed()[0].view(x.shape)
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        squares = self.group.summed(wide.square().sum(-1, keepdim=True)) / self.copies
        normed = wide * torch.rsqrt(squares / self.size + self.eps) * self.weight
        return normed.to(x.dtype).view(x.shape)


class OwnHeadNorm(Layer):
    """LayerNorm of each head separately, by the head's own weight; heads are sharded."""

    def __init__(self, build: Build, shape: tuple[int, int], spec: NormSpec, share: Share) -> None:
        """`shape`: heads of the whole model, head_dim."""
        heads, head_dim = shape
        self.share = share
        self.weight = build.empty(heads // share.count, head_dim)
        self.eps = spec.eps

    def targets(self) -> dict[str, Target]:
        """Returns the target of the weights of this rank's heads."""
        return {"weight": Target.share(self.weight, 0, self.share.index, self.share.count)}

    def reorder(self, order: Tensor) -> None:
        """Permutes the dimensions of each head."""
        self.weight.copy_(self.weight[:, order])

    def heads(self, x: Tensor) -> Tensor:
        """Normalises [T, this rank's heads, head_dim]; returns a contiguous tensor of this
        shape."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.layer_norm(wide, x.shape[-1:], eps=self.eps).mul_(self.weight).to(x.dtype)


QkNormLayer = HeadNorm | FullWidthNorm | OwnHeadNorm


def qk_norm_of(build: Build, spec: QkNorm, shape: tuple[int, int], share: Share) -> QkNormLayer:
    """Builds the norm of queries or of keys. `shape`: their heads in the whole model, head_dim;
    `share`: the heads of this rank."""
    heads, head_dim = shape
    if spec.width is QkNormWidth.HEAD:
        return HeadNorm(build, head_dim, spec.norm)
    if spec.width is QkNormWidth.OWN:
        return OwnHeadNorm(build, shape, spec.norm, share)
    return FullWidthNorm(build, heads * head_dim, spec.norm, share)


def normed_heads(
    q: Tensor, k: Tensor, q_norm: QkNormLayer, k_norm: QkNormLayer
) -> tuple[Tensor, Tensor]:
    """Returns normalised q [T, heads, head_dim] and k; both may be normalised in place."""
    if isinstance(q_norm, HeadNorm) or isinstance(k_norm, HeadNorm):
        head_norm(q, k, q_norm.weight, k_norm.weight, q_norm.eps)
        return q, k
    return q_norm.heads(q), k_norm.heads(k)
