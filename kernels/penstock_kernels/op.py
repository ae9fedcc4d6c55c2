"""The one dispatch point: an op is a reference, and a Triton kernel for CUDA tensors."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

Implementation = Literal["reference", "triton"]

_forced: ContextVar[Implementation | None] = ContextVar("forced_implementation", default=None)


class Op(Generic[P, R]):
    """One op and its implementations; constructing it registers it in `OPS` by name."""

    def __init__(self, name: str, reference: Callable[P, R], mutates: tuple[str, ...] = ()) -> None:
        """`reference` is a function called `name`, as is the one in the op's `triton` module.

        `mutates` names the arguments that the op writes; tests compare them too.
        """
        if not callable(reference) or getattr(reference, "__name__", None) != name:
            raise TypeError(f"op {name} needs a reference: a function of the same name")
        self.name = name
        self.reference = reference
        self.mutates = mutates
        self._triton: Callable[P, R] | None = None
        OPS[name] = self

    @property
    def triton(self) -> Callable[P, R]:
        """The Triton implementation, imported at its first use: CPU machines never need it."""
        if self._triton is None:
            module = importlib.import_module(f"{__package__}.{self.name}.triton")
            self._triton = cast("Callable[P, R]", getattr(module, self.name))
        return self._triton

    def on(self, tensor: Tensor) -> Callable[P, R]:
        """The implementation for tensors that live where `tensor` does."""
        choice = _forced.get() or ("triton" if tensor.is_cuda else "reference")
        return self.triton if choice == "triton" else self.reference


OPS: dict[str, Op[..., Any]] = {}


@contextlib.contextmanager
def use(implementation: Implementation) -> Iterator[None]:
    """Runs every op with one implementation, whatever the device, within the `with` block."""
    token = _forced.set(implementation)
    try:
        yield
    finally:
        _forced.reset(token)
