"""How a checkpoint stores a tensor that it does not store entry by entry in its own shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Form(ABC):
    """From the stored tensor to the entries of a layer's tensor.

    `shape` is the whole tensor's, over all ranks and joined parts, with an entry of its own
    everywhere; `region` is the part that a rank wants. So a region may begin within a block.
    """

    dtype: torch.dtype | None = None
    """What the file must store; None = the dtype of the layer's tensor, or floats for floats."""
    in_order: bool = False
    """Whether the file has the entries of the layer's tensor in its order, as of another shape."""
    optional: bool = False
    """Whether a file may lack the tensor, or have it without entries: it says nothing new."""

    @abstractmethod
    def shapes(self, shape: Shape) -> list[Shape]:
        """The shapes that a file may give the tensor. Dimensions of 1 may be added or left out."""

    def accepts(self, stored: Shape, shape: Shape) -> bool:
        """Whether a file may give the tensor the shape `stored`."""
        return without_ones(stored) in map(without_ones, self.shapes(shape))

    @abstractmethod
    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """The region's entries. `stored` has one of `shapes`."""

    def check(self, name: str, stored: Callable[[], Tensor]) -> None:  # noqa: B027 (optional)
        """Raises BadModel if tensor `name`, which `stored` reads, has contents that do not fit."""


@dataclass(frozen=True)
class Flat(Form):
    """All entries one after the other."""

    in_order = True

    def shapes(self, shape: Shape) -> list[Shape]:
        """One dimension."""
        return [(_product(shape),)]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """A view."""
        return stored.view(shape)[tuple(region)]


@dataclass(frozen=True)
class Merged(Form):
    """Dimension `dim` and the next one as one."""

    dim: int
    in_order = True

    def shapes(self, shape: Shape) -> list[Shape]:
        """One dimension less."""
        first, second = shape[self.dim : self.dim + 2]
        return [(*shape[: self.dim], first * second, *shape[self.dim + 2 :])]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """A view."""
        return stored.view(shape)[tuple(region)]


@dataclass(frozen=True)
class Blocks(Form):
    """One entry per block, of `sizes` entries along each dimension; 0 = all along it.

    Blocks at the ends may be smaller.
    """

    sizes: Shape

    def shapes(self, shape: Shape) -> list[Shape]:
        """The blocks along each dimension."""
        return [tuple(-(-n // (size or n)) for n, size in zip(shape, self.sizes, strict=True))]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """Each block's entry, for every entry of the block."""
        found = stored.view(self.shapes(shape)[0])
        for dim, (part, size) in enumerate(zip(region, self.sizes, strict=True)):
            found = found.index_select(
                dim, torch.arange(part.start, part.stop) // (size or max(part.stop, 1))
            )
        return found


@dataclass(frozen=True)
class FlatBlocks(Form):
    """One entry per block of `size` entries that follow each other in the flat tensor."""

    size: int

    def shapes(self, shape: Shape) -> list[Shape]:
        """One dimension."""
        return [(-(-_product(shape) // self.size),)]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """Each block's entry, for every entry of the block."""
        places = torch.arange(_product(shape)).view(shape)[tuple(region)]
        return stored.view(-1)[places // self.size]


@dataclass(frozen=True)
class Transposed(Form):
    """A matrix by inputs, then outputs. A vector has one order only."""

    def shapes(self, shape: Shape) -> list[Shape]:
        """The dimensions from the last to the first."""
        return [shape[::-1]]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """A view."""
        return stored.view(shape[::-1]).permute(*reversed(range(len(shape))))[tuple(region)]


@dataclass(frozen=True)
class FirstRows(Form):
    """All rows, before `spare` more that are not used; None = any number of them."""

    spare: int | None = None

    def shapes(self, shape: Shape) -> list[Shape]:
        """More rows, or at least as many."""
        return [(shape[0] + (self.spare or 0), *shape[1:])]

    def accepts(self, stored: Shape, shape: Shape) -> bool:
        """Whether there are enough rows."""
        if self.spare is not None:
            return super().accepts(stored, shape)
        return stored[1:] == shape[1:] and stored[0] >= shape[0]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """A view."""
        return stored[tuple(region)]


class OtherRows(Form):
    """The same rows in another order."""

    @abstractmethod
    def order(self, rows: Tensor) -> Tensor:
        """Of the places 0, 1, .. in the file [rows], those of the layer's tensor in its order."""

    def shapes(self, shape: Shape) -> list[Shape]:
        """The same."""
        return [shape]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """The region's rows, from their places in the file."""
        rows = self.order(torch.arange(shape[0]))[region[0]]
        return stored.view(shape)[tuple([slice(None), *region[1:]])][rows]


@dataclass(frozen=True)
class HeadGroups(OtherRows):
    """Queries, keys and values by KV head: its `queries` query heads, its key, its value.

    The layer's tensor has all queries, then all keys, then all values.
    """

    queries: int
    head_dim: int

    def order(self, rows: Tensor) -> Tensor:
        """All queries, all keys, all values."""
        groups = rows.view(-1, self.queries + 2, self.head_dim)
        parts = groups[:, : self.queries], groups[:, self.queries], groups[:, self.queries + 1]
        return torch.cat([part.flatten() for part in parts])


@dataclass(frozen=True)
class BlocksOfHeads(OtherRows):
    """Queries, values and keys in `blocks`. Each has its share of the queries, then of the values,
    then of the keys; there are as many of each.

    The layer's tensor has all queries, then all keys, then all values.
    """

    blocks: int

    def order(self, rows: Tensor) -> Tensor:
        """All queries, all keys, all values."""
        queries, values, keys = rows.view(self.blocks, 3, -1).unbind(1)
        return torch.cat([part.flatten() for part in (queries, keys, values)])


@dataclass(frozen=True)
class Alternating(OtherRows):
    """Rows of two parts in turns; the layer's tensor has the first part before the second."""

    def order(self, rows: Tensor) -> Tensor:
        """The first part, then the second."""
        return rows.view(-1, 2).t().flatten()


@dataclass(frozen=True)
class UnitRows(Form):
    """Rows of any length; the rows of the layer's tensor have the same directions and length 1."""

    def shapes(self, shape: Shape) -> list[Shape]:
        """The same."""
        return [shape]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """The region's rows, divided by their lengths."""
        rows = stored.view(shape)[region[0]]
        wide = torch.promote_types(rows.dtype, torch.float32)
        return torch.nn.functional.normalize(rows.to(wide))[:, region[1]].to(rows.dtype)


@dataclass(frozen=True)
class AnyOf(Form):
    """The first of several forms that has the stored tensor's shape."""

    forms: tuple[Form, ...]

    def shapes(self, shape: Shape) -> list[Shape]:
        """Those of all forms."""
        return [found for form in self.forms for found in form.shapes(shape)]

    def entries(self, stored: Tensor, shape: Shape, region: Sequence[slice]) -> Tensor:
        """The form's entries."""
        for form in self.forms:
            if form.accepts(tuple(stored.shape), shape):
                return form.entries(stored, shape, region)
        raise ValueError(f"no form of {shape} has the shape {tuple(stored.shape)}")


def without_ones(shape: Shape) -> Shape:
    """A shape without its dimensions of 1: those of the same number of entries alike."""
    return tuple(n for n in shape if n != 1)


def _product(shape: Shape) -> int:
    count = 1
    for n in shape:
        count *= n
    return count
