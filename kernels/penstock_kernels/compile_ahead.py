"""Compiles many kernels concurrently, before they are needed."""

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
    """Inside this context, `executor` compiles this thread's Triton kernels; none is launched.

    Before a thread of the executor builds a kernel, it calls `precompile` with the key and the
    build function. If that compiles the kernel into Triton's cache, the thread loads it from there.
    Allocations and torch's own operations run; kernels do not write their outputs. Leaving the
    context does not wait: a later launch waits until its kernel is compiled, and raises if that
    fails. Does nothing for versions of Triton without this feature.
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
    """The compilations that Triton requests while it is active."""

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
        """Submits a build, and stores its future in place of the kernel, so that no later launch
        requests it again (Triton's own mode forgets it at the end). `fail`: called if the build
        fails, in versions of Triton (3.9) that have such a callback."""
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
