"""Where a checkpoint tensor goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.weights.form import Form, Shape


@dataclass(frozen=True)
class Target:
    """`destination` receives `region` of a checkpoint tensor that must have `shape`.

    With a `form`, the checkpoint stores fewer entries than `shape` has, or stores them otherwise.
    """

    destination: Tensor
    shape: tuple[int, ...]
    region: tuple[slice, ...]
    joins: int | None = None
    """The dimension along which a checkpoint may store this tensor and its neighbours as one;
    None = such a tensor is the same for all of them."""
    form: Form | None = None
    """How the file stores the tensor; None = entry by entry, in its shape."""
    suffixes: tuple[str, ...] = ()
    """What checkpoints have in place of the last part of the tensor's name, the most common one
    first; () = the same."""

    @property
    def shapes(self) -> list[Shape]:
        """The shapes that a file may give the tensor."""
        return [self.shape] if self.form is None else self.form.shapes(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which files store a tensor that is not a float."""
        return (self.form and self.form.dtype) or self.destination.dtype

    @property
    def gathered(self) -> bool:
        """Whether entries are looked up in the stored tensor: it is small, and read whole."""
        return self.form is not None and not self.form.in_order

    @property
    def optional(self) -> bool:
        """Whether a file may lack the tensor, or have it without entries."""
        return self.form is not None and self.form.optional

    def accepts(self, shape: Shape) -> bool:
        """Whether a stored tensor of this shape fits."""
        if self.form is None:
            return shape == self.shape
        return self.form.accepts(shape, self.shape)

    def entries(self, stored: Tensor) -> Tensor:
        """Returns the region of a stored tensor, which has one of `shapes`."""
        if self.form is None:
            return stored[self.region]
        return self.form.entries(stored, self.shape, self.region)

    def nothing(self) -> Target:
        """Returns a target that checks the same tensor, and receives nothing of it."""
        region = (slice(0, 0), *self.region[1:])
        return replace(self, destination=self.destination.narrow(0, 0, 0), region=region)

    @classmethod
    def whole(cls, destination: Tensor) -> Target:
        """Returns the target of a whole tensor."""
        shape = tuple(destination.shape)
        return cls(destination, shape, tuple(slice(0, n) for n in shape))

    @classmethod
    def share(cls, destination: Tensor, dim: int | None, rank: int, size: int) -> Target:
        """Returns the target of this rank's equal part along `dim`; None = the whole tensor."""
        if dim is None or size == 1:
            return cls.whole(destination)
        shape = list(destination.shape)
        part = shape[dim]
        shape[dim] = part * size
        region = [slice(0, n) for n in shape]
        region[dim] = slice(rank * part, (rank + 1) * part)
        return cls(destination, tuple(shape), tuple(region))


def joined(parts: Sequence[Target]) -> list[Target]:
    """Returns the targets of one tensor in which `parts` are concatenated."""
    dim = parts[0].joins
    if len(parts) == 1 or dim is None:
        return list(parts)
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    found, start = [], 0
    for part in parts:
        region = list(part.region)
        region[dim] = slice(start + region[dim].start, start + region[dim].stop)
        found.append(replace(part, shape=tuple(shape), region=tuple(region)))
        start += part.shape[dim]
    return found
