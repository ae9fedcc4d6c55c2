"""Linear layers sharded over the ranks (Megatron-LM, arXiv:1909.08053, section 3)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from penstock.layers.base import Build, Layer
from penstock.layers.norm import RmsNorm
from penstock.layers.residual import Residual
from penstock.weights import Target


class Linear(Layer):
    """[T, inputs] -> [T, outputs] of this rank, in a weight format that the build's method owns."""

    def __init__(self, build: Build, outputs: int, inputs: int, bias: bool) -> None:
        self.method = build.linear
        self.group = build.group
        self.stored = self.method.allocate(outputs, inputs)
        self.weights: Mapping[str, Tensor] = {k: s.data for k, s in self.stored.items()}
        self.bias = build.empty(outputs) if bias else None
        self.outputs = outputs

    def finish(self) -> None:
        """Lets the method repack; the loaded form is dropped."""
        self.weights = self.method.finish(self.weights)
        self.stored = {}


class ColumnLinear(Linear):
    """A norm and a linear layer whose outputs the ranks share.

    `parts` are checkpoint matrices fused along the outputs, with each one's outputs in the whole
    model. Every rank holds its share of each, so that this rank's output is [T, sum of shares], in
    order of `parts`.
    """

    def __init__(self, build: Build, parts: Mapping[str, int], inputs: int, bias: bool) -> None:
        self.parts = {p: build.group.share(n, f"the size of {p}") for p, n in parts.items()}
        super().__init__(build, sum(self.parts.values()), inputs, bias)

    def targets(self) -> dict[str, Target]:
        """Per part, each stored tensor's rows of that part, and its bias."""
        found = {}
        start = 0
        for part, count in self.parts.items():
            for name, stored in self.stored.items():
                data = stored.data
                if stored.output_dim is not None:
                    pack = self.outputs // data.shape[stored.output_dim]
                    data = data.narrow(stored.output_dim, start // pack, count // pack)
                found[f"{part}.{name}"] = self._share(data, stored.output_dim)
            if self.bias is not None:
                found[f"{part}.bias"] = self._share(self.bias.narrow(0, start, count), 0)
            start += count
        return found

    def _share(self, data: Tensor, dim: int | None) -> Target:
        return Target.share(data, dim, self.group.rank, self.group.size)

    def __call__(
        self, norm: RmsNorm, residual: Residual, gated: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Returns (the product [T, this rank's outputs] of the normalised sum, the sum).

        A gated product has half as many columns: silu(first half) * second half.
        """
        x, total, partial = residual
        if partial:
            x, total = norm(residual)
            return self.method.apply(self.weights, x, self.bias, gated), total
        operands = x, total, norm.weight, norm.eps
        return self.method.apply_normed(self.weights, operands, self.bias, gated)


class RowLinear(Linear):
    """A linear layer whose inputs the ranks share; the norm that follows sums their outputs."""

    def __init__(self, build: Build, outputs: int, inputs: int, bias: bool) -> None:
        super().__init__(build, outputs, build.group.share(inputs, "a layer's input"), bias)
        self.partial = build.group.size > 1

    def targets(self) -> dict[str, Target]:
        """Each stored tensor's columns of this rank; the bias whole."""
        rank, size = self.group.rank, self.group.size
        found = {
            name: Target.share(stored.data, stored.input_dim, rank, size)
            for name, stored in self.stored.items()
        }
        if self.bias is not None:
            found["bias"] = Target.whole(self.bias)
        return found

    def finish(self) -> None:
        """Also drops the bias on all ranks but the first: the sum takes it once."""
        super().finish()
        if self.group.rank:
            self.bias = None

    def __call__(self, x: Tensor, total: Tensor) -> Residual:
        """Returns the stream after this layer, [T, outputs], of x [T, this rank's inputs].

        `total` [T, outputs] is the sum before this layer; its memory may be overwritten.
        """
        if self.partial:
            return Residual(self.method.apply(self.weights, x, self.bias), total, True)
        out, rest = self.method.apply_onto(self.weights, x, self.bias, total)
        return Residual(out, rest, False)
