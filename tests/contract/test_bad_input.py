"""Bad input gets a 4xx that names field, rule and value, before any stream starts."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import pytest
from serving import Server

JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Bad:
    """A request that must be refused: route, body, status, and what the message must name."""

    path: str
    body: object
    status: tuple[int, ...]
    names: tuple[str, ...]


def generate(status: tuple[int, ...] = (422,), *names: str, **parameters: object) -> Bad:
    return Bad("/generate", {"inputs": "hi", "parameters": parameters}, status, names)


def chat(names: tuple[str, ...], **fields: object) -> Bad:
    body = {"model": "brook", "messages": [{"role": "user", "content": "hi"}], **fields}
    return Bad("/v1/chat/completions", body, (400,), names)


CASES = {
    "empty prompt": Bad("/generate", {"inputs": ""}, (422,), ("inputs",)),
    "no prompt": Bad("/generate", {}, (422,), ("inputs",)),
    "wrong type": Bad("/generate", {"inputs": 5}, (422,), ("inputs",)),
    "unknown field": Bad("/generate", {"inputs": "hi", "colour": 1}, (422,), ("colour",)),
    "unknown parameter": generate((422,), "colour", colour=1),
    "prompt too long": Bad("/generate", {"inputs": "word " * 5000}, (422,), ("inputs", "tokens")),
    "zero tokens": generate((422,), "max_new_tokens", max_new_tokens=0),
    "negative tokens": generate((422,), "max_new_tokens", max_new_tokens=-1),
    "huge tokens": generate((422,), "max_new_tokens", max_new_tokens=10**6),
    "over 32 bits": generate((422,), "max_new_tokens", max_new_tokens=10**12),
    "negative temperature": generate((422,), "temperature", temperature=-1.0),
    "top_p zero": generate((422,), "top_p", top_p=0.0),
    "top_k zero": generate((422,), "top_k", top_k=0),
    "too many stop strings": generate((422,), "stop", "17", stop=["a"] * 17),
    "empty stop string": generate((422,), "stop", stop=[""]),
    "truncate zero": generate((422,), "truncate", truncate=0),
    "not built": generate((422,), "adapter_id", adapter_id="x"),
    "repetition_penalty zero": generate((422,), "repetition_penalty", repetition_penalty=0),
    "frequency_penalty": generate((422,), "frequency_penalty", "2.5", frequency_penalty=2.5),
    "typical_p one": generate((422,), "typical_p", typical_p=1.0),
    "chat: unknown field": chat(("colour",), colour=1),
    "chat: zero tokens": chat(("max_tokens",), max_tokens=0),
    "chat: top_p zero": chat(("top_p",), top_p=0),
    "chat: temperature": chat(("temperature",), temperature=-0.5),
    "chat: too many stops": chat(("stop",), stop=["a"] * 17),
    "chat: no messages": Bad(
        "/v1/chat/completions", {"model": "brook", "messages": []}, (400,), ("messages",)
    ),
    "chat: min_p": chat(("min_p", "1.5"), min_p=1.5),
    "chat: logit_bias": chat(("logit_bias", "100"), logit_bias={"5": 101}),
    "chat: no such token": chat(("logit_bias", "99999999"), logit_bias={"99999999": 1}),
    "chat: unknown role": chat(("role",), messages=[{"role": "wizard", "content": "hi"}]),
    "completions: empty": Bad(
        "/v1/completions", {"model": "brook", "prompt": ""}, (400,), ("prompt",)
    ),
    "completions: token id": Bad(
        "/v1/completions", {"model": "brook", "prompt": [10**7]}, (400,), ("prompt",)
    ),
}


def message(reply: httpx.Response) -> str:
    error = reply.json()["error"]
    return str(error["message"]) if isinstance(error, dict) else str(error)


@pytest.mark.parametrize("bad", CASES.values(), ids=CASES)
def test_bad_request_is_refused_by_field_name(server: Server, bad: Bad) -> None:
    reply = httpx.post(server.url + bad.path, json=bad.body)
    assert reply.status_code in bad.status, reply.text
    for name in bad.names:
        assert name in message(reply), reply.text


@pytest.mark.parametrize("path", ["/generate_stream", "/v1/completions", "/v1/chat/completions"])
def test_bad_stream_request_gets_an_error_status(server: Server, path: str) -> None:
    body: dict[str, object] = {"inputs": "", "parameters": {}}
    if path.startswith("/v1"):
        body = {"model": "brook", "stream": True, "max_tokens": 0}
        body |= {"prompt": "hi"} if path.endswith("/v1/completions") else {}
        if "chat" in path:
            body |= {"messages": [{"role": "user", "content": "hi"}]}
            body.pop("prompt", None)
    reply = httpx.post(server.url + path, json=body)
    assert 400 <= reply.status_code < 500, reply.text
    assert reply.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
def test_invalid_json_is_refused(server: Server, path: str) -> None:
    for content in (b'{"inputs": ', b"\xff\xfe\x00", b'{"inputs": "\xff"}', b"", b"[" * 100_000):
        reply = httpx.post(server.url + path, content=content, headers=JSON)
        assert 400 <= reply.status_code < 500, reply.text
        assert message(reply)


def test_nan_temperature_is_refused(server: Server) -> None:
    content = b'{"inputs": "hi", "parameters": {"temperature": NaN}}'
    reply = httpx.post(server.url + "/generate", content=content, headers=JSON)
    assert reply.status_code in (400, 422)


def test_body_of_100_mb_is_refused(server: Server) -> None:
    content = b'{"inputs": "' + b"a" * 100_000_000 + b'"}'
    try:
        reply = httpx.post(server.url + "/generate", content=content, headers=JSON, timeout=60)
        assert reply.status_code == 413
    except (httpx.WriteError, httpx.ReadError):
        pass  # the server may close before all is sent
    assert httpx.get(server.url + "/health").status_code == 200


def test_unknown_route_and_method_are_refused(server: Server) -> None:
    assert httpx.get(server.url + "/nothing").status_code == 404
    assert httpx.get(server.url + "/generate").status_code == 405


def test_bad_requests_do_not_disturb_a_stream(server: Server) -> None:
    """A stream runs to its end while bad requests arrive."""
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 40}}
    alone = httpx.post(server.url + "/generate", json=body).json()
    lines = []
    with httpx.stream("POST", server.url + "/generate_stream", json=body) as stream:
        for line in stream.iter_lines():
            lines.append(line)
            if len(lines) % 8 == 0:
                httpx.post(server.url + "/generate", json={"inputs": ""})
    assert alone["generated_text"] in lines[-2] or alone["generated_text"] in "".join(lines[-3:])
