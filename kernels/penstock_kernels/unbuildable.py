"""Memory of the arguments for which a kernel cannot be built.

A kernel is compiled for each combination of dtypes, sizes and plan. One that does not compile for a
hidden size may be fine for all others, so only calls like the failed one avoid it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from torch import Tensor

MOST = 8
"""Failed combinations after which a kernel is not tried again: each try compiles for a second."""


class Unbuildable:
    """The calls for which one kernel cannot be built."""

    def __init__(self) -> None:
        self._known: set[Hashable] = set()

    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._known)

    def holds(self, args: Iterable[object]) -> bool:
        """Whether a call with these arguments must not use the kernel."""
        if not self._known:
            return False
        return len(self._known) >= MOST or signature(args) in self._known

    def add(self, args: Iterable[object]) -> bool:
        """Records a failed call. Returns whether it is the first one."""
        first = not self._known
        self._known.add(signature(args))
        return first


def signature(args: Iterable[object]) -> Hashable:
    """What kernels are compiled for: dtypes, and all sizes but the first, that of the batch; flags
    and names; the same of what tuples and dicts hold."""
    return tuple(_signature(arg) for arg in args)


def _signature(arg: object) -> Hashable:
    if isinstance(arg, Tensor):
        return arg.dtype, tuple(arg.shape[1:])
    if isinstance(arg, tuple | list):
        return signature(arg)
    if isinstance(arg, dict):
        return signature(arg.values())
    if isinstance(arg, bool | str | None):
        return arg
    return type(arg).__qualname__
