"""Linear layers sharded over the ranks (Megatron-LM, arXiv:1909.08053, section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum

from penstock_kernels import act_mul
from torch import Tensor

from penstock.config import Activation, Placement, ResidualSpec
from penstock.faults import BadModel
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.norm import Norm
from penstock.parallel import Group, Share
from penstock.quant import (
    CutsInputs,
    FusesGate,
    FusesNorm,
    FusesResidual,
    GatesInputs,
    LinearMethod,
    OrdersOutputs,
    Weights,
    WeightTensor,
)
from penstock.weights import Target


def allocated(
    method: LinearMethod, shape: tuple[int, int], ranks: int = 1
) -> dict[str, WeightTensor]:
    """Allocates a matrix in a weight format. `shape`: outputs and inputs on this rank; `ranks`
    share the inputs."""
    if ranks > 1 and isinstance(method, CutsInputs):
        return method.allocate_share(*shape, ranks)
    return method.allocate(*shape)


def column_targets(
    parts: Mapping[str, int],
    stored: Mapping[str, WeightTensor],
    bias: Tensor | None,
    group: Group,
    shares: Mapping[str, Share] | None = None,
) -> dict[str, Target]:
    """Returns the targets of a fused matrix that ranks share along its outputs.

    `parts` are its matrices and their outputs on this rank; `shares` has the parts that the ranks
    do not share equally. A part has its rows of each stored tensor, and of the bias. Raises
    BadModel if the weight format cannot cut it there.
    """
    found = {}
    start = 0
    for part, count in parts.items():
        own = (shares or {}).get(part, group.own)

        def share(data: Tensor, dim: int | None, own: Share = own) -> Target:
            return replace(Target.share(data, dim, own.index, own.count), joins=dim)

        for name, tensor in stored.items():
            data = tensor.data
            if tensor.output_dim is not None:
                data = _rows(tensor, slice(start, start + count), parts)
            found[f"{part}.{name}"] = tensor.fill(share(data, tensor.output_dim))
        if bias is not None:
            found[f"{part}.bias"] = share(bias.narrow(0, start, count), 0)
        start += count
    return found


def _rows(stored: WeightTensor, part: slice, parts: Mapping[str, int]) -> Tensor:
    """The part of a tensor that has these outputs. Raises BadModel if its numbers are not whole
    there."""
    dim, data, outputs = stored.output_dim, stored.data, sum(parts.values())
    assert dim is not None
    tile = max(stored.output_tile, outputs // data.shape[dim])
    if part.start % tile or part.stop % tile:
        raise BadModel(
            f"the weight format stores {tile} outputs together, but of {', '.join(parts)} "
            f"this rank has {', '.join(map(str, parts.values()))}; use fewer ranks"
        )
    start, stop = (at * data.shape[dim] // outputs for at in (part.start, part.stop))
    return data.narrow(dim, start, stop - start)


def row_targets(
    stored: Mapping[str, WeightTensor], bias: Tensor | None, group: Group
) -> dict[str, Target]:
    """Returns the targets of a matrix that ranks share along its inputs, and of its whole bias."""
    found = {
        name: tensor.fill(Target.share(tensor.data, tensor.input_dim, group.rank, group.size))
        for name, tensor in stored.items()
    }
    return found if bias is None else {**found, "bias": Target.whole(bias)}


class Linear(Layer):
    """A matrix [T, inputs] -> [T, outputs] of this rank, in the weight format `method`."""

    def __init__(
        self, build: Build, method: LinearMethod, shape: tuple[int, int], ranks: int = 1
    ) -> None:
        """`shape`: outputs and inputs on this rank; `ranks` share the inputs."""
        self.method = method
        self.device = build.device
        self.group = build.group
        self.outputs = shape[0]
        self.stored = allocated(method, shape, ranks)
        self.weights: Weights = {k: s.data for k, s in self.stored.items()}
        self.bias: Tensor | None = None

    def reorder(self, order: Tensor) -> None:
        """Permutes the outputs; call it before `finish`.

        Raises BadModel if the format cannot.
        """
        if isinstance(self.method, OrdersOutputs):
            self.weights = self.method.order_outputs(self.weights, order)
        else:
            self._reorder_stored(order)
        if self.bias is not None:
            self.bias.copy_(self.bias[order])

    def _reorder_stored(self, order: Tensor) -> None:
        for name, stored in self.stored.items():
            dim, data = stored.output_dim, stored.data
            if dim is None:
                continue
            if data.shape[dim] != self.outputs:
                raise BadModel(
                    f"the weight format packs several outputs of {name} into one number, which "
                    "this model's rotary position embeddings do not allow"
                )
            data.copy_(data.index_select(dim, order))

    def prepare(self) -> None:
        """Allocates what the method has left for this moment."""
        self.stored = {k: s.allocated(self.device) for k, s in self.stored.items()}
        self.weights = {k: s.data for k, s in self.stored.items()}

    def kept(self) -> Iterator[Tensor]:
        """Yields what the method keeps, and the bias."""
        yield from self.weights.values()
        if self.bias is not None:
            yield self.bias

    def finish(self) -> None:
        """Lets the method repack the weights; frees the loaded tensors."""
        self.weights = self.method.finish(self.weights)
        self.stored = {}


class ColumnLinear(Linear):
    """A norm and a linear layer that is sharded along the outputs.

    `parts` are the fused matrices and their outputs in the whole model. Every rank holds its share
    of each, so this rank's output is [T, sum of shares], in the order of `parts`. With a `gate`,
    the parts are gate and up, and the output is gate's activation * up. `shares` has the parts that
    the ranks do not share equally.
    """

    def __init__(
        self,
        build: Build,
        parts: Mapping[str, int],
        residual: ResidualSpec,
        bias: bool,
        gate: Activation | None = None,
        shares: Mapping[str, Share] | None = None,
    ) -> None:
        self.shares = shares or {}
        self.parts = {
            part: outputs // self.shares[part].count
            if part in self.shares
            else build.group.share(outputs, f"the size of {part}")
            for part, outputs in parts.items()
        }
        method = build.method(parts)
        super().__init__(build, method, (sum(self.parts.values()), residual.hidden))
        self.bias = build.empty(self.outputs) if bias else None
        fusable = gate is Activation.SILU and not bias
        self.fused_gate = method if fusable and isinstance(method, FusesGate) else None
        self.gated = self.fused_gate is not None
        self.gate = None if gate is None or self.gated else gate.value
        rms = not residual.norm.centred
        self.fused_norm = method if rms and isinstance(method, FusesNorm) else None

    def targets(self) -> dict[str, Target]:
        """Returns the targets of each part: the rows of each stored tensor, and the bias."""
        return column_targets(self.parts, self.stored, self.bias, self.group, self.shares)

    def __call__(
        self, norm: Norm, residual: Residual, open_gate: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Returns (the output [T, this rank's outputs] for the normalised sum, the sum).

        `open_gate`: gate and up as they are, if the gate is fused.
        """
        x, total, partial = residual
        if partial or self.fused_norm is None:
            x, total = norm(residual)
            return self.product(x, open_gate), total
        fused, gated = self.fused_norm.apply_normed, self.gated and not open_gate
        out, total = fused(self.weights, x, total, norm, self.bias, gated)
        return (out if self.gate is None else act_mul(out, self.gate)), total

    def product(self, x: Tensor, open_gate: bool = False) -> Tensor:
        """Returns the output [T, this rank's outputs] for a normalised x [T, inputs]."""
        if self.fused_gate is not None and not open_gate:
            return self.fused_gate.apply_gated(self.weights, x)
        out = self.method.apply(self.weights, x, self.bias)
        return out if self.gate is None else act_mul(out, self.gate)


