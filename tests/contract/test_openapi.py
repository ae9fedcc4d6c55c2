"""Every example of the OpenAPI description is accepted: of each route, and of each field.

Answers are as it describes them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_spec import API, BESIDE, BODIES, INSTEAD, SCHEMAS, filled, posts
from serving import Server


@lru_cache
def fields(path: str) -> list[str]:
    schema = posts()[path]["schema"]["$ref"].rsplit("/", 1)[-1]
    return list(SCHEMAS[schema]["properties"])


def example(schema: str, field: str) -> Any:
    return SCHEMAS[schema]["properties"][field]["example"]


def send(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + filled(path), json=body, timeout=60)


def is_as_described(reply: httpx.Response, operation: dict[str, Any]) -> None:
    content = operation["responses"]["200"].get("content", {})
    assert bool(reply.content) == bool(content)
    kind = reply.headers.get("content-type", "").split(";")[0]
    assert kind in content or not content
    if kind == "application/json":
        schema = {**content[kind]["schema"], "components": API["components"]}
        jsonschema.validate(reply.json(), schema)


def with_field(body: dict[str, Any], schema: str, field: str) -> dict[str, Any]:
    changed = {**BODIES.get((schema, field), body), field: example(schema, field)}
    changed.pop(INSTEAD.get(field, ""), None)
    known = SCHEMAS[schema]["properties"]
    beside = BESIDE.get(field, {}).items()
    return changed | {name: value for name, value in beside if name in known}


def stored(server: Server) -> str:
    """The id of a response that can be asked for again."""
    return str(send(server, "/v1/responses", {"input": "Hi!", "max_output_tokens": 4}).json()["id"])


def test_the_route_that_deletes(server: Server) -> None:
    path = "/v1/responses/{id}"
    reply = httpx.delete(server.url + filled(path, stored(server)))
    assert reply.status_code == 200
    is_as_described(reply, API["paths"][path]["delete"])


@pytest.mark.parametrize("path", posts())
def test_the_example_of_a_route(server: Server, path: str) -> None:
    reply = send(server, path, posts()[path]["example"])
    assert reply.status_code == 200, reply.text
    streams = path.endswith("_stream")
    assert reply.headers["content-type"].startswith("text/event-stream") == streams
    is_as_described(reply, API["paths"][path]["post"])


@pytest.mark.parametrize("path", [path for path, result in API["paths"].items() if "get" in result])
def test_a_route_without_a_body(server: Server, path: str) -> None:
    reply = httpx.get(server.url + filled(path, stored(server)))
    assert reply.status_code == 200
    is_as_described(reply, API["paths"][path]["get"])


@pytest.mark.parametrize(("path", "field"), [(p, f) for p in posts() for f in fields(p)])
def test_the_example_of_a_field(server: Server, path: str, field: str) -> None:
    schema = posts()[path]["schema"]["$ref"].rsplit("/", 1)[-1]
    body = with_field(posts()[path]["example"], schema, field)
    if field == "stream" and path != "/":
        body["stream"] = path.endswith("_stream") or path.startswith("/v1/")
    reply = send(server, path, body)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("field", SCHEMAS["GenerateParameters"]["properties"])
def test_the_example_of_a_parameter(server: Server, field: str) -> None:
    parameters = with_field({"max_new_tokens": 8}, "GenerateParameters", field)
    reply = send(server, "/generate", {"inputs": "Once upon a time", "parameters": parameters})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("field", SCHEMAS["Message"]["properties"])
def test_the_example_of_a_message(server: Server, field: str) -> None:
    message = with_field({"role": "user", "content": "Hi!"}, "Message", field)
    if field in ("tool_calls", "function_call", "reasoning_content", "reasoning"):
        message["role"] = "assistant"
    body = {"model": "penstock", "messages": [message], "max_tokens": 8}
    body["add_generation_prompt"] = True
    reply = send(server, "/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/chat/completions", "/v1/completions", "/v1/responses"]
)
def test_the_events_of_a_stream(server: Server, path: str) -> None:
    reply = send(server, path, {**posts()[path]["example"], "stream": True})
    content = API["paths"][path]["post"]["responses"]["200"]["content"]
    schema = {**content["text/event-stream"]["schema"], "components": API["components"]}
    data = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(event) for event in data if event != "[DONE]"]
    assert len(events) > 2
    for event in events:
        jsonschema.validate(event, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"type": "nothing"}, schema)
