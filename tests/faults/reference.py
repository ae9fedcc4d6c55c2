"""The answers without faults, recorded first."""

from __future__ import annotations

import asyncio

import httpx

from .answers import Answer
from .client import connect, send
from .compare import difference
from .load import Request

TOGETHER = 8


class UnstableReference(AssertionError):
    """A request whose answer differs without any fault; it cannot show what a fault changes."""


async def record(url: str, requests: list[Request]) -> list[Answer]:
    """The answer of each request, equal when it runs alone and among others.

    Raises UnstableReference if one is not complete or not equal.
    """
    async with connect(url, TOGETHER) as client:
        alone = [await send(client, request) for request in requests]
        gate = asyncio.Semaphore(TOGETHER)
        together = await asyncio.gather(*(_gated(gate, client, r) for r in requests))
    for request, one, other in zip(requests, alone, together, strict=True):
        for answer in (one, other):
            if not answer.complete:
                raise UnstableReference(f"{request} without faults: {answer}")
        if (found := difference(other, one)) is not None:
            raise UnstableReference(f"{request} among others: {found}")
    return alone


async def _gated(gate: asyncio.Semaphore, client: httpx.AsyncClient, request: Request) -> Answer:
    async with gate:
        return await send(client, request)
