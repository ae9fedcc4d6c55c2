"""A mixture of experts: a router, the experts that it chooses for each token, shared experts.

Every rank routes alike. With tensor parallelism each rank has its share of every expert's inner
dimension, with expert parallelism it has whole experts. In both cases the output is a partial sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from penstock_kernels import expert_mlp, linear, norm_route, route_experts
from penstock_kernels.expert_mlp import Activation, Experts
from penstock_kernels.packed_linear import PackedWeight
from penstock_kernels.route_experts import Routed
from torch import Tensor

from penstock.config import ExpertStorage, MoeSpec, ResidualSpec
from penstock.faults import BadModel
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.linear import ColumnLinear, allocated, column_targets, row_targets
from penstock.layers.mlp import GatedMlp, Mlp, dense_mlp
from penstock.layers.norm import Norm
from penstock.parallel import Group, Share
from penstock.quant import LinearMethod, StacksExperts, WeightTensor, stacks_experts
from penstock.weights import AnyOf, Blocks, Flat, Form, Merged, Target

SCALES = "weight_scale"  # of codes in "weight"
# Storages in which a tensor holds a matrix of all experts.
WHOLE_TENSORS = (
    ExpertStorage.STACKED,
    ExpertStorage.TRANSPOSED,
    ExpertStorage.JOINED,
    ExpertStorage.ALTERNATING,
)


class Router(Layer):
    """Scores the experts for each token and chooses; replicated on every rank."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        hidden = residual.hidden
        dtype = torch.float32 if spec.router.float32 else build.dtype
        self.routing, self.sparse_mixer = spec.routing, spec.router.sparse_mixer
        self.weight = build.empty(spec.choices, hidden, dtype=dtype)
        self.bias = build.empty(spec.choices, dtype=dtype) if spec.router.bias else None
        self.correction: Tensor | None = None
        if spec.router.correction:
            self.correction = build.empty(spec.choices, dtype=torch.float32)
        rms = not residual.norm.centred
        self.fused_norm = rms and not self.sparse_mixer and build.device.type == "cuda"

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the matrix and of both biases."""
        found = {"weight": Target.whole(self.weight)}
        if self.bias is not None:
            found["bias"] = Target.whole(self.bias)
        if self.correction is not None:  # Ernie stores it as [1, experts]
            flat = replace(Target.whole(self.correction), form=Flat())
            found["e_score_correction_bias"] = flat
        return found

    def __call__(self, x: Tensor) -> Routed:
        """Returns the experts of each row of a normalised x [T, hidden], and their weights."""
        logits = linear(x.to(self.weight.dtype), self.weight, self.bias)
        if self.sparse_mixer:
            return sparse_mixer(logits, self.sparse_mixer)
        return route_experts(logits, self.correction, self.routing)

    def normed(self, norm: Norm, residual: Residual) -> tuple[Tensor, Tensor, Routed]:
        """Returns the normalised sum and the sum, [T, hidden] each, and what `__call__` returns of
        the first."""
        if residual.partial or not self.fused_norm:
            x, total = norm(residual)
            return x, total, self(x)
        x, total, *routed = norm_route(
            residual.x,
            residual.total,
            norm.weight,
            norm.eps,
            self.weight,
            self.bias,
            self.correction,
            self.routing,
        )
        return x, total, Routed(*routed)


def sparse_mixer(logits: Tensor, threshold: float) -> Routed:
    """Chooses two experts of each row of logits [T, E], one after the other.

    The weight of each is the softmax of the logits that are near the largest: within `threshold`
    of the larger of the largest and of their own magnitude (SparseMixer-v2, arXiv:2409.12136).
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    rest, ids, weights = logits, [], []
    for _ in range(2):
        best, chosen = rest.max(-1, keepdim=True)
        far = (best - logits) / torch.maximum(logits.abs(), best) > threshold
        weights.append(rest.masked_fill(far, -torch.inf).softmax(-1).gather(1, chosen))
        ids.append(chosen)
        rest = rest.scatter(1, chosen, -torch.inf)
    return Routed(torch.cat(ids, 1).int(), torch.cat(weights, 1))


