"""Dispatch of ops: Triton kernels for CUDA tensors, the torch reference for others.

On some architectures, another kernel does the work of the portable Triton kernel (`ArchKernel`).

`penstock.cpu` registers kernels for tensors on the host.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import subprocess
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from .unbuildable import Unbuildable

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("penstock.kernels")

Implementation = Literal["reference", "triton"]

_forced: ContextVar[Implementation | None] = ContextVar("forced_implementation", default=None)


class Op(Generic[P, R]):
    """One op and its implementations; constructing it registers it in `OPS` by name."""

    def __init__(
        self,
        name: str,
        reference: Callable[P, R],
        mutates: tuple[str, ...] = (),
        without: str = "several times as long",
    ) -> None:
        """`reference` and the function in the op's `triton` module are both called `name`.

        `mutates` lists the arguments that the op writes; tests compare them too. `without` says
        how slow the op is on a GPU without its kernel, for a warning.
        """
        if not callable(reference) or getattr(reference, "__name__", None) != name:
            raise TypeError(f"op {name} needs a reference: a function of the same name")
        self.name = name
        self.reference = reference
        self.mutates = mutates
        self.without = without
        self._triton: Callable[P, R] | None = None
        self._unbuildable = Unbuildable()
        self._host: dict[torch.dtype, Callable[P, R]] = {}
        OPS[name] = self

    @property
    def triton(self) -> Callable[P, R]:
        """The Triton implementation, imported at its first use: CPU machines never need it."""
        if self._triton is None:
            module = importlib.import_module(f"{__package__}.{self.name}.triton")
            self._triton = cast("Callable[P, R]", getattr(module, self.name))
        return self._triton

    def provide(self, dtypes: Iterable[torch.dtype], kernel: Callable[P, R]) -> None:
        """Registers `kernel` as the implementation on the host for these dtypes."""
        self._host |= dict.fromkeys(dtypes, kernel)

    def on(self, tensor: Tensor) -> Callable[P, R]:
        """Returns the implementation for the device and dtype of `tensor`."""
        choice = _forced.get()
        if choice is not None:
            return self.triton if choice == "triton" else self.reference
        if tensor.is_cuda:
            return self._kernel_or_reference
        return self._host.get(tensor.dtype, self.reference)

    def _kernel_or_reference(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the kernel; for arguments for which it cannot be built, the reference, with one
        warning."""
        if self._unbuildable.holds((args, kwargs)):
            return self.reference(*args, **kwargs)
        try:
            return self.triton(*args, **kwargs)
        except Exception as error:
            if not cannot_build(error):
                raise
            if self._unbuildable.add((args, kwargs)):
                log.warning(
                    "the Triton kernel of %s cannot be built for some sizes here, so PyTorch "
                    "computes them, which takes %s: %s",
                    self.name,
                    self.without,
                    reason(error),
                )
            return self.reference(*args, **kwargs)


OPS: dict[str, Op[..., Any]] = {}


class ArchKernel:
    """A module whose `launch` replaces an op's portable kernel on some devices.

    `launch` returns False, without doing anything, if it does not support the arguments. Where it
    cannot be built (it may need an architecture or a version of Triton), the portable kernel is
    used, with one warning.
    """

    def __init__(self, module: str, applies: Callable[[torch.device], bool]) -> None:
        """`module` is imported at its first use, on a device that `applies` accepts."""
        self.module = module
        self.applies = applies
        self._unbuildable = Unbuildable()

    def available(self, device: torch.device) -> bool:
        """Whether the device has the kernel, as far as is known: for plans that suit it alone."""
        if not self.applies(device) or self._unbuildable.any():
            return False
        try:
            importlib.import_module(self.module)
        except Exception as error:
            self._note(error, ())
            return False
        return True

    def launch(self, device: torch.device, *args: Any) -> bool:
        """Launches the kernel if it supports the arguments; returns whether it did."""
        if not self.applies(device) or self._unbuildable.holds(args):
            return False
        try:
            return bool(importlib.import_module(self.module).launch(*args))
        except Exception as error:
            self._note(error, args)
            return False

    def _note(self, error: Exception, args: tuple[object, ...]) -> None:
        """Remembers that the kernel cannot be built for a call; raises any other error again."""
        if not cannot_build(error):
            raise error
        if self._unbuildable.add(args):
            log.warning(
                "%s cannot be built for some sizes here, so a portable kernel computes them, "
                "which takes up to twice as long: %s",
                self.module,
                reason(error),
            )


def cannot_build(error: Exception) -> bool:
    """Whether an exception means that a kernel does not compile, fit or load on this machine.

    Triton has its own exceptions for what it rejects. A compiler pass, the assembler or the C
    compiler of its launcher raise general ones, which are recognised by their origin.
    """
    if isinstance(error, ImportError | subprocess.CalledProcessError):
        return True
    sources = {type(error).__module__}
    text = str(error)
    if text.startswith("Triton Error [CUDA]"):  # by the driver, as kernels are loaded
        return "image" in text or "PTX" in text
    if isinstance(error, RuntimeError):
        frames = traceback.walk_tb(error.__traceback__)
        sources |= {frame.f_globals.get("__name__", "") for frame, _ in frames}
    built_by = ("triton.compiler", "triton.errors", "triton.runtime.errors", "triton.runtime.build")
    return any(source.startswith(built_by) for source in sources)


def reason(error: Exception) -> str:
    """Returns one line of an exception's text; Triton's begins with the place in the source."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if lines[0].startswith("at ") else 0].strip()


@contextlib.contextmanager
def use(implementation: Implementation) -> Iterator[None]:
    """Runs every op with one implementation, whatever the device, within the `with` block."""
    token = _forced.set(implementation)
    try:
        yield
    finally:
        _forced.reset(token)
