"""After hostile, cut off and ordinary requests of every kind, nothing is left behind."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import httpx
from openapi_spec import API, SCHEMAS, filled
from serving import Server, metrics

ROUNDS = 12  # for each route
ODD: list[Any] = [None, -1, 0, 2**40, 0.5, "", "\u0000", [], {}, [[[]]], True, "🦊" * 50]
SETTLED = (
    "penstock_requests_open",
    "penstock_kv_blocks_dead",
    "penstock_http_body_bytes",
    'penstock_kv_blocks{state="leased"}',
)


def bodies() -> dict[str, Any]:
    return {
        filled(path): methods["post"]["requestBody"]["content"]
        for path, methods in API["paths"].items()
        if "post" in methods
    }


def changed(content: dict[str, Any], choose: random.Random) -> dict[str, Any]:
    """The example of a route with some fields as documented and perhaps an odd one."""
    body: dict[str, Any] = json.loads(json.dumps(content["application/json"]["example"]))
    schema = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
    fields = SCHEMAS[schema]["properties"]
    for field in choose.sample(sorted(fields), min(choose.randrange(4), len(fields))):
        body[field] = fields[field]["example"]
    if choose.random() < 0.5:
        body[choose.choice(sorted(fields))] = choose.choice(ODD)
    return body


def gauges(server: Server) -> dict[str, float]:
    lines = metrics(server).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(values[name]) for name in SETTLED}


def test_random_requests_leak_nothing(server: Server) -> None:
    choose = random.Random(5)
    statuses = set()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for path, content in bodies().items():
            for _ in range(ROUNDS):
                body = changed(content, choose)
                with client.stream("POST", path, json=body) as reply:
                    statuses.add(reply.status_code)
                    assert reply.status_code < 500, (path, body, reply.read())
                    if choose.random() < 0.5:
                        reply.read()
                    # Otherwise the client leaves now.
    assert {200, 400, 422} <= statuses
    until = time.monotonic() + 60
    while any(gauges(server).values()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(gauges(server).values()), gauges(server)
