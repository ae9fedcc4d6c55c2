"""Scales per group of inputs: how checkpoints store them, and groups of inputs in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.faults import BadModel
from penstock.quant.method import WeightTensor
from penstock.quant.packed import Quantized
from penstock.quant.settings import Settings
from penstock.weights import Blocks, Form

LEAST = 16  # inputs of a group, for the kernels


@dataclass(frozen=True)
class GroupIndex(Form):
    """The group of each input (g_idx): as config.json describes it, or it is refused."""

    size: int  # inputs of a group; 0 = all
    any_order: bool
    optional: bool = False

    def shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """An entry per input."""
        return [tuple(shape)]

    def entries(self, stored: Tensor, shape: Sequence[int], region: Sequence[slice]) -> Tensor:
        """This rank's inputs."""
        return stored[tuple(region)]

    def check(self, name: str, stored: Callable[[], Tensor]) -> None:
        """Raises BadModel unless each group has its inputs, in order if they must be."""
        index = stored().long()
        expected = torch.arange(len(index)) // (self.size or len(index))
        found = index.sort().values if self.any_order else index
        if not torch.equal(found, expected):
            rule = "each group" if self.any_order else "the groups in order (desc_act is false)"
            raise BadModel(
                f"tensor {name} does not put {self.size or len(index)} inputs into {rule}; the "
                "group size of config.json is another one, or the checkpoint is damaged"
            )


@dataclass(frozen=True)
class MiddleZeros(Blocks):
    """Words of zero points of a symmetric format: all have the middle of its codes."""

    bits: int
    """Of a zero point."""
    less_one: bool
    """Whether zero points are stored minus 1."""
    in_order: bool = False

    def check(self, name: str, stored: Callable[[], Tensor]) -> None:
        """Raises BadModel if all zero points are another number, as in a file whose layout
        config.json does not name. Those that differ from each other are read as they are."""
        words, most, middle = stored().flatten(), (1 << self.bits) - 1, 1 << self.bits - 1
        first = int(words[0])
        found = ((first & most) + self.less_one) & most
        fields = {first >> place & most for place in range(0, 32, self.bits)}
        if found == middle or len(fields) > 1 or not bool((words == first).all()):
            return
        reason = "the file is damaged, or its format is not symmetric"
        if found - middle == (1 if self.less_one else -1):
            form, how = ("gptq_v2", "as they are") if self.less_one else ("gptq", "minus one")
            reason = f"the file stores them {how}, as checkpoint_format {form!r} of GPTQ does"
        raise BadModel(
            f"tensor {name} has zero points of {found}, but quantization_config says that weights "
            f"are symmetric, which makes all of them {middle}; {reason}"
        )


@dataclass(frozen=True)
class Groups:
    """The groups of a layer's inputs on this rank."""

    count: int
    """Rows of the tensor of scales."""
    repeats: int = 1
    """How many of them a checkpoint stores as one."""
    shared: bool = True
    """Whether ranks that share the inputs share the groups; otherwise each has all of them."""

    def tensor(self, data: Tensor, output_dim: int) -> WeightTensor:
        """Of a matrix whose other dimension follows the groups."""
        sizes = (self.repeats, 1) if output_dim else (1, self.repeats)
        form = None if self.repeats == 1 else Blocks(sizes)
        return WeightTensor(data, output_dim, 1 - output_dim if self.shared else None, form)

    def middle_zeros(self, data: Tensor, bits: int, less_one: bool = False) -> WeightTensor:
        """Zero points [groups, words of outputs] of a symmetric format."""
        form = MiddleZeros((self.repeats, 1), bits, less_one, in_order=self.repeats == 1)
        return replace(self.tensor(data, 1), form=form)


@dataclass(frozen=True)
class Grouping:
    """How a checkpoint groups inputs."""

    size: int
    """Inputs of a group; 0 = all of a row."""
    any_order: bool = False
    """Whether a group may hold any inputs (desc_act, actorder), which g_idx then names."""

    @classmethod
    def read(cls, settings: Settings, name: str, any_order: bool = False) -> Grouping:
        """From a field that has the size, or -1 for all inputs. Raises BadModel for others."""
        size: Any = settings.get(name)
        if type(size) is not int or (size != -1 and (size <= 0 or size % LEAST)):
            raise settings.error(
                f"{name} {size!r} is not supported; supported: -1 and multiples of {LEAST}"
            )
        return cls(max(size, 0), any_order)

    def of(self, inputs: int, ranks: int) -> Groups:
        """The groups of a layer with `inputs` on each of `ranks` ranks.

        Raises BadModel if a rank's share cuts groups where kernels cannot read the parts.
        """
        if not self.size:
            return Groups(1, shared=False)
        if self.any_order:  # any group may have inputs of this rank
            return Groups(-(-inputs * ranks // self.size), shared=False)
        size = gcd(self.size, inputs)
        if size % LEAST and size != inputs:
            raise BadModel(
                f"groups of {self.size} inputs share a scale, but a layer (of this rank) has "
                f"{inputs} inputs, and a multiple of {LEAST} must divide both; use fewer ranks"
            )
        return Groups(inputs // size, self.size // size)

    def index(self, inputs: int, device: torch.device) -> WeightTensor:
        """The group of each input. Files may lack it where groups are in order."""
        data = torch.empty(inputs, dtype=torch.int32, device=device)
        form = GroupIndex(self.size, self.any_order, optional=not self.any_order)
        return WeightTensor(data, None, 0, form)


def sorted_by_group(quantized: Quantized, index: Tensor, kind: Kind) -> Quantized:
    """A matrix whose groups are contiguous, where column k of `quantized` has group index[k].

    Groups of different sizes, as a rank's share of the inputs has, become blocks of one size; the
    columns that are missing stand for zero.
    """
    order = torch.argsort(index, stable=True)
    counts = torch.bincount(index, minlength=len(quantized.scales))
    block = gcd(*counts.tolist())
    block = LEAST if block % LEAST else block
    sizes = (counts + block - 1) // block * block
    group = index[order]
    place = torch.arange(len(order), device=order.device)
    place = place + (sizes.cumsum(0) - sizes - counts.cumsum(0) + counts)[group]
    blocks = torch.repeat_interleave(sizes // block)
    zeros = None if quantized.zeros is None else quantized.zeros[blocks]
    codes = quantized.codes.new_full((len(quantized.codes), len(blocks) * block), kind.zero)
    if zeros is not None:
        codes.copy_(zeros.t().to(torch.uint8).repeat_interleave(block, 1))
    codes[:, place] = quantized.codes[:, order]
    inputs = order.new_zeros(codes.shape[1])
    inputs[place] = order
    natural = torch.equal(inputs, torch.arange(len(index), device=index.device))
    return Quantized(codes, quantized.scales[blocks], zeros, None if natural else inputs)
