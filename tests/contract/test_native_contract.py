"""The native API is TGI's: routes, fields, error texts, events and headers, as tables.

What differs on purpose is in docs/tgi.md, with its reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx
import pytest
from serving import Server

PROMPT = "Once upon a time"
TOKEN = {"id": int, "text": str, "logprob": float, "special": bool}
DETAILS = {
    "finish_reason": str,
    "generated_tokens": int,
    "seed": (int, type(None)),
    "prefill": list,
    "tokens": list,
}
STREAM_DETAILS = {
    "finish_reason": str,
    "generated_tokens": int,
    "seed": (int, type(None)),
    "input_length": int,
}
INFO = {
    "model_id": str,
    "model_sha": (str, type(None)),
    "model_pipeline_tag": str,
    "max_concurrent_requests": int,
    "max_best_of": int,
    "max_stop_sequences": int,
    "max_input_tokens": int,
    "max_total_tokens": int,
    "validation_workers": int,
    "max_client_batch_size": int,
    "router": str,
    "version": str,
    "sha": type(None),
    "docker_label": type(None),
}
# Of an answer in one piece; those of a stream are marked.
WHOLE_HEADERS = {
    "x-compute-type": str,
    "x-compute-time": float,
    "x-compute-characters": int,
    "x-total-time": int,
    "x-validation-time": int,
    "x-queue-time": int,
    "x-inference-time": int,
    "x-time-per-token": int,
    "x-prompt-tokens": int,
    "x-generated-tokens": int,
}
STREAM_HEADERS = ("x-compute-type", "x-compute-characters")
METRICS = (
    "tgi_request_count",
    "tgi_request_success",
    "tgi_request_duration",
    "tgi_request_validation_duration",
    "tgi_request_queue_duration",
    "tgi_request_inference_duration",
    "tgi_request_mean_time_per_token_duration",
    "tgi_request_generated_tokens",
    "tgi_request_input_length",
    "tgi_request_max_new_tokens",
)
# Method, path, whether the answer has a body.
ROUTES = (
    ("GET", "/", False),
    ("GET", "/health", False),
    ("GET", "/ping", False),
    ("GET", "/info", True),
    ("GET", "/metrics", True),
    ("GET", "/v1/models", True),
    ("GET", "/docs", True),
    ("GET", "/api-doc/openapi.json", True),
)


@dataclass(frozen=True)
class Rule:
    """A parameter with a value that breaks its rule, and TGI's words for that."""

    field: str
    value: object
    text: str


RULES = (
    Rule("temperature", 0.0, "`temperature` must be strictly positive"),
    Rule("top_k", 0, "`top_k` must be strictly positive"),
    Rule("top_p", 0.0, "`top_p` must be > 0.0 and < 1.0"),
    Rule("top_p", 1.0, "`top_p` must be > 0.0 and < 1.0"),
    Rule("max_new_tokens", 0, "`max_new_tokens` must be strictly positive"),
    Rule("stop", list("abcde"), "`stop` supports up to 4 stop sequences. Given: 5"),
    Rule("repetition_penalty", 0.0, "`repetition_penalty` must be strictly positive"),
    Rule("frequency_penalty", 2.5, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    Rule("typical_p", 1.0, "`typical_p` must be > 0.0 and < 1.0"),
    Rule("best_of", 0, "`best_of` must be > 0 and <= {max_best_of}. Given: 0"),
    Rule(
        "truncate",
        0,
        "`truncate` must be strictly positive and less than {max_input}. Given: 0",
    ),
    Rule(
        "max_new_tokens",
        10_000,
        "`inputs` tokens + `max_new_tokens` must be <= {max_total}. "
        "Given: {tokens} `inputs` tokens and 10000 `max_new_tokens`",
    ),
)


def fits(value: object, shape: dict[str, object]) -> None:
    assert isinstance(value, dict)
    for name, kind in shape.items():
        assert name in value, f"{name} is missing in {value}"
        assert isinstance(value[name], kind), (name, value[name])  # type: ignore[arg-type]


def post(server: Server, path: str, **parameters: object) -> httpx.Response:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 6, **parameters}}
    return httpx.post(server.url + path, json=body)


