"""Compiles kernels in separate processes, into Triton's cache: threads would share one GIL.

`Compilers` starts `python -m penstock.worker.startup.compilers SOCKET`, which imports Triton and
all kernels, then forks a child per request. A request is a socket: the child reads from it what to
compile, and answers with one byte when the kernel is in the cache. The caller loads the kernel from
the cache, or compiles it itself if no answer came.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from penstock_kernels.compile_ahead import CompileFn

KERNELS = "penstock_kernels"
DONE = b"1"
SECONDS = 60.0  # after which callers stop waiting for a process
# What the function that Triton would call to compile a kernel has bound.
PARTS = ("src", "target", "options")
CORES = 4  # of a rank: what fewer can do, the load itself needs
NAME = 150  # letters of a kernel's name in the names of its files


class Compilers:
    """The parent process, which forks a child per kernel. Threads may call it concurrently."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            # Warnings would come once from each process.
            command = [sys.executable, "-W", "ignore", "-m", __name__, str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    def compile(self, key: str, build: CompileFn) -> bool:
        """Compiles what `build` would compile. Returns whether that was not in the cache and now
        is."""
        job = job_of(key, build)
        if job is None:
            return False
        with contextlib.suppress(OSError):
            mine, theirs = socket.socketpair()
            mine.settimeout(SECONDS)
            with mine:
                with theirs:
                    socket.send_fds(self.control, [DONE], [theirs.fileno()])
                mine.sendall(job)
                mine.shutdown(socket.SHUT_WR)
                return mine.recv(1) == DONE
        return False

    def close(self) -> None:
        """Ends the process; its children finish their kernels."""
        self.control.close()
        self.process.kill()
        self.process.wait()


def begin_compilers(ranks: int) -> Compilers | None:
    """Starts the parent process, if enough cores are free for each rank; None otherwise. It imports
    Triton and the kernels while this process does."""
    if len(os.sched_getaffinity(0)) < CORES * ranks:
        return None
    with contextlib.suppress(OSError):
        return Compilers()
    return None


def import_kernels() -> None:
    """Imports Triton and all kernel modules, while the weights are read."""
    from penstock_kernels.op import OPS

    def touch() -> None:
        for op in list(OPS.values()):
            with contextlib.suppress(Exception):
                _ = op.triton

    threading.Thread(target=touch, name="kernels", daemon=True).start()


def job_of(key: str, build: CompileFn) -> bytes | None:
    """Returns what `build` would compile, for another process; None if it is compiled already, or
    if this version of Triton does not expose it."""
    job = io.BytesIO()
    try:
        bound = inspect.getclosurevars(build).nonlocals
        src, target, options = (bound[part] for part in PARTS)
        if _is_cached(key, src.name):
            return None
        _Pickler(job).dump((src, target, options.__dict__))
    except (pickle.PicklingError, LookupError, AttributeError, TypeError, ValueError):
        return None
    return job.getvalue()


def _is_cached(key: str, name: str) -> bool:
    """Whether Triton's cache has a kernel, as Triton looks for it."""
    from triton.runtime.cache import get_cache_manager

    place = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    return bool(place.get_group(f"{name[:NAME]}.json"))


class _Pickler(pickle.Pickler):
    """Names kernels by module and name."""

    def reducer_override(self, value: Any) -> Any:
        from triton.runtime.jit import JITFunction

        if not isinstance(value, JITFunction):
            return NotImplemented
        if _named(value.__module__, value.__name__) is not value:
            raise pickle.PicklingError(f"{value.__name__} is not what {value.__module__} calls so")
        return _named, (value.__module__, value.__name__)


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def main() -> None:
    """Forks a child for each socket that arrives, until the sender closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _import_kernels()
    gc.freeze()  # children share these pages until reference counts in them change
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    while True:
        _, files, _, _ = socket.recv_fds(control, 1, 1)
        if not files:
            return
        if os.fork() == 0:
            control.close()
            _compile(files[0])
        os.close(files[0])


def _import_kernels() -> None:
    """Imports all kernel modules, except those that need another version of Triton."""
    package = importlib.import_module(KERNELS)
    for found in pkgutil.walk_packages(package.__path__, f"{KERNELS}.", onerror=lambda _: None):
        with contextlib.suppress(Exception):
            importlib.import_module(found.name)
    with contextlib.suppress(Exception):
        from triton.runtime.cache import triton_key

        triton_key()  # once here, not in each child: it reads all of Triton


def _compile(file: int) -> NoReturn:
    """Compiles one kernel in a child. Reports no error: the caller will get the same error."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the assembler is a process, too
        from triton.compiler import compile as compile_kernel

        with socket.socket(fileno=file) as asked:
            job = b"".join(iter(lambda: asked.recv(1 << 16), b""))
            src, target, options = pickle.loads(job)
            compile_kernel(src, target=target, options=options)
            asked.sendall(DONE)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
