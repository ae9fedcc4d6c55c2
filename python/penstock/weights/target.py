"""Where a checkpoint tensor goes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Target:
    """`destination` receives `region` of a checkpoint tensor that must have `shape`."""

    destination: Tensor
    shape: tuple[int, ...]
    region: tuple[slice, ...]

    @classmethod
    def whole(cls, destination: Tensor) -> Target:
        """Takes the tensor as it is."""
        shape = tuple(destination.shape)
        return cls(destination, shape, tuple(slice(0, n) for n in shape))

    @classmethod
    def share(cls, destination: Tensor, dim: int | None, rank: int, size: int) -> Target:
        """Takes this rank's equal part along `dim`; None = the whole on every rank."""
        if dim is None or size == 1:
            return cls.whole(destination)
        shape = list(destination.shape)
        part = shape[dim]
        shape[dim] = part * size
        region = [slice(0, n) for n in shape]
        region[dim] = slice(rank * part, (rank + 1) * part)
        return cls(destination, tuple(shape), tuple(region))
