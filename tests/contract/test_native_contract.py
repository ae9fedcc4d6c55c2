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
# Name -> type.
METRICS = {
    "tgi_request_count": "counter",
    "tgi_request_success": "counter",
    "tgi_request_failure": "counter",
    "tgi_request_duration": "histogram",
    "tgi_request_validation_duration": "histogram",
    "tgi_request_queue_duration": "histogram",
    "tgi_request_inference_duration": "histogram",
    "tgi_request_mean_time_per_token_duration": "histogram",
    "tgi_request_generated_tokens": "histogram",
    "tgi_request_input_length": "histogram",
    "tgi_request_max_new_tokens": "histogram",
    "tgi_batch_next_size": "histogram",
    "tgi_batch_inference_duration": "histogram",
    "tgi_batch_forward_duration": "histogram",
    "tgi_batch_current_size": "gauge",
    "tgi_queue_size": "gauge",
}
USAGE = {"prompt_tokens": int, "completion_tokens": int, "total_tokens": int}
CHAT = {
    "object": str,
    "id": str,
    "created": int,
    "model": str,
    "system_fingerprint": str,
    "choices": list,
    "usage": dict,
}
CHUNK = CHAT | {"usage": (dict, type(None))}
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
    Rule("stop", ["a"] * 17, "`stop` supports up to 16 stop sequences. Given: 17"),
    Rule("repetition_penalty", 0.0, "`repetition_penalty` must be strictly positive"),
    Rule("frequency_penalty", 2.5, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    Rule("typical_p", 1.0, "`typical_p` must be > 0.0 and < 1.0"),
    Rule("frequency_penalty", -2.5, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    Rule("temperature", -1.0, "`temperature` must be strictly positive"),
    Rule("typical_p", 0.0, "`typical_p` must be > 0.0 and < 1.0"),
    Rule("top_n_tokens", 21, "`top_n_tokens` must be >= 0 and <= 20. Given: 21"),
    Rule("truncate", 10**6, "`truncate` must be strictly positive and less than {max_input}."),
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


# Parameters that do not go together, where, and TGI's words for that.
COMBINATIONS = (
    (
        "/generate",
        {"best_of": 33, "do_sample": True},
        "`best_of` must be > 0 and <= 32. Given: 33",
    ),
    ("/generate", {"best_of": 2}, "you must use sampling when `best_of` is > 1"),
    (
        "/generate",
        {"best_of": 2, "do_sample": True, "seed": 1},
        "`seed` must not be set when `best_of` > 1",
    ),
    (
        "/generate_stream",
        {"best_of": 2, "do_sample": True},
        "`best_of` != 1 is not supported when streaming tokens",
    ),
    (
        "/generate_stream",
        {"decoder_input_details": True},
        "`decoder_input_details` == true is not supported when streaming tokens",
    ),
)


@pytest.mark.parametrize(("path", "parameters", "text"), COMBINATIONS)
def test_combinations_have_its_words(
    server: Server, path: str, parameters: dict[str, object], text: str
) -> None:
    reply = post(server, path, **parameters)
    assert (reply.status_code, reply.json()["error_type"]) == (422, "validation")
    assert reply.json()["error"].startswith(f"Input validation error: {text}")


@pytest.mark.parametrize(
    ("grammar", "name"),
    [
        ({"type": "json", "value": {"type": "object", "not": {}}}, "not"),
        ({"type": "regex", "value": "("}, "regular expression"),
        ({"type": "other", "value": "a"}, "grammar.type"),
        ({"type": "regex"}, "grammar"),
    ],
    ids=str,
)
def test_grammars_that_cannot_be(server: Server, grammar: dict[str, object], name: str) -> None:
    reply = post(server, "/generate", grammar=grammar)
    assert (reply.status_code, reply.json()["error_type"]) == (422, "validation")
    assert name in reply.json()["error"]


def test_every_parameter_at_once(server: Server) -> None:
    parameters = {
        "best_of": 2,
        "temperature": 0.5,
        "repetition_penalty": 1.03,
        "frequency_penalty": 0.1,
        "top_k": 10,
        "top_p": 0.95,
        "typical_p": 0.95,
        "do_sample": True,
        "return_full_text": True,
        "stop": ["photographer"],
        "truncate": 3,
        "watermark": True,
        "details": True,
        "decoder_input_details": True,
        "seed": None,
        "top_n_tokens": 5,
        "grammar": None,
        "adapter_id": None,
    }
    answer = post(server, "/generate", **parameters).json()
    assert answer["generated_text"].startswith(PROMPT)
    fits(answer["details"], DETAILS | {"top_tokens": list, "best_of_sequences": list})
    (other,) = answer["details"]["best_of_sequences"]
    fits(other, DETAILS | {"generated_text": str, "top_tokens": list})
    for details in (answer["details"], other):
        assert len(details["prefill"]) == 3
        for token in details["prefill"]:
            fits(token, {"id": int, "text": str, "logprob": (float, type(None))})
        assert [len(top) for top in details["top_tokens"]] == [5] * 6
        for token in details["top_tokens"][0]:
            fits(token, TOKEN)


def test_reasons_to_end_and_what_a_stop_string_leaves(server: Server) -> None:
    whole = post(server, "/generate", max_new_tokens=12).json()["generated_text"]
    stop = whole.split()[1]
    found = post(server, "/generate", max_new_tokens=12, stop=[stop], details=True).json()
    assert found["generated_text"].endswith(stop)
    assert found["details"]["finish_reason"] == "stop_sequence"
    length = post(server, "/generate", details=True).json()
    assert length["details"]["finish_reason"] == "length"
    ended = post(server, "/generate", details=True, max_new_tokens=400).json()
    assert ended["details"]["finish_reason"] == "eos_token"
    assert ended["details"]["tokens"][-1]["special"]


def test_shapes_of_the_openai_routes(server: Server) -> None:
    messages = [{"role": "user", "content": "hi"}]
    chat = {"model": "tgi", "messages": messages, "max_tokens": 4}
    found = httpx.post(f"{server.url}/v1/chat/completions", json=chat).json()
    fits(found, CHAT)
    fits(found["usage"], USAGE)
    fits(found["choices"][0], {"index": int, "message": dict, "finish_reason": str})
    fits(found["choices"][0]["message"], {"role": str, "content": str})
    completion = {"model": "tgi", "prompt": PROMPT, "max_tokens": 4}
    found = httpx.post(f"{server.url}/v1/completions", json=completion).json()
    fits(found, CHAT)
    fits(found["choices"][0], {"index": int, "text": str, "finish_reason": str})
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for path, body in (("chat/completions", chat), ("completions", completion)):
        reply = httpx.post(f"{server.url}/v1/{path}", json=body | usage)
        *frames, end, nothing = reply.text.split("\n\n")
        assert (end, nothing) == ("data: [DONE]", "")
        chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        for chunk in chunks:
            fits(chunk, CHUNK)
        assert chunks[-1]["choices"] == []
        fits(chunks[-1]["usage"], USAGE)
    found = httpx.post(f"{server.url}/chat_tokenize", json={"messages": messages}).json()
    fits(found, {"tokenize_response": list, "templated_text": str})
    fits(found["tokenize_response"][0], {"id": int, "text": str, "start": int, "stop": int})
    models = httpx.get(f"{server.url}/v1/models").json()
    fits(models, {"object": str, "data": list})
    fits(models["data"][0], {"id": str, "object": str, "created": int, "owned_by": str})


def test_metrics_have_its_names_and_types(server: Server) -> None:
    post(server, "/generate")
    assert post(server, "/generate", top_k=0).status_code == 422
    lines = httpx.get(server.url + "/metrics").text.splitlines()
    types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    assert METRICS.items() <= types.items()
    names = {line.split("{")[0].split(" ")[0] for line in lines}
    for name, kind in METRICS.items():
        suffix = {"counter": "", "gauge": "", "histogram": "_count"}[kind]
        assert f"{name}{suffix}" in names, name
    failures = [line for line in lines if line.startswith("tgi_request_failure{")]
    assert any('err="validation"' in line for line in failures)
