"""Quantizes the matrices of a decoder layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.config import MlpSpec, MoeSpec, Placement
from penstock.faults import BadSetting
from penstock.layers import ParallelBlock, RmsNorm
from penstock.layers.mlp import LIMITS
from penstock.quant import Quantized, rtn
from penstock.quant.grid import Grid, round_to_nearest
from penstock.quantize.awq import Rounding, clipped, search_scales
from penstock.quantize.gptq import gptq
from penstock.quantize.layouts import LAYOUTS
from penstock.quantize.options import Options
from penstock.quantize.statistics import Inputs
from penstock.quantize.walk import LayerInputs, Walk

NORMS = {"attention.qkv": "attention_norm", "mlp.gate_up": "mlp_norm", "mlp.inner": "mlp_norm"}
"""By the path of a linear layer, the norm whose output it multiplies."""
UNCLIPPED = ("attention.qkv", "attention.query_up", "attention.inputs")
"""Queries and keys: their products have no bound on the error that a weight's error makes. Inputs
of recurrent layers: errors add up in states."""


@dataclass(frozen=True)
class QuantizedLayer:
    """What a checkpoint stores for a decoder layer."""

    tensors: dict[str, Tensor]
    errors: dict[str, float]
    """By module: the squared error of its outputs, as a share of their squares."""


class Quantizer:
    """Quantizes layer by layer."""

    def __init__(self, walk: Walk, options: Options, dtype: torch.dtype) -> None:
        """`dtype`: of integers' scales."""
        self.walk, self.options, self.device = walk, options, walk.method.device
        self.layout = LAYOUTS[options.method](options, dtype)
        awq = options.method == "awq"
        self.grid = Grid(
            options.bits,
            options.symmetric and not awq,
            dtype,
            least_zero=0 if awq else 1,
            search=options.mse,
        )

    def check(self) -> None:
        """Raises BadSetting if a layer's sides do not fit the group or the words of the layout."""
        group, pack = self.options.group, self.layout.pack()
        for index in range(len(self.walk.model.blocks)):
            for modules in self.walk.matrices(index).values():
                for module in modules:
                    outputs, inputs = self.walk.checkpoint[f"{module}.weight"].shape
                    if self.options.method != "fp8" and group and inputs % group:
                        raise BadSetting(
                            f"group is {group}, which does not divide the {inputs} inputs of "
                            f"{module}; choose a smaller one, or 0 for a scale per output"
                        )
                    if outputs % pack or inputs % pack:
                        raise BadSetting(
                            f"method {self.options.method} packs {pack} weights into one number, "
                            f"and {module} is [{outputs}, {inputs}]; choose method fp8"
                        )

    def bits(self) -> float:
        """Of a weight on average, scales and zero points included."""
        if self.options.method == "fp8":
            return 8.1
        return self.options.bits + (16 + self.options.bits) / (self.options.group or 1024) + 0.1

    def layer(
        self, index: int, tensors: Mapping[str, Tensor], inputs: LayerInputs
    ) -> QuantizedLayer:
        """Quantizes the matrices of decoder layer `index`."""
        matrices = self.walk.matrices(index)
        names = {f"{module}.weight" for modules in matrices.values() for module in modules}
        floats = {name: tensors[name].to(self.device).float() for name in names}
        found = {name: tensor for name, tensor in tensors.items() if name not in names}
        factors: dict[str, Tensor] = {}
        if self.options.method == "awq":
            factors = self.fold(index, floats, found, inputs)
        errors = {}
        for path, modules in matrices.items():
            factor, seen = factors.get(path), inputs[path]
            if factor is not None:
                seen = seen.divided(factor)
            for module in modules:
                matrix = floats[f"{module}.weight"]
                stored = self.layout.store(self._quantized(path, matrix, seen))
                change = self.layout.matrix(stored) - matrix
                errors[module] = seen.squared(change) / max(seen.squared(matrix), 1e-30)
                found |= {f"{module}.{suffix}": part.cpu() for suffix, part in stored.items()}
        return QuantizedLayer({name: found[name].contiguous() for name in sorted(found)}, errors)

    def rounded(self, index: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of decoder layer `index` as floats, of those that a checkpoint stores."""
        found = dict(tensors)
        for modules in self.walk.matrices(index).values():
            for module in modules:
                names = [name for name in found if name.rpartition(".")[0] == module]
                parts = {n.rpartition(".")[2]: found.pop(n).to(self.device) for n in names}
                found[f"{module}.weight"] = self.layout.matrix(parts)
                if "bias" in parts:
                    found[f"{module}.bias"] = parts["bias"]
        return found

    def _quantized(self, path: str, matrix: Tensor, inputs: Inputs) -> Quantized:
        options = self.options
        if options.method == "fp8":
            return rtn.float_codes(matrix, Kind.FP8, 0)
        if options.method == "gptq":
            return gptq(matrix, inputs.hessian, self.grid, options)
        if options.method == "awq" and path not in UNCLIPPED:
            matrix = clipped(matrix, inputs, Rounding(self.grid, options.group))
        return round_to_nearest(matrix, self.grid, options.group)

    def fold(
        self,
        index: int,
        floats: dict[str, Tensor],
        others: dict[str, Tensor],
        inputs: LayerInputs,
    ) -> dict[str, Tensor]:
        """Multiplies matrices' columns by the best factors, and divides what makes their inputs by
        them. Returns the factors, by the paths of the linear layers."""
        block, found = self.walk.model.blocks[index], {}
        matrices, rounding = self.walk.matrices(index), Rounding(self.grid, self.options.group)
        spec = self.walk.spec
        added, mlp = spec.residual.placement is Placement.NORMED, spec.layers[index].mlp
        for path, modules in matrices.items():
            weights = [f"{module}.weight" for module in modules]
            search = [floats[name] for name in weights]
            norm = getattr(block, NORMS.get(path, ""), None)
            before, _, matrix = path.rpartition(".")
            gate_up = matrices.get(f"{before}.gate_up") if matrix == "down" else None
            # A parallel block's norm has other readers; so has the norm before experts, that
            # before an indexer, and one whose output is a summand.
            shared = isinstance(block, ParallelBlock) or added or _reads_norm(block, path)
            if isinstance(norm, RmsNorm) and norm.learned and not shared:
                factors = search_scales(search, inputs[path], rounding)
                name = f"{self.walk.module(index, NORMS[path])}.weight"
                others[name], factors = _divided(others[name], factors, norm.plus_one)
            elif (
                not _has_bound(mlp, path)
                and (rows := _up_rows(gate_up, floats, others)) is not None
            ):
                factors = search_scales(search, inputs[path], rounding)
                rows /= factors[:, None]
            else:
                continue
            for name in weights:
                floats[name] *= factors
            found[path] = factors
        return found


def _reads_norm(block: object, path: str) -> bool:
    """Whether an indexer reads the norm before the linear layer at `path`."""
    attention = getattr(block, "attention", None)
    return path == "attention.qkv" and getattr(attention, "indexer", None) is not None


def _has_bound(mlp: MlpSpec | MoeSpec | None, path: str) -> bool:
    """Whether ups have a bound, or a summand: then inputs of the linear layer at `path`, which is
    `down`, are not proportional to them."""
    if isinstance(mlp, MoeSpec):
        mlp = mlp.shared if ".shared." in path else mlp.expert
    return mlp is not None and (mlp.limit > 0 or mlp.activation in LIMITS)


def _up_rows(
    modules: list[str] | None, floats: Mapping[str, Tensor], others: Mapping[str, Tensor]
) -> Tensor | None:
    """The rows of the matrix `up` among the modules of gate and up, to which a gated layer's inputs
    to `down` are proportional; None if there is none, or if it has a bias."""
    if modules is None or any(f"{module}.bias" in others for module in modules):
        return None
    rows = floats[f"{modules[-1]}.weight"]
    return rows if len(modules) > 1 else rows[len(rows) // 2 :]


def _divided(weight: Tensor, factors: Tensor, plus_one: bool) -> tuple[Tensor, Tensor]:
    """A norm's weight divided by factors, in its dtype, and the factors that it is divided by
    exactly."""
    offset = 1.0 if plus_one else 0.0
    old = weight.to(factors.device).float() + offset
    stored = (old / factors - offset).to(weight.dtype)
    new = stored.float() + offset
    return stored.cpu(), torch.where(new == 0, torch.ones_like(new), old / new)