class ExpertMatrix:
    """One matrix of all experts of a rank, in one weight format: tensors [experts, ...]."""

    def __init__(
        self, method: LinearMethod, experts: int, shape: tuple[int, int], ranks: int
    ) -> None:
        """`shape`: outputs and inputs of an expert on this rank; `ranks` share the inputs.

        Raises BadModel for a weight format that is not supported for experts.
        """
        one = allocated(method, shape, ranks)
        self.method: StacksExperts = stacks_experts(method, one)
        self.stored = {
            name: replace(tensor, data=tensor.data.new_empty((experts, *tensor.data.shape)))
            for name, tensor in one.items()
        }
        self.weight: Tensor | PackedWeight | None = None

    def expert(self, index: int) -> dict[str, WeightTensor]:
        """Returns the tensors of one expert: views."""
        return {
            name: replace(tensor, data=tensor.data[index]) for name, tensor in self.stored.items()
        }

    def prepare(self, device: torch.device) -> None:
        """Allocates what the method has left for this moment."""
        self.stored = {name: one.allocated(device) for name, one in self.stored.items()}

    def finish(self) -> None:
        """Lets the method repack the weights; frees the loaded tensors."""
        loaded = {name: tensor.data for name, tensor in self.stored.items()}
        self.stored = {}
        self.weight = self.method.stacked(loaded)

    def kept(self) -> Iterator[Tensor]:
        """Yields the tensors that `finish` keeps."""
        if isinstance(self.weight, Tensor):
            yield self.weight
        elif self.weight is not None:
            yield from (part for part in self.weight if isinstance(part, Tensor))


