"""Tapes record a step's kernels and replay them in one call, as CUDA graphs do on a GPU.

While recording, the extension's kernels, and the few operations of torch between them, are stored
instead of executed. Other operations of torch cannot be recorded.
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
    """Torch would compute something that a tape cannot record."""


class Recorder:
    """Records tapes. Tapes keep the outputs of their kernels, at most `room` bytes in all."""

    def __init__(self, room: int) -> None:
        self.room = room

    def record(self, launch: Callable[[], T]) -> Callable[[], T]:
        """Returns a faster replacement for `launch`; it returns the same tensors in each call.

        What `launch` does must not depend on tensor values, and `launch` may run again at any time.
        Returns `launch` itself if a tape cannot record it. The replacement calls `launch` if a
        kernel finds values for which it was not recorded.
        """
        mode = _RecordMode(self.room)
        cpu.Tape.begin()
        try:
            with mode:
                result = launch()
        except Unrecordable as error:
            cpu.Tape.end()
            log.info("steps run kernel by kernel: %s", error)
            return launch
        except BaseException:
            cpu.Tape.end()
            raise
        tape = cpu.Tape.end()
        self.room = mode.room
        return lambda: result if tape.replay() else launch()


class _RecordMode(TorchDispatchMode):
    """Records torch's operations on the tape. Views and allocations need no entry."""

    def __init__(self, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.room = room  # bytes that may still be kept

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: otherwise torch imports its compiler at the first recording, which takes a
        second."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        recorded = _RECORDED.get(func)
        if recorded is not None:
            return recorded(*args, **(kwargs or {}))
        if func in _NEW:
            return self._keep(func(*args, **(kwargs or {})))
        if func.is_view:
            return func(*args, **(kwargs or {}))
        raise Unrecordable(f"a tape cannot hold torch's {func}")

    def _keep(self, memory: Tensor) -> Tensor:
        self.room -= memory.nbytes
        if self.room < 0:
            raise Unrecordable("their tapes would keep more memory than they may")
        return memory


def _index_select(source: Tensor, dim: int, index: Tensor) -> Tensor:
    _expect(dim == 0)
    return _embedding(source, index)


def _embedding(weight: Tensor, ids: Tensor, *_: object) -> Tensor:
    _expect(_has_rows(weight), _is_list(ids, *_INTEGERS))
    out = weight.new_empty((len(ids), *weight.shape[1:]))
    cpu.gather(weight, ids, out)
    return out


def _index_copy(out: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    _expect(dim == 0, _has_rows(out), _has_rows(source), _is_list(index, *_INTEGERS))
    _expect(out.dtype == source.dtype, out.shape[1:] == source.shape[1:])
    cpu.scatter(source, index, out)
    return out


def _copy(out: Tensor, source: Tensor, _: bool = False) -> Tensor:
    _expect(_has_rows(out), _has_rows(source))
    _expect(out.dtype == source.dtype, out.shape == source.shape)
    cpu.copy(source, out)
    return out


def _less(numbers: Tensor, bound: float) -> Tensor:
    _expect(_is_list(numbers, *_INTEGERS), isinstance(bound, int))
    out = torch.empty(len(numbers), dtype=torch.bool)
    cpu.less(numbers, int(bound), out)
    return out


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    _expect(_is_list(condition, torch.bool), _is_list(a, *_INTEGERS), _is_list(b, *_INTEGERS))
    _expect(torch.int64 in (a.dtype, b.dtype), len(condition) == len(a) == len(b))
    out = torch.empty(len(condition), dtype=torch.int64)
    cpu.pick(condition, a, b, out)
    return out


def _expect(*fit: bool) -> None:
    """What does not fit would be an error at each replay, where nothing can be launched instead."""
    if not all(fit):
        raise Unrecordable("a tape cannot hold torch's function with these arguments")


def _is_list(tensor: Tensor, *dtypes: torch.dtype) -> bool:
    return tensor.dim() == 1 and tensor.is_contiguous() and tensor.dtype in dtypes


def _has_rows(tensor: Tensor) -> bool:
    return tensor.dim() > 0 and tensor[:1].is_contiguous() and tensor.dtype in _DTYPES


_INTEGERS = torch.int32, torch.int64
_DTYPES = torch.float32, torch.bfloat16, torch.bool, *_INTEGERS
_RECORDED: dict[Any, Callable[..., Tensor]] = {
    aten.index_select.default: _index_select,
    aten.embedding.default: _embedding,
    aten.index_copy_.default: _index_copy,
    aten.copy_.default: _copy,
    aten.lt.Scalar: _less,
    aten.where.self: _where,
}
_NEW = {aten.empty.memory_format, aten.new_empty.default}
