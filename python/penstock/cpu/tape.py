"""A step's kernels on a tape, which replays them as one call: what a CUDA graph is for a GPU.

While one records, the extension's kernels are kept instead of run, and so are the few things of
torch's own that a step does between them: nothing is computed. Whatever else torch would compute
cannot be kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from penstock._core import cpu

log = logging.getLogger("penstock.worker")

T = TypeVar("T")
aten = torch.ops.aten


class Unrecordable(RuntimeError):
    """Torch was asked to compute something that no tape holds."""


def record(launch: Callable[[], T]) -> Callable[[], T]:
    """What does the same as `launch`, sooner; its results are the same tensors at each call.

    `launch` must not look at numbers to decide what it does, and may run again at any time. It is
    returned as it is if a tape cannot hold it, and it runs where a kernel finds numbers that it was
    not recorded for.
    """
    cpu.Tape.begin()
    try:
        with _Keeping():
            result = launch()
    except Unrecordable as error:
        cpu.Tape.end()
        log.info("steps run kernel by kernel: %s", error)
        return launch
    except BaseException:
        cpu.Tape.end()
        raise
    tape = cpu.Tape.end()
    return lambda: result if tape.replay() else launch()


class _Keeping(TorchDispatchMode):
    """Puts what torch would compute on the tape. Views and new memory need no place on it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Or torch imports its compiler at the first recording, which takes a second."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kept = _KEPT.get(func)
        if kept is not None:
            return kept(*args, **(kwargs or {}))
        if func in _NEW or func.is_view:
            return func(*args, **(kwargs or {}))
        raise Unrecordable(f"a tape cannot hold torch's {func}")


def _index_select(source: Tensor, dim: int, index: Tensor) -> Tensor:
    _expect(dim == 0)
    return _embedding(source, index)


def _embedding(weight: Tensor, ids: Tensor, *_: object) -> Tensor:
    out = weight.new_empty((len(ids), *weight.shape[1:]))
    cpu.gather(weight, ids, out)
    return out


def _index_copy(out: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    _expect(dim == 0)
    cpu.scatter(source, index, out)
    return out


def _copy(out: Tensor, source: Tensor, _: bool = False) -> Tensor:
    _expect(out.dtype == source.dtype and out.shape == source.shape)
    cpu.copy(source, out)
    return out


def _less(numbers: Tensor, bound: int) -> Tensor:
    out = torch.empty(len(numbers), dtype=torch.bool)
    cpu.less(numbers, bound, out)
    return out


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    _expect(torch.int64 in (a.dtype, b.dtype))
    out = torch.empty(len(condition), dtype=torch.int64)
    cpu.pick(condition, a, b, out)
    return out


def _expect(fits: bool) -> None:
    if not fits:
        raise Unrecordable("a tape cannot hold torch's function with these arguments")


_KEPT: dict[Any, Callable[..., Tensor]] = {
    aten.index_select.default: _index_select,
    aten.embedding.default: _embedding,
    aten.index_copy_.default: _index_copy,
    aten.copy_.default: _copy,
    aten.lt.Scalar: _less,
    aten.where.self: _where,
}
_NEW = {aten.empty.memory_format, aten.new_empty.default}