def events(server: Server, **parameters: object) -> tuple[httpx.Headers, list[dict[str, object]]]:
    reply = post(server, "/generate_stream", **parameters)
    assert reply.headers["content-type"].startswith("text/event-stream")
    frames = reply.text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: {") for frame in frames)
    return reply.headers, [json.loads(frame.removeprefix("data: ")) for frame in frames]


@pytest.mark.parametrize(("method", "path", "has_body"), ROUTES, ids=lambda value: str(value))
def test_routes(server: Server, method: str, path: str, has_body: bool) -> None:
    reply = httpx.request(method, server.url + path)
    assert reply.status_code == 200
    assert bool(reply.content) == has_body


def test_generate(server: Server) -> None:
    plain = post(server, "/generate").json()
    assert set(plain) == {"generated_text"}
    reply = post(server, "/generate", details=True)
    fits(reply.json()["details"], DETAILS)
    tokens = reply.json()["details"]["tokens"]
    assert len(tokens) == 6
    for token in tokens:
        fits(token, TOKEN)
    assert "".join(token["text"] for token in tokens) == plain["generated_text"]


def test_headers_of_an_answer(server: Server) -> None:
    headers = post(server, "/generate").headers
    for name, kind in WHOLE_HEADERS.items():
        kind(headers[name])
    assert headers["x-generated-tokens"] == "6"
    assert headers["x-compute-characters"] == str(len(PROMPT))
    parts = ("x-validation-time", "x-queue-time", "x-inference-time")
    # Each is cut to whole milliseconds.
    total = int(headers["x-total-time"])
    assert total - 3 <= sum(int(headers[name]) for name in parts) <= total


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_headers_of_openai_answers(server: Server, path: str) -> None:
    body: dict[str, object] = {"model": "tgi", "max_tokens": 5, "ignore_eos": True}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": "hi"}]
    else:
        body["prompt"] = [PROMPT, PROMPT]
    reply = httpx.post(server.url + path, json=body)
    for name in WHOLE_HEADERS.keys() - {"x-compute-characters"}:
        assert name in reply.headers, name
    assert int(reply.headers["x-generated-tokens"]) == reply.json()["usage"]["completion_tokens"]
    assert int(reply.headers["x-prompt-tokens"]) == reply.json()["usage"]["prompt_tokens"]


def test_a_stream(server: Server) -> None:
    headers, stream = events(server, details=True)
    for name in STREAM_HEADERS:
        assert name in headers
    assert headers["x-accel-buffering"] == "no"
    assert [event["index"] for event in stream] == [1, 2, 3, 4, 5, 6]
    for event in stream:
        fits(event["token"], TOKEN)
    for event in stream[:-1]:
        assert event["generated_text"] is None
        assert event["details"] is None
    fits(stream[-1]["details"], STREAM_DETAILS)
    assert stream[-1]["details"]["seed"] is None  # type: ignore[index]
    assert events(server)[1][-1]["details"] is None


def test_the_root_route_answers_with_a_list_or_a_stream(server: Server) -> None:
    assert set(post(server, "/").json()[0]) == {"generated_text"}
    body = {"inputs": PROMPT, "stream": True, "parameters": {"max_new_tokens": 2}}
    assert httpx.post(server.url + "/", json=body).text.startswith('data: {"index":1,')


def test_invocations_are_told_apart_by_their_fields(server: Server) -> None:
    def invoke(**body: object) -> httpx.Response:
        return httpx.post(server.url + "/invocations", json=body)

    assert set(invoke(inputs=PROMPT, parameters={"max_new_tokens": 2}).json()[0]) == {
        "generated_text"
    }
    assert invoke(prompt=PROMPT, max_tokens=2).json()["object"] == "text_completion"
    messages = [{"role": "user", "content": "hi"}]
    assert invoke(messages=messages, max_tokens=2).json()["object"] == "chat.completion"
    assert "`messages`" in invoke(parameters={}).json()["error"]
    assert invoke(messages=messages, max_tokens=0).json()["error"]["param"] == "max_tokens"


def test_without_parameters_the_answer_is_sampled(server: Server) -> None:
    body = {"inputs": PROMPT, "stream": True}
    with httpx.stream("POST", server.url + "/", json=body) as reply:
        assert reply.status_code == 200
    seeded = post(server, "/generate", details=True, do_sample=True, seed=7).json()
    assert seeded["details"]["seed"] == 7
    greedy = post(server, "/generate", details=True, seed=7).json()
    assert greedy["details"]["seed"] is None


def test_tokenize(server: Server) -> None:
    tokens = httpx.post(server.url + "/tokenize", json={"inputs": PROMPT}).json()
    for token in tokens:
        fits(token, {"id": int, "text": str, "start": int, "stop": int})
    assert all(token["text"] == PROMPT[token["start"] : token["stop"]] for token in tokens)


def test_info(server: Server) -> None:
    fits(httpx.get(server.url + "/info").json(), INFO)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.field}={rule.value}")
@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_errors_have_its_words(server: Server, path: str, rule: Rule) -> None:
    info = httpx.get(server.url + "/info").json()
    tokens = post(server, "/generate").headers["x-prompt-tokens"]
    text = rule.text.format(
        max_best_of=info["max_best_of"],
        max_input=info["max_input_tokens"],
        max_total=info["max_total_tokens"],
        tokens=tokens,
    )
    reply = post(server, path, **{rule.field: rule.value})
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/json"
    # The value may follow.
    assert reply.json()["error"].startswith(f"Input validation error: {text}")
    assert reply.json()["error_type"] == "validation"


def test_errors_about_the_prompt(server: Server) -> None:
    empty = httpx.post(server.url + "/generate", json={"inputs": ""})
    text = "Input validation error: `inputs` cannot be empty"
    assert (empty.status_code, empty.json()) == (
        422,
        {"error": text, "error_type": "validation"},
    )
    most = httpx.get(server.url + "/info").json()["max_input_tokens"]
    long = httpx.post(server.url + "/generate", json={"inputs": "fox " * (most + 1)})
    assert long.status_code == 422
    start = f"Input validation error: `inputs` must have less than {most} tokens. Given: "
    assert long.json()["error"].startswith(start)


def test_too_many_prompts(server: Server) -> None:
    most = httpx.get(server.url + "/info").json()["max_client_batch_size"]
    body = {"model": "tgi", "prompt": [PROMPT] * (most + 1)}
    reply = httpx.post(server.url + "/v1/completions", json=body)
    assert reply.status_code == 422
    text = f"Number of prompts exceeds the maximum allowed batch size of {most}"
    assert reply.json()["error"]["message"].startswith(text)


def test_metrics_have_its_names(server: Server) -> None:
    post(server, "/generate")
    text = httpx.get(server.url + "/metrics").text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines()}
    for name in METRICS:
        assert names & {name, f"{name}_count"}, name
