"""What a server pays for streams at least: the CPU time of a small write to a loopback connection.

Like `bench/router.py` at 20 ms steps, but nothing is computed: every 20 ms a loop sends each of
256 connections one event's bytes, and another process reads them. The CPU per write, receiving
and waking the reader included, is the part of a router's CPU per token that none can save.

    python bench/writes.py
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import time


def read_all(port: int, streams: int) -> None:
    """Reads from so many connections until they are closed."""
    poller, left = select.epoll(), {}
    for _ in range(streams):
        one = socket.create_connection(("127.0.0.1", port))
        left[one.fileno()] = one
        poller.register(one, select.EPOLLIN)
    while left:
        for number, _ in poller.poll():
            if not left[number].recv(16384):
                poller.unregister(number)
                left.pop(number).close()


def cpu_per_write(streams: int, size: int, step: float, steps: int) -> float:
    """Microseconds of CPU per write of `size` bytes; `step` is in seconds."""
    with socket.create_server(("127.0.0.1", 0), backlog=streams) as listener:
        if (child := os.fork()) == 0:
            read_all(listener.getsockname()[1], streams)
            os._exit(0)
        connections = [listener.accept()[0] for _ in range(streams)]
    event = b"x" * size
    sends = [connection.send for connection in connections]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began = time.process_time()
    for _ in range(steps):
        time.sleep(step)
        for send in sends:
            send(event)
    spent = time.process_time() - began
    for connection in connections:
        connection.close()
    os.waitpid(child, 0)
    return spent / steps / streams * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--size", type=int, default=170, help="bytes of an event")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=256)
    args = parser.parse_args()
    us = cpu_per_write(args.streams, args.size, args.step_ms / 1e3, args.steps)
    print(f"{us:.2f} us of CPU per write of {args.size} bytes")


if __name__ == "__main__":
    main()
