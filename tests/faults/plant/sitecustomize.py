"""Faults inside a worker, on order. Python imports this file at the start of every process that has
its folder in PYTHONPATH; only a worker listens.

Orders are JSON lines on the unix socket `DIRECTORY/PID`; each is answered by `done` or an error:
`{"do": "raise" | "oom" | "stall", "op": NAME, "seconds": N}` takes effect at the next call of the
op, once; `{"do": "close"}` and `{"do": "garbage", "seed": N}` at once.

`DIRECTORY/poison` holds `{EFFECT: TOKEN_IDS}`: a step that runs a sequence with these ids raises an
exception (effect `raise`) or kills the process (`kill`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GARBAGE_BYTES = 4096


class Armed:
    """The fault that the next call of an op meets. Replaces `Op.on`."""

    def __init__(self, path: Path) -> None:
        from penstock_kernels.op import Op

        self.order: dict[str, Any] | None = None
        self.fired = path
        self.plain = Op.on
        armed = self

        def on(op: Op[..., Any], tensor: Any) -> Any:
            armed.meet(op.name)
            return armed.plain(op, tensor)

        Op.on = on  # type: ignore[method-assign,assignment]

    def meet(self, name: str) -> None:
        order = self.order
        if order is None or order["op"] != name:
            return
        self.order = None
        with self.fired.open("a") as fired:
            fired.write(f"{order['do']} {name}\n")
        if order["do"] == "stall":
            time.sleep(order["seconds"])
        elif order["do"] == "oom":
            from torch import OutOfMemoryError

            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        else:
            raise RuntimeError(f"an injected fault in {name}")


class Poisoned:
    """Which slots hold poison. Wraps `Runner.launch`."""

    def __init__(self, effects: dict[str, list[int]]) -> None:
        from penstock.worker.run.runner import Runner

        self.effects = effects
        self.slots: dict[int, str] = {}  # slot -> effect
        plain = Runner.launch

        def launch(runner: Any, step: Any) -> Any:
            self.meet(step)
            return plain(runner, step)

        Runner.launch = launch  # type: ignore[method-assign,assignment]

    def meet(self, step: Any) -> None:
        for slot in step.finished:
            self.slots.pop(int(slot), None)
        for new in step.new:
            self.slots.pop(new.slot, None)
            for effect, ids in self.effects.items():
                if _contains(new.token_ids.tolist(), ids):
                    self.slots[new.slot] = effect
        met = {self.slots.get(int(slot)) for slot in step.run_slots}
        if "kill" in met:
            os.kill(os.getpid(), signal.SIGKILL)
        if "raise" in met:
            raise RuntimeError("an injected fault of a request")


def _contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids) - len(part) + 1))


def poison(effects: dict[str, list[int]]) -> None:
    """Wraps the runner as soon as Load has imported it."""
    while not hasattr(sys.modules.get("penstock.worker.run.runner"), "Runner"):
        time.sleep(0.01)
    Poisoned(effects)


def connections(own: int) -> Iterator[socket.socket]:
    """The accepted connections of this process's gRPC server, duplicated."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(int(name)))
            with found:
                listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                address = found.getsockname()
                if not listens and int(name) != own and str(address).endswith(".sock"):
                    yield found


def obey(order: dict[str, Any], armed: Armed | None, own: int) -> None:
    """Carries out an order; `own` is the descriptor that it came by."""
    if order["do"] == "close":
        for connection in connections(own):
            connection.shutdown(socket.SHUT_RDWR)
    elif order["do"] == "garbage":
        noise = random.Random(order["seed"])
        for connection in connections(own):
            with contextlib.suppress(OSError):
                connection.send(noise.randbytes(GARBAGE_BYTES), socket.MSG_DONTWAIT)
    else:
        assert armed is not None
        armed.order = order


def listen(directory: Path) -> None:
    """Obeys one order after the other, until the process ends."""
    armed: Armed | None = None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / str(os.getpid())))
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as lines:
                try:
                    order = json.loads(lines.readline())
                    if "op" in order and armed is None:
                        armed = Armed(directory / f"{os.getpid()}.fired")
                    obey(order, armed, connection.fileno())
                    lines.write("done\n")
                except Exception as error:
                    lines.write(f"{type(error).__name__}: {error}\n")


def plant() -> None:
    """Starts the threads of a worker."""
    orders = Path(os.environ["FAULT_ORDERS"])
    threading.Thread(target=listen, args=(orders,), name="faults", daemon=True).start()
    if (planted := orders / "poison").exists():
        effects = json.loads(planted.read_text())
        threading.Thread(target=poison, args=(effects,), name="poison", daemon=True).start()


if "FAULT_ORDERS" in os.environ:
    if "penstock.worker" in sys.orig_argv:
        plant()
    elif "penstock.worker.fork_server" in sys.orig_argv:
        os.register_at_fork(after_in_child=plant)