class ExpertMlps(Layer):
    """The routed experts of this rank: down(act(gate(x)) * up(x)) each, gate and up fused, or
    down(act(up(x)))."""

    def __init__(self, build: Build, hidden: int, spec: MoeSpec) -> None:
        group, inner, storage = build.group, spec.expert.intermediate, spec.storage
        self.storage = storage
        self.device = build.device
        self.total, self.choices = spec.experts, spec.choices
        self.group = Group() if build.expert_parallel else group
        self.first = 0
        if build.expert_parallel:
            count = group.share(spec.experts, "the number of experts")
            self.first = group.rank * count
        else:
            count = spec.experts
            inner = group.share(inner, "the experts' intermediate size")
        self.count = count
        self.parts = {"gate": inner, "up": inner} if spec.expert.gated else {"up": inner}
        first = sum(self.parts.values())
        gate_up, down = self._methods(build)
        # Of tensors of all experts: what checkpoints of the family have beside their matrices.
        of_all = build.names.module(f"{build.path}.gate_up.{SCALES}")
        self.known = ["weight"] if of_all is None else ["weight", SCALES]
        self.gate_up = ExpertMatrix(gate_up, count, (first, hidden), 1)
        try:
            self.down = ExpertMatrix(down, count, (hidden, inner), self.group.size)
        except BadModel as error:
            if self.group.size == 1:
                raise
            raise BadModel(f"{error}, or share out the experts with --ep") from error
        self.gate_up_bias = build.empty(count, first) if spec.expert.bias else None
        self.down_bias = build.empty(count, hidden) if spec.expert.bias else None
        self.activation = Activation(spec.expert.of_experts)
        self.experts: Experts | None = None

    def _methods(self, build: Build) -> tuple[LinearMethod, LinearMethod]:
        """The weight formats of both matrices; all experts have those of the first one."""
        if self.storage is ExpertStorage.INTERLEAVED:
            return build.method(), build.method()
        if self.storage in WHOLE_TENSORS:
            return build.below("gate_up").method(), build.below("down").method()
        if self.storage is ExpertStorage.STACKED_PARTS:
            return build.below("gate_up").method(self.parts), build.below("down").method()
        one = build.below(str(self.first))
        return one.below("gate_up").method(self.parts), one.below("down").method()

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this rank's share of every matrix and bias. Tensors of experts of
        other ranks are checked, and not read."""
        if self.storage is ExpertStorage.INTERLEAVED:
            return self._interleaved()
        if self.storage in WHOLE_TENSORS:
            return self._whole_tensors()
        if self.storage is ExpertStorage.STACKED_PARTS:
            return self._gates_and_ups()
        found: dict[str, Target] = {}
        for expert in range(self.total):
            index = expert - self.first
            here = 0 <= index < self.count
            for name, target in self._expert(index if here else 0).items():
                found[f"{expert}.{name}"] = target if here else target.nothing()
        return found

    def _expert(self, index: int) -> dict[str, Target]:
        """The targets of one expert here."""
        gate_up, down = self.gate_up.expert(index), self.down.expert(index)
        bias = None if self.gate_up_bias is None else self.gate_up_bias[index]
        columns = column_targets(self.parts, gate_up, bias, self.group)
        bias = None if self.down_bias is None else self.down_bias[index]
        rows = row_targets(down, bias, self.group)
        found = {f"gate_up.{name}": target for name, target in columns.items()}
        return found | {f"down.{name}": target for name, target in rows.items()}

    def _whole_tensors(self) -> dict[str, Target]:
        """The targets of tensors of all experts: of floats, or of codes and scales by rows."""
        for tensors in (self.gate_up.stored, self.down.stored):
            formed = any(tensor.form is not None for tensor in tensors.values())
            if formed or not set(tensors) <= set(self.known):
                raise BadModel(
                    "the weight format is not supported where one tensor holds all experts; use "
                    "the unquantized model, with --quantize"
                )
        found: dict[str, Target] = {}
        for name, tensor in self.gate_up.stored.items():
            of_all = self._of_all(tensor.data, self.down.stored[name].data)
            found |= {f"{matrix}.{name}": target for matrix, target in of_all.items()}
        return found

    def _of_all(self, gate_up: Tensor, down: Tensor) -> dict[str, Target]:
        """The targets of gates and ups [experts, outputs, ..] and of downs, by matrix."""
        halves = gate_up.unflatten(1, (2, -1))
        if self.storage is ExpertStorage.TRANSPOSED:
            return {
                "gate_up": self._stacked(halves.permute(0, 3, 1, 2), 3, Merged(2)),
                "down": self._stacked(down.transpose(1, 2), 1),
            }
        if self.storage is ExpertStorage.JOINED:
            parts = {"gate": halves[:, 0], "up": halves[:, 1], "down": down.transpose(1, 2)}
            return {name: self._stacked(data, 1, Merged(0)) for name, data in parts.items()}
        if self.storage is ExpertStorage.ALTERNATING:
            gates_and_ups = self._stacked(halves.transpose(1, 2), 1, Merged(1))
        else:
            gates_and_ups = self._stacked(halves, 2, Merged(1))
        return {"gate_up": gates_and_ups, "down": self._stacked(down, 2)}

    def _gates_and_ups(self) -> dict[str, Target]:
        """The targets of tensors of all experts, of gates, ups and downs each."""
        gate_up = {name: _of_all(tensor) for name, tensor in self.gate_up.stored.items()}
        down = {name: _of_all(tensor) for name, tensor in self.down.stored.items()}
        columns = column_targets(self.parts, gate_up, None, self.group)
        found = {f"gate_up.{name}": target for name, target in columns.items()}
        rows = row_targets(down, None, self.group)
        found |= {f"down.{name}": target for name, target in rows.items()}
        return {name: self._own(target) for name, target in found.items()}

    def _interleaved(self) -> dict[str, Target]:
        """The targets of tensors of all experts, in which gate and up alternate."""
        found: dict[str, Target] = {}
        stored = self.gate_up.stored | self.down.stored
        for name, tensor in stored.items():
            # Matrices are by inputs here, which only floats are.
            if tensor.form is not None or (name == "weight" and len(stored) > 1):
                raise BadModel(
                    f"the weight format stores {name} in blocks, which is not supported where one "
                    "tensor holds all experts"
                )
        for name, tensor in self.gate_up.stored.items():
            halves = tensor.data.unflatten(1, (2, -1))
            if name == "weight":  # [experts, inputs, outputs, 2]
                target = self._stacked(halves.permute(0, 3, 2, 1), 2, Merged(2))
            else:
                target = self._stacked(halves.transpose(1, 2), 1, Merged(1))
            found[f"gate_up_proj{name.removeprefix('weight')}"] = target
        for name, tensor in self.down.stored.items():
            data = tensor.data.transpose(1, 2) if name == "weight" else tensor.data
            dim = 1 if name == "weight" else 2
            found[f"down_proj{name.removeprefix('weight')}"] = self._stacked(data, dim)
        if self.gate_up_bias is not None and self.down_bias is not None:
            halves = self.gate_up_bias.unflatten(1, (2, -1)).transpose(1, 2)
            found["gate_up_proj_bias"] = self._stacked(halves, 1, Merged(1))
            found["down_proj_bias"] = self._stacked(self.down_bias, None)
        return found

    def _stacked(self, data: Tensor, dim: int | None, form: Form | None = None) -> Target:
        """The target of a tensor of all experts. Ranks share the experts or dimension `dim`."""
        target = Target.share(data, dim, self.group.rank, self.group.size)
        return replace(self._own(target), form=form)

    def _own(self, target: Target) -> Target:
        """The target of a tensor of all experts, of one for those of this rank."""
        shape = (self.total, *target.shape[1:])
        region = (slice(self.first, self.first + self.count), *target.region[1:])
        return replace(target, shape=shape, region=region)

    def prepare(self) -> None:
        """Allocates what the methods have left for this moment."""
        self.gate_up.prepare(self.device)
        self.down.prepare(self.device)

    def finish(self) -> None:
        """Lets the methods repack the matrices; drops the down bias on all ranks except the first
        if each rank has a part of every expert, so that the sum contains it once."""
        self.gate_up.finish()
        self.down.finish()
        if self.group.rank:
            self.down_bias = None
        assert self.gate_up.weight is not None and self.down.weight is not None
        self.experts = Experts(
            gate_up=self.gate_up.weight,
            down=self.down.weight,
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            activation=self.activation,
            first=self.first,
            elsewhere=self.choices - self.count,
        )

    def kept(self) -> Iterator[Tensor]:
        """Yields the matrices as the methods keep them, and the biases."""
        yield from self.gate_up.kept()
        yield from self.down.kept()
        yield from (bias for bias in (self.gate_up_bias, self.down_bias) if bias is not None)

    def __call__(self, x: Tensor, routed: Routed) -> Tensor:
        """Returns the weighted sum of this rank's part of each row's experts, as x [T, hidden]."""
        assert self.experts is not None
        return expert_mlp(x, routed, self.experts)


def _of_all(one: WeightTensor) -> WeightTensor:
    """A stored tensor of an expert, whose data are those of all experts, with its dimensions in
    them. Raises BadModel if files cannot store it so."""
    forms = one.form.forms if isinstance(one.form, AnyOf) else (one.form,)
    blocks = [form for form in forms if isinstance(form, Blocks)]
    if one.form is not None and len(blocks) < len(forms):
        raise BadModel(
            "the weight format is not supported where one tensor holds a matrix of all experts; "
            "use the unquantized model, with --quantize"
        )
    output_dim, input_dim = (
        None if dim is None else dim + 1 for dim in (one.output_dim, one.input_dim)
    )
    stacked = AnyOf(tuple(Blocks((1, *form.sizes)) for form in blocks)) if blocks else None
    return replace(one, output_dim=output_dim, input_dim=input_dim, form=stacked)


class SharedGate(Layer):
    """The learned factor of the shared experts' output; replicated on every rank."""

    def __init__(self, build: Build, hidden: int) -> None:
        self.weight = build.empty(1, hidden)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the row."""
        return {"weight": Target.whole(self.weight)}

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, 1]."""
        return F.linear(x, self.weight).sigmoid_()