class RowLinear(Linear):
    """A linear layer that is sharded along the inputs; the next norm sums the ranks' outputs."""

    def __init__(self, build: Build, residual: ResidualSpec, inputs: int, bias: bool) -> None:
        method, share = build.method(), build.group.share(inputs, "a layer's input")
        super().__init__(build, method, (residual.hidden, share), build.group.size)
        self.bias = build.empty(self.outputs) if bias else None
        self.multiplier = residual.multiplier
        self.partial = build.group.size > 1
        # What is added at once can be neither multiplied nor normalised nor summed over the ranks.
        alone = residual.placement is not Placement.PRE or self.multiplier != 1
        fuses = not self.partial and not alone and isinstance(method, FusesResidual)
        self.fused_residual = method if fuses and isinstance(method, FusesResidual) else None
        self.gates_inputs = method if isinstance(method, GatesInputs) else None

    def targets(self) -> dict[str, Target]:
        """Returns the targets: this rank's columns of each stored tensor, and the whole bias."""
        return row_targets(self.stored, self.bias, self.group)

    def finish(self) -> None:
        """Also drops the bias on all ranks except the first, so that the sum contains it once."""
        super().finish()
        if self.group.rank:
            self.bias = None

    def __call__(self, x: Tensor, total: Tensor, open_gate: bool = False) -> Residual:
        """Returns the stream after this layer, [T, outputs], of x [T, this rank's inputs].

        `total` [T, outputs] is the sum before this layer; its memory may be overwritten. With an
        `open_gate` x is gate and up, [T, 2 * this rank's inputs]; only for methods of GatesInputs.
        """
        if self.fused_residual is None or open_gate:
            return Residual(self.product(x, open_gate), total, self.partial)
        out, rest = self.fused_residual.apply_onto(self.weights, x, self.bias, total)
        return Residual(out, rest, False)

    def product(self, x: Tensor, open_gate: bool = False) -> Tensor:
        """Returns the output [T, outputs], without the residual; a partial sum with several
        ranks."""
        if open_gate and self.gates_inputs is not None:
            out = self.gates_inputs.apply_to_gate(self.weights, x, self.bias)
        else:
            out = self.method.apply(self.weights, x, self.bias)
        return out if self.multiplier == 1 else out.mul_(self.multiplier)


