"""Compiles many kernels at once, before they are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

CompileFn = Callable[[], Any]


@contextlib.contextmanager
def compile_ahead(
    executor: Executor, precompile: Callable[[str, CompileFn], object] | None = None
) -> Iterator[None]:
    """Inside, this thread's Triton kernels are compiled by `executor` instead of launched.

    Before its threads build a kernel, they call `precompile` with its key and what builds it:
    if that compiles into Triton's cache, they read the result from there. Whatever surrounds
    kernels runs: allocations, torch's own operations. Outputs of kernels are not written. Leaving
    the block waits for nothing: a kernel that is launched later waits until it is compiled, and
    raises then if it cannot be. A no-op for versions of Triton that cannot do this.
    """
    try:
        from triton.runtime._async_compile import FutureKernel, active_mode
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    mode = _Mode(executor, FutureKernel, precompile)
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

    def __init__(
        self,
        executor: Executor,
        promise: Callable[..., Any],
        precompile: Callable[[str, CompileFn], object] | None,
    ) -> None:
        self.executor = executor
        self.promise = promise
        self.precompile = precompile
        self.promised: dict[Any, Any] = {}

    def submit(self, key: Any, build: CompileFn, finish: Callable[[Any], None], *fail: Any) -> Any:
        """Triton's own mode forgets what it was asked until the end; here the promise is kept where
        the kernel will be, so that neither the next launch nor a later one asks again. `fail`: what
        a promise calls if the kernel cannot be built, in versions (3.9) that call something."""
        if key not in self.promised:
            future = self.executor.submit(self._build, key, build)
            self.promised[key] = self.promise(finish, *fail, _KernelFuture(future, build))
        finish(self.promised[key])
        return self.promised[key]

    def _build(self, key: str, build: CompileFn) -> Any:
        if self.precompile is not None:
            self.precompile(key, build)
        return build()


class _KernelFuture:
    """A kernel that an executor builds. If the build is cancelled, so are the waits for it."""

    def __init__(self, future: Future[Any], build: CompileFn) -> None:
        self.future = future
        self.build = build

    def result(self) -> Any:
        try:
            return self.future.result()
        except CancelledError:
            return self.build()
