"""Linear layers sharded over the ranks (Megatron-LM, arXiv:1909.08053, section 3)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_kernels.rms_norm import NormInput
from torch import Tensor

from penstock.layers.base import Build, Layer
from penstock.weights import Target


class Linear(Layer):
    """[T, inputs] -> [T, outputs] of this rank, in a weight format that the build's method owns."""

    def __init__(self, build: Build, outputs: int, inputs: int, bias: bool) -> None:
        self.method = build.linear
        self.group = build.group
        self.alone = build.group.size == 1
        self.stored = self.method.allocate(outputs, inputs)
        self.weights: Mapping[str, Tensor] = {k: s.data for k, s in self.stored.items()}
        self.bias = build.empty(outputs) if bias else None
        self.outputs = outputs

    def finish(self) -> None:
        """Lets the method repack; the loaded form is dropped."""
        self.weights = self.method.finish(self.weights)
        self.stored = {}


class ColumnLinear(Linear):
    """Outputs are shared by the ranks, inputs are sums that are yet to be normalised.

    `parts` are checkpoint matrices fused along the outputs, with each one's outputs in the whole
    model; every rank holds its share of each, so that this rank's output is [T, sum of shares], in
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

    def __call__(self, norm_input: NormInput, gated: bool = False) -> tuple[Tensor, Tensor]:
        """([T, this rank's outputs] of the normalised sum, the sum).

        Gated, half as many: silu(first half) * second half.
        """
        if self.alone:
            return self.method.apply_normed(self.weights, norm_input, self.bias, gated)
        x, total = self.group.normed(norm_input)
        return self.method.apply(self.weights, x, self.bias, gated), total


class RowLinear(Linear):
    """Inputs are shared by the ranks; the norm that follows sums their outputs."""

    def __init__(self, build: Build, outputs: int, inputs: int, bias: bool) -> None:
        super().__init__(build, outputs, build.group.share(inputs, "a layer's input"), bias)

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

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor | None]:
        """[T, this rank's inputs] -> what the norm sums: ([T, outputs], the residual or None).

        The first is this rank's part of a sum, in new memory, or the residual's if that is in it.
        """
        if self.alone:
            return self.method.apply_onto(self.weights, x, self.bias, residual)
        bias = self.bias if self.group.rank == 0 else None
        return self.method.apply(self.weights, x, bias), residual