class Cut(Enum):
    """Along which side ranks share a matrix."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"


class FreeLinear(Linear):
    """A matrix outside the residual stream: whole on each rank, or cut along one side."""

    def __init__(
        self, build: Build, outputs: int, inputs: int, bias: bool, cut: Cut | None = None
    ) -> None:
        group, self.cut = build.group, cut
        if cut is Cut.OUTPUTS:
            outputs = group.share(outputs, f"the outputs of {build.path}")
        elif cut is Cut.INPUTS:
            inputs = group.share(inputs, f"the inputs of {build.path}")
        ranks = group.size if cut is Cut.INPUTS else 1
        super().__init__(build, build.method(), (outputs, inputs), ranks)
        self.bias = build.empty(outputs) if bias else None

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this rank's part of each stored tensor, and of the bias."""
        if self.cut is Cut.INPUTS:
            return row_targets(self.stored, self.bias, self.group)
        shares = None if self.cut is Cut.OUTPUTS else {"": Share()}
        found = column_targets({"": self.outputs}, self.stored, self.bias, self.group, shares)
        return {name.removeprefix("."): target for name, target in found.items()}

    def finish(self) -> None:
        """Also drops the bias of a sum over the ranks on all of them except the first."""
        super().finish()
        if self.cut is Cut.INPUTS and self.group.rank:
            self.bias = None

    def __call__(self, x: Tensor) -> Tensor:
        """[T, this rank's inputs] -> [T, this rank's outputs], summed over the ranks if inputs are
        cut."""
        out = self.method.apply(self.weights, x, self.bias)
        return self.group.summed(out) if self.cut is Cut.INPUTS else out