class ExpertSum(Protocol):
    """The weighted sum of each row's experts, [T, hidden]; `ExpertMlps` is one."""

    def __call__(self, x: Tensor, routed: Routed) -> Tensor: ...


class LatentExperts(Layer):
    """Routed experts that read and write a projection of the token, which every rank computes."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        hidden, latent = residual.hidden, spec.latent
        whole, inner = {"all": Share()}, replace(residual, hidden=latent)
        below = build.below("narrow")
        self.narrow = ColumnLinear(below, {"all": latent}, residual, bias=False, shares=whole)
        self.experts = ExpertMlps(build.below("experts"), latent, spec)
        below = build.below("widen")
        self.widen = ColumnLinear(below, {"all": hidden}, inner, bias=False, shares=whole)

    def __call__(self, x: Tensor, routed: Routed) -> Tensor:
        """As `ExpertMlps`. The projection of a partial sum is a partial sum."""
        return self.widen.product(self.experts(self.narrow.product(x), routed))


class MoeMlp(Layer):
    """The feed-forward layer: routed experts, and shared experts if there are any."""

    router_type: ClassVar[type[Router]] = Router

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        hidden = residual.hidden
        self.partial = build.group.size > 1
        self.multiplier = residual.multiplier
        self.router = self.router_type(build, residual, spec)
        below = build.below("experts")
        self.experts: ExpertSum = (
            LatentExperts(below, residual, spec) if spec.latent else ExpertMlps(below, hidden, spec)
        )
        self.shared: GatedMlp | Mlp | None = None
        if spec.shared is not None:
            self.shared = dense_mlp(build.below("shared"), residual, spec.shared)
        self.shared_gate = SharedGate(build, hidden) if spec.shared_gate else None

    def __call__(self, norm: Norm, residual: Residual) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer."""
        x, total, routed = self.router.normed(norm, residual)
        return Residual(self._product(x, routed), total, self.partial)

    def product(self, x: Tensor) -> Tensor:
        """Returns the output for a normalised x, both [T, hidden]; a partial sum with several
        ranks."""
        return self._product(x, self.router(x))

    def _product(self, x: Tensor, routed: Routed) -> Tensor:
        out = self._of_experts(x, routed)
        if self.multiplier != 1:
            out = out.mul_(self.multiplier)
        if self.shared is None:
            return out
        shared = self.shared.product(x)
        if self.shared_gate is not None:
            shared = shared.mul_(self.shared_gate(x))
        return out.add_(shared)

    def _of_experts(self, x: Tensor, routed: Routed) -> Tensor:
        """The sum of each row's experts, as x [T, hidden]."""
        return self.experts(x, routed)
