"""The server under faults: where its workers are, a log that can fail, a clock that can jump."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from ..serving import Server, descendants, worker_sockets

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# The log begins here in a sparse file: a limit of file sizes at its end limits no other file.
LOG_START = 1 << 30
ORDER_SECONDS = 30  # a worker that starts listens for orders at once, a stopped one never
LEASE_SECONDS = 15


# Prompts that no other request has -> what a step with them does to the worker.
POISON = {"raise": "qqq zzz qqq xxx", "kill": "xxx zzz xxx qqq"}


class NoWorker(RuntimeError):
    """No worker carries out an order: it has ended, or has not started yet."""


@dataclass
class FaultyServer(Server):
    """`penstock serve` whose workers carry out orders, in a folder of its own."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="faults-")))

    def __post_init__(self) -> None:
        self.clock = self.folder / "clock"
        self.clock.write_bytes(bytes(8))
        write_poison(self.folder / "poison")
        self.shim = self.folder / "clock.so"
        source = str(HERE / "clock.c")
        compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self.shim), source, "-ldl"]
        subprocess.run(compiler, check=True)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        paths = [HERE / "plant", ROOT / "python", ROOT / "kernels"]
        added = {
            "PYTHONPATH": os.pathsep.join([*map(str, paths), kept.get("PYTHONPATH", "")]),
            "FAULT_ORDERS": str(self.folder),
            "FAULT_CLOCK": str(self.clock),
            "LD_PRELOAD": str(self.shim),
        }
        return kept | added

    def start(self) -> FaultyServer:
        """Starts it with an empty log, also after it has ended."""
        with self.log.open("wb") as output:
            output.seek(LOG_START)
            self.process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
            )
        return self

    def __enter__(self) -> FaultyServer:
        super().__enter__()
        return self

    def output(self) -> str:
        with self.log.open("rb") as log:
            log.seek(LOG_START)
            return log.read().decode(errors="replace")

    def workers(self) -> dict[int, int]:
        """Rank -> process id of the workers that serve, or will as soon as they have loaded."""
        found: list[tuple[int, int, int]] = []  # generation, rank, process id
        for pid, path in worker_sockets(self.process.pid).items():
            generation, rank = path.stem.split("-")
            found.append((int(generation), int(rank), pid))
        # The newest: one that the server has given up may take a moment to end.
        return {rank: pid for _, rank, pid in sorted(found)}

    def worker(self, rank: int) -> int:
        """The process id of a worker, once it runs. Raises NoWorker if none starts."""
        until = time.monotonic() + ORDER_SECONDS
        while time.monotonic() < until:
            if (pid := self.workers().get(rank)) is not None:
                return pid
            time.sleep(0.02)
        raise NoWorker(f"no worker of rank {rank} within {ORDER_SECONDS} s")

    def order(self, rank: int, order: dict[str, object]) -> int:
        """Has a worker carry out an order of `plant/sitecustomize.py`; returns its process id."""
        until = time.monotonic() + ORDER_SECONDS
        while time.monotonic() < until:
            pid = self.worker(rank)
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ORDER_SECONDS)
                connection.connect(str(self.folder / str(pid)))
                connection.sendall(json.dumps(order).encode() + b"\n")
                if (reply := connection.makefile().readline().strip()) == "done":
                    return pid
                raise NoWorker(f"worker {rank}: {reply or 'ended'}")
            time.sleep(0.02)
        raise NoWorker(f"worker {rank} takes no order")

    def fired(self, pid: int) -> bool:
        """Whether an op of this worker has met its fault."""
        return (self.folder / f"{pid}.fired").exists()

    def worker_sockets(self) -> list[Path]:
        """Paths on which the workers that run listen."""
        sockets = worker_sockets(self.process.pid)
        return [sockets[pid] for pid in self.workers().values() if pid in sockets]

    def fill_disk(self) -> None:
        """Lets each write to the log fail from now on."""
        self._limit_log(self.log.stat().st_size)

    def free_disk(self) -> None:
        """Lets writes to the log succeed again."""
        self._limit_log(resource.RLIM_INFINITY)

    def _limit_log(self, size: int) -> None:
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def jump(self, seconds: int) -> None:
        """Sets the wall clock of all processes of the server off by `seconds`."""
        with self.clock.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
            memory[:] = struct.pack("q", seconds)

    def kill_launcher(self) -> list[int]:
        """SIGKILL of the server's process. Returns the processes of workers that still run some
        time later."""
        left = [pid for pid in descendants(self.process.pid) if _of_workers(pid)]
        self.process.kill()
        self.process.wait()
        until = time.monotonic() + LEASE_SECONDS
        while left and time.monotonic() < until:
            time.sleep(0.05)
            left = [pid for pid in left if _of_workers(pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def write_poison(path: Path) -> None:
    """Writes the token ids by which workers know the requests that fail them."""
    tokenizer = Tokenizer.from_file(str(ROOT / "python/penstock/brook/tokenizer.json"))
    encode = partial(tokenizer.encode, add_special_tokens=False)
    path.write_text(json.dumps({effect: encode(text).ids for effect, text in POISON.items()}))


def _of_workers(pid: int) -> bool:
    """Whether a process is a worker, or forks workers."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"penstock.worker" in command
