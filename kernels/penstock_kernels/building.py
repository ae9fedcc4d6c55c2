"""Compiles many kernels at once, before they are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any


@contextlib.contextmanager
def building(executor: Executor) -> Iterator[None]:
    """Inside, this thread's Triton kernels are compiled by `executor` instead of launched.

    Whatever surrounds them runs: allocations, torch's own operations. Outputs of kernels are not
    written. Leaving the block waits for nothing: a kernel that is launched later waits until it is
    compiled, and raises then if it cannot be. A no-op for versions of Triton that cannot do this.
    """
    try:
        from triton.runtime._async_compile import FutureKernel, active_mode
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    mode = _Mode(executor, FutureKernel)
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        mine = active_mode.get() is mode  # other threads launch meanwhile
        return launch(self, *args, grid=grid, warmup=warmup or mine, **options)

    token = active_mode.set(mode)
    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = launch
        active_mode.reset(token)


class _Mode:
    """What Triton asks to compile while it is active."""

    def __init__(self, executor: Executor, promise: Callable[..., Any]) -> None:
        self.executor = executor
        self.promise = promise
        self.promised: dict[Any, Any] = {}

    def submit(
        self, key: Any, build: Callable[[], Any], finish: Callable[[Any], None], *fail: Any
    ) -> Any:
        """Triton's own mode forgets what it was asked until the end; here the promise is kept where
        the kernel will be, so that neither the next launch nor a later one asks again. `fail`: what
        a promise calls if the kernel cannot be built, in versions (3.9) that call something."""
        if key not in self.promised:
            self.promised[key] = self.promise(finish, *fail, self.executor.submit(build))
        finish(self.promised[key])
        return self.promised[key]
