"""`python -m penstock.worker --socket PATH --rank R`: runs one worker until its lease ends.

All other settings arrive by Load. The lease is standard input: when it closes, the process exits
(`penstock.worker.lease`), so that no worker outlives the process that started it.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    gc.disable()  # until all is imported: it took an eighth of the imports' time, and found nothing

import grpc

from penstock.worker import logs
from penstock.worker.lease import Lease
from penstock.worker.service import ShardService, attach

CALLS = 24  # RPCs served at once: one step stream, the router's 16 of Prepare, health checks
MESSAGE_BYTES = 256 << 20  # a step may bring many sequences in full
LOADED = (  # what `ShardService` imports when Load comes
    "penstock.worker.startup.loader",
    "penstock.worker.run.pipeline",
    "penstock.worker.run.trace",
    "penstock.grammar.cache",
)


def main(words: list[str] | None = None) -> None:
    """Serves until the lease ends or Shutdown comes. `words` is the command line, by default that
    of the process."""
    parser = argparse.ArgumentParser(prog="python -m penstock.worker", description=__doc__)
    parser.add_argument("--socket", required=True, help="path of the unix socket to serve on")
    parser.add_argument("--rank", type=int, default=0, help="place in the tensor-parallel group")
    parser.add_argument(
        "--trace", type=Path, help="file for the timeline of the last steps, written at the end"
    )
    arguments = parser.parse_args(words)
    logs.start()
    # Ctrl-C reaches the whole foreground group; draining is the launcher's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The launcher asks for the stacks before it kills a worker that hangs. SIGSEGV writes them too.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    ended = threading.Event()
    lease = Lease(ended.set, lambda: log_to_file(f"{arguments.socket}.log"))
    shard = ShardService(arguments.rank, ended.set, arguments.trace, lease)
    server = serve(arguments.socket, shard)
    threading.Thread(target=lease.watch, args=(0,), name="lease", daemon=True).start()
    # Long, and needed by Load: done while the router connects.
    threading.Thread(target=finish_imports, name="imports", daemon=True).start()
    ended.wait()
    server.stop(grace=0.5).wait(1.0)
    shard.close()
    # Not sys.exit: a thread that hangs in a device call must not keep the process alive.
    os._exit(0)


def serve(socket: str, shard: ShardService) -> grpc.Server:
    """Starts the service on a unix socket; exits with a message if the socket is unusable."""
    options = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
    ]
    server = grpc.server(ThreadPoolExecutor(CALLS), options=options)
    attach(server, shard)
    # A process that can connect can read prompts: the socket gets mode 0600.
    former = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{socket}")
    except RuntimeError as error:
        sys.exit(f"cannot serve on {socket}: {error}; is the directory there and the path short?")
    finally:
        os.umask(former)
    server.start()
    return server


def log_to_file(path: str) -> None:
    """Sends the log to a file: the launcher that read standard error is gone."""
    log = logging.getLogger("penstock.worker")
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        log.warning("no log from here on: %s", error)
        return
    os.dup2(file, sys.stderr.fileno())
    os.close(file)
    log.info("the launcher is gone; waiting for another one")


def finish_imports() -> None:
    """Imports what Load will need. From then on garbage is collected, not among what is there."""
    warm_imports()
    gc.freeze()
    gc.enable()


def warm_imports() -> None:
    """Imports what Load will need. If an import fails here, Load repeats it and reports the
    error."""
    try:
        for name in LOADED:
            importlib.import_module(name)
    except Exception as error:
        logging.getLogger("penstock.worker").warning("import failed: %s", error)


if __name__ == "__main__":
    main()
