"""One client: sends a request and keeps what arrives, with the time of each event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx

from .answers import Answer, read
from .load import Request

SECONDS = 180  # without a byte, before a client gives up
DONE = "[DONE]"


def connect(url: str, clients: int) -> httpx.AsyncClient:
    """A pool with a connection for each client."""
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    timeout = httpx.Timeout(SECONDS, connect=10)
    return httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits)


async def send(
    client: httpx.AsyncClient, request: Request, on_event: Callable[[], None] = lambda: None
) -> Answer:
    """Returns what arrived, complete or not. Calls `on_event` at each event with tokens."""
    answer = Answer()
    try:
        async with client.stream("POST", request.path, json=request.body) as reply:
            answer.status = reply.status_code
            await _receive(reply, request, answer, on_event)
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


async def _receive(
    reply: httpx.Response, request: Request, answer: Answer, on_event: Callable[[], None]
) -> None:
    if reply.status_code != 200:
        answer.error = (await reply.aread()).decode(errors="replace")
        if (seconds := reply.headers.get("retry-after")) is not None:
            answer.retry_after = float(seconds)
        return
    if not request.streams:
        read(request.path, json.loads(await reply.aread()), answer)
        answer.ended = True
        return
    async for line in reply.aiter_lines():
        if not line.startswith("data:"):
            continue
        text = line.removeprefix("data:").strip()
        if text == DONE:
            answer.ended = True
            continue
        read(request.path, json.loads(text), answer)
        answer.times.append(time.monotonic())
        on_event()
