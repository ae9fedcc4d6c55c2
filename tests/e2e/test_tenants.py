"""Tenants and clients that share a server: nobody waits for another's backlog."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import Server

GREEDY, POLITE = "127.0.0.1", "127.0.0.2"
MANY = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("shared") / "log", ["--max-slots", "8"]) as server:
        yield server


def client(server: Server, address: str, **headers: str) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits())
    return httpx.AsyncClient(base_url=server.url, transport=transport, headers=headers, timeout=300)


async def stream(client: httpx.AsyncClient, number: int, tokens: int, begun: list[int]) -> None:
    """Notes `number` in `begun` when the first token arrives."""
    body = {"prompt": f"Story {number}:", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200, await reply.aread()
        seen = False
        async for line in reply.aiter_lines():
            if line.startswith("data: ") and not seen:
                seen = True
                begun.append(number)


async def passed_by(server: Server, polite_headers: dict[str, str], greedy: str) -> int:
    """How many of a client's requests begin while another's first token is due."""
    begun: list[int] = []
    headers = {"x-llm-d-inference-fairness-id": greedy} if greedy else {}
    async with client(server, GREEDY, **headers) as many:
        tasks = [asyncio.create_task(stream(many, n, 24, begun)) for n in range(MANY)]
        while len(begun) < 10:
            await asyncio.sleep(0.01)
        before = len(begun)
        address = GREEDY if polite_headers else POLITE
        async with client(server, address, **polite_headers) as one:
            await stream(one, -1, 4, begun)
        passed = begun.index(-1) - before
        await asyncio.gather(*tasks)
    assert len(begun) == MANY + 1
    return passed


def test_a_client_does_not_wait_for_the_backlog_of_another(server: Server) -> None:
    assert asyncio.run(passed_by(server, {}, "")) <= 20


def test_a_gateways_flows_share_as_clients_do(server: Server) -> None:
    polite = {"x-gateway-inference-fairness-id": "polite"}
    assert asyncio.run(passed_by(server, polite, "greedy")) <= 20


def ask(server: Server, key: str, tokens: int = 2) -> httpx.Response:
    body = {"prompt": "Once", "max_tokens": tokens, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)


def test_limits_of_a_tenant_and_their_reload(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("[small]\nkeys = ['a']\ntokens_per_minute = 20\n[large]\nkeys = ['b']\n")
    with Server(tmp_path / "log", ["--tenants", str(file)]) as server:
        assert ask(server, "c").status_code == 401
        assert ask(server, "a", tokens=40).status_code == 200
        refused = ask(server, "a")
        assert refused.status_code == 429
        # 40 generated tokens and the prompt; a minute allows 20.
        assert 60 <= int(refused.headers["retry-after"]) <= 90
        assert "`small`" in refused.json()["error"]["message"]
        assert ask(server, "b").status_code == 200
        file.write_text("[small]\nkeys = ['a2']\ntokens_per_minute = 1000\n")
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while ask(server, "a").status_code != 401:
            assert time.monotonic() < deadline, server.output()
            time.sleep(0.05)
        assert ask(server, "a2").status_code == 200
        assert ask(server, "b").status_code == 401
        file.write_text("[small]\nkeys = ['a3']\nrate = 5\n")
        server.process.send_signal(signal.SIGHUP)
        while "rate" not in server.output():
            assert time.monotonic() < deadline, server.output()
            time.sleep(0.05)
        assert ask(server, "a2").status_code == 200, "the former tenants stay"
        assert "a3" not in server.output()
