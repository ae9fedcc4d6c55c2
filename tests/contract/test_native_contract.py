"""Every entry of the table of TGI's native API holds, or docs/tgi.md names it as different.

The table is native.json beside this file; read_reference.py wrote it.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from native_api import DIFFERENCES, PROMPT, TABLE, begins, events, flat_all, frames, limits, post
from openapi_spec import posts
from serving import Server, metrics

PARAMETERS: dict[str, Any] = TABLE["parameters"]
HEADERS: dict[str, dict[str, str]] = TABLE["headers"]
RANGES = {name: result["range"] for name, result in PARAMETERS.items() if result["range"]}
MESSAGES = [{"role": "user", "content": "hi"}]
FUNCTION = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": FUNCTION}}]

# Entries of the table that do not hold, by kind. docs/tgi.md says why.
EXCUSED: dict[str, set[str]] = {
    "errors": {
        "grammar is not valid: {e}",
        "cannot compile regex from schema: {e}",
        *TABLE["other_errors"],
    },
    "routes": {"/vertex"},
    "statuses": {
        "missing_template_variable",
        "tool_error",
        "incomplete_generation",
        "incomplete_generation_stream",
        "stream_serialization_error",
        "healthcheck",
    },
    "bare_statuses": {"401"},
    "fields": {
        "messages[].content[].image_url",
        "messages[].content[].image_url.url",
        "choices[].message.tool_calls[].function.description",
    },
    # Fields that have other values than the table's.
    "values": {"id", "system_fingerprint", "choices[].message.tool_calls[].id", "data[].created"},
    "metrics": {
        "tgi_request_skipped_tokens",
        "tgi_batch_inference_count",
        "tgi_batch_inference_success",
        "tgi_batch_inference_failure",
        "tgi_batch_decode_duration",
        "tgi_batch_filter_duration",
        "tgi_batch_concat_duration",
        "tgi_batch_concat",
        "tgi_batch_current_max_tokens",
        "tgi_batch_max_total_tokens",
    },
    "labels": {"incomplete"},
    # Of OpenAI's routes.
    "headers": {"x-compute-characters"},
}


def known(kind: str) -> set[str]:
    """What the table has of a kind."""
    if kind == "errors":
        return {
            *TABLE["other_errors"],
            *(e for result in PARAMETERS.values() for e in result["errors"]),
        }
    if kind == "routes":
        return {route["path"] for route in TABLE["routes"]}
    if kind == "statuses":
        return {row["error_type"] for row in TABLE["statuses"]}
    if kind == "bare_statuses":
        return {str(status) for status in TABLE["bare_statuses"]}
    if kind in ("metrics", "headers"):
        return set(TABLE["metrics"]) | set(HEADERS["whole"])
    if kind == "labels":
        labels = [result["labels"].values() for result in TABLE["metrics"].values()]
        return {value for values in labels for each in values for value in each}
    shapes = [*TABLE["schemas"].values(), *(route["answer"] for route in TABLE["routes"])]
    return {path for shape in shapes for path in shape}


@pytest.mark.parametrize(
    ("kind", "entry"), [(k, e) for k, es in EXCUSED.items() for e in sorted(es)]
)
def test_exceptions_to_the_contract_are_documented(kind: str, entry: str) -> None:
    assert entry in known(kind)
    # A field is named by its last part.
    name = entry.rsplit(".", 1)[-1] if kind in ("fields", "values") else entry
    assert f"`{name}`" in DIFFERENCES


# --- routes ---


def answer_of(server: Server, method: str, path: str) -> httpx.Response:
    """A good request's answer; the OpenAPI description has an example for each body."""
    url = server.url + path.format(m="brook", v="1")
    if method == "GET":
        return httpx.get(url)
    described = path.replace("{m}", "{model}").replace("{v}", "{version}")
    body = posts()[described]["example"]
    # An answer of KServe's has the id of its request.
    body = {**body, "id": "42"} if path.endswith("/infer") else body
    return httpx.post(url, json=body, timeout=60)


SERVED = [route for route in TABLE["routes"] if route["path"] not in EXCUSED["routes"]]


@pytest.mark.parametrize("route", SERVED, ids=lambda route: f"{route['method']} {route['path']}")
def test_routes(server: Server, route: dict[str, Any]) -> None:
    reply = answer_of(server, route["method"], route["path"])
    assert reply.status_code == 200
    empty = route["path"].endswith(("/ping", "/health", "/live", "/ready"))
    assert bool(reply.content) != (empty or (route["method"], route["path"]) == ("GET", "/"))
    if route["answer"]:
        has_fields(route["answer"], [reply.json()])


@pytest.mark.parametrize("path", sorted(EXCUSED["routes"]))
def test_unsupported_routes_return_404(server: Server, path: str) -> None:
    assert httpx.post(server.url + path, json={}).status_code == 404


# --- parameters ---


def wrong(name: str, end: str, most: dict[str, int]) -> list[Any]:
    """Values just beyond one end of a parameter's range."""
    least, with_least, greatest, with_greatest = RANGES[name]
    kind = PARAMETERS[name]["type"]
    step = 0.5 if kind.startswith("f") else 1
    if end == "least":
        bound = float(least) - with_least * step
        # What has no sign is refused as no such number.
        found = [bound] if kind.startswith("u") else [bound, bound - step]
    else:
        bound = float(most.get(greatest, greatest)) + with_greatest * step
        found = [bound, bound + step]
    if kind == "[string]":
        return [["a"] * int(value) for value in found]
    return found if step == 0.5 else [int(value) for value in found]


ENDS = [
    (name, end)
    for name, result in RANGES.items()
    for end, at in (("least", 0), ("most", 2))
    if result[at]
]


@pytest.mark.parametrize(("name", "end"), ENDS)
@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_out_of_range_values_are_refused(server: Server, path: str, name: str, end: str) -> None:
    most = limits(server)
    for value in wrong(name, end, most):
        given = str(len(value) if isinstance(value, list) else value)
        texts = [text.replace("{n}", given) for text in PARAMETERS[name]["errors"]]
        if path == "/generate_stream" and name == "best_of" and end == "most":
            # No stream has several answers, however many were allowed.
            texts = [text for text in texts if "streaming" in text]
        is_refused(post(server, path, do_sample=True, **{name: value}), texts[0], most)


def is_refused(reply: httpx.Response, text: str, most: dict[str, int]) -> None:
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["error_type"] == "validation"
    assert begins(f"Input validation error: {text}", reply.json()["error"], most), reply.text


@pytest.mark.parametrize("name", RANGES)
def test_inclusive_range_ends_are_accepted(server: Server, name: str) -> None:
    least, with_least, greatest, with_greatest = RANGES[name]
    most = limits(server)
    ends = [
        end for end, inside in ((least, with_least), (greatest, with_greatest)) if end and inside
    ]
    for end in ends:
        number = float(most.get(end, end))
        kind = PARAMETERS[name]["type"]
        value: Any = number if kind.startswith("f") else int(number)
        value = ["zzz"] * value if kind == "[string]" else value
        assert post(server, "/generate", do_sample=True, **{name: value}).status_code == 200


# An error -> its route and body.
ERRORS: dict[str, tuple[str, dict[str, Any]]] = {
    "`inputs` cannot be empty": ("/generate", {"inputs": ""}),
    "`inputs` must have less than {max_input_tokens} tokens. Given: {n}": (
        "/generate",
        {"inputs": "fox " * 5000},
    ),
    "`inputs` tokens + `max_new_tokens` must be <= {max_total_tokens}. "
    "Given: {n} `inputs` tokens and {m} `max_new_tokens`": (
        "/generate",
        {"parameters": {"max_new_tokens": 10_000}},
    ),
    "`seed` must not be set when `best_of` > 1": (
        "/generate",
        {"parameters": {"best_of": 2, "do_sample": True, "seed": 1}},
    ),
    "you must use sampling when `best_of` is > 1": ("/generate", {"parameters": {"best_of": 2}}),
    "`best_of` != 1 is not supported when streaming tokens": (
        "/generate_stream",
        {"parameters": {"best_of": 2, "do_sample": True}},
    ),
    "`decoder_input_details` == true is not supported when streaming tokens": (
        "/generate_stream",
        {"parameters": {"decoder_input_details": True}},
    ),
}
# What only a server with other settings says.
LIMITED: dict[str, dict[str, Any]] = {
    "`best_of` != 1 is not allowed for this endpoint": {"best_of": 2, "do_sample": True},
    "grammar is not supported": {"grammar": {"type": "regex", "value": "a"}},
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors(server: Server, text: str) -> None:
    path, body = ERRORS[text]
    reply = httpx.post(server.url + path, json={"inputs": PROMPT, **body})
    is_refused(reply, text, limits(server))


def test_every_error_is_tested_or_excused() -> None:
    of_ranges = {PARAMETERS[name]["errors"][0] for name in RANGES}
    shown = of_ranges | ERRORS.keys() | LIMITED.keys()
    assert not shown & EXCUSED["errors"]
    assert shown | EXCUSED["errors"] == known("errors")


@pytest.mark.parametrize("name", sorted(PARAMETERS.keys() - {"inputs"}))
def test_types_and_defaults(server: Server, name: str) -> None:
    plain = post(server, "/generate")
    result = PARAMETERS[name]
    unlike = post(server, "/generate", **{name: {"a": 1} if name != "grammar" else 1})
    assert (unlike.status_code, unlike.json()["error_type"]) == (422, "validation")
    assert name in unlike.json()["error"]
    if result["type"].endswith("?"):
        assert post(server, "/generate", **{name: None}).json() == plain.json() or (
            name == "max_new_tokens"
        )
    same: dict[str | None, Any] = {"1.0": 1.0, "0.0": 0.0, "false": False, "[]": []}
    if result["default"] in same and (result["range"] or [None] * 4)[2] != "1":
        value = same[result["default"]]
        assert post(server, "/generate", **{name: value}).json() == plain.json()


# --- fields ---


def has_fields(table: dict[str, str], answers: list[Any]) -> dict[str, list[Any]]:
    """The answers together have the table's fields, with the values that it names."""
    found = flat_all(answers)
    for path, kind in table.items():
        if path in EXCUSED["fields"]:
            assert path not in found
            continue
        assert path in found, path
        if path in EXCUSED["values"]:
            continue
        values = [value for value in found[path] if value is not None]
        literal = re.fullmatch(r'(?:"[^"]*"\|?)+|\d', kind)
        if literal:
            assert {str(value) for value in values} <= set(kind.replace('"', "").split("|"))
    return found


def spoken_of(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and what it may be instead."""
    if "$ref" in schema:
        yield from spoken_of(schemas[schema["$ref"].rsplit("/", 1)[-1]], schemas)
    for name in ("oneOf", "anyOf", "allOf"):
        for each in schema.get(name, []):
            yield from spoken_of(each, schemas)
    yield schema


def takes(schema: dict[str, Any], path: list[str], schemas: dict[str, Any]) -> bool:
    """Whether a body of this schema may have a field."""
    if not path:
        return True
    name, listed = path[0].removesuffix("[]"), path[0].endswith("[]")
    for each in spoken_of(schema, schemas):
        inner = each.get("properties", {}).get(name)
        items = [s.get("items") for s in spoken_of(inner, schemas)] if inner else []
        nexts = [item for item in items if item] if listed else [inner] if inner else []
        if any(takes(item, path[1:], schemas) for item in nexts):
            return True
    return False


ASKED = [
    (name, path)
    for name in ("GenerateParameters", "ChatRequest", "CompletionRequest")
    for path in TABLE["schemas"][name]
]


@pytest.mark.parametrize(("schema", "path"), ASKED)
def test_fields_of_bodies(described: dict[str, Any], schema: str, path: str) -> None:
    """test_openapi.py sends each of them."""
    served = takes(described[schema], path.split("."), described)
    assert served != (path in EXCUSED["fields"])


@pytest.fixture(scope="module")
def described(server: Server) -> dict[str, Any]:
    """The schemas that the server tells."""
    api = httpx.get(server.url + "/api-doc/openapi.json").json()
    return dict(api["components"]["schemas"])


def typed(described: dict[str, Any], schema: str, answers: list[Any]) -> None:
    """Whether answers are what the description says, types included."""
    root = {"$ref": f"#/components/schemas/{schema}", "components": {"schemas": described}}
    for answer in answers:
        jsonschema.validate(answer, root)


def test_fields_of_native_answers(server: Server, described: dict[str, Any]) -> None:
    greedy = {"details": True, "decoder_input_details": True, "top_n_tokens": 2}
    best = {"best_of": 2, "do_sample": True, "return_full_text": True}
    whole = post(server, "/generate", max_new_tokens=12).json()["generated_text"]
    asked = [
        greedy,
        {**greedy, **best},
        {**greedy, "stop": [whole.split()[1]]},
        {**greedy, "max_new_tokens": 400},
    ]
    answers = [post(server, "/generate", **each).json() for each in asked]
    answers.append(post(server, "/generate").json())
    has_fields(TABLE["schemas"]["GenerateResponse"], answers)
    assert "details" not in answers[-1]
    details = [answer["details"] for answer in answers[:-1]]
    found = has_fields(TABLE["schemas"]["Details"], details)
    reasons = TABLE["schemas"]["Details"]["finish_reason"].replace('"', "").split("|")
    assert set(found["finish_reason"]) == set(reasons)
    nullable = {path for path, kind in TABLE["schemas"]["Details"].items() if kind == "null"}
    assert all(None in found[path] for path in nullable)
    assert [each["seed"] is None for each in details] == [True, False, True, True]
    typed(described, "GenerateResponse", answers)


def test_fields_of_events(server: Server, described: dict[str, Any]) -> None:
    table = TABLE["schemas"]["StreamResponse"]
    result = events(server, details=True, top_n_tokens=2)[1] + events(server)[1]
    found = has_fields(table, result)
    nullable = {path for path, kind in table.items() if kind == "null"}
    assert all(None in found[path] for path in nullable)
    typed(described, "StreamResponse", result)
    assert found.keys() - {"top_tokens[]"} <= table.keys() | {
        f"top_tokens[].{name}" for name in ("id", "text", "logprob", "special")
    }


def test_fields_of_info(server: Server, described: dict[str, Any]) -> None:
    info = httpx.get(server.url + "/info").json()
    has_fields(TABLE["schemas"]["Info"], [info])
    typed(described, "Info", [info])


def chats(server: Server, more: dict[str, Any]) -> Iterator[httpx.Response]:
    """Answers of a chat with and without tools."""
    body = {"model": "tgi", "messages": MESSAGES, "max_tokens": 64, **more}
    for beside in (
        {"logprobs": True, "top_logprobs": 1},
        {"tools": TOOLS, "tool_choice": "required"},
    ):
        yield httpx.post(server.url + "/v1/chat/completions", json={**body, **beside}, timeout=60)


def test_fields_of_openai_answers(server: Server) -> None:
    schemas = TABLE["schemas"]
    has_fields(schemas["ChatCompletion"], [reply.json() for reply in chats(server, {})])
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk for reply in chats(server, usage) for chunk in frames(reply)]
    has_fields(schemas["ChatCompletionChunk"], chunks)
    body = {"model": "tgi", "prompt": PROMPT, "max_tokens": 4}
    reply = httpx.post(server.url + "/v1/completions", json=body)
    has_fields(schemas["CompletionFinal"], [reply.json()])


# --- headers ---

NUMBERS = {"int": r"\d+", "float": r"\d+(\.\d+)?"}


def test_headers_of_an_answer(server: Server) -> None:
    headers = post(server, "/generate").headers
    for name, kind in HEADERS["whole"].items():
        assert re.fullmatch(NUMBERS.get(kind, ".+"), headers[name]), name
    assert headers["x-generated-tokens"] == "6"
    assert headers["x-compute-characters"] == str(len(PROMPT))
    parts = ("x-validation-time", "x-queue-time", "x-inference-time")
    # Each is cut to whole milliseconds.
    total = int(headers["x-total-time"])
    assert total - 3 <= sum(int(headers[name]) for name in parts) <= total


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_headers_of_openai_answers(server: Server, path: str) -> None:
    body: dict[str, object] = {"model": "tgi", "max_tokens": 5, "ignore_eos": True}
    body |= {"messages": MESSAGES} if "chat" in path else {"prompt": [PROMPT, PROMPT]}
    reply = httpx.post(server.url + path, json=body)
    found = HEADERS["whole"].keys() & reply.headers.keys()
    assert found == HEADERS["whole"].keys() - EXCUSED["headers"]
    assert int(reply.headers["x-generated-tokens"]) == reply.json()["usage"]["completion_tokens"]
    assert int(reply.headers["x-prompt-tokens"]) == reply.json()["usage"]["prompt_tokens"]


def test_headers_of_a_stream(server: Server) -> None:
    headers, _ = events(server)
    for name, value in HEADERS["stream"].items():
        assert headers[name] and value in headers[name]


# --- errors by status ---


@dataclass
class Limited(Server):
    """A server that runs one request, lets one wait, and gives neither time to end."""

    flags: list[str] = field(
        default_factory=lambda: [
            *("--max-batch-size", "1", "--max-concurrent-requests", "1", "--max-best-of", "1"),
            *("--disable-grammar-support", "--payload-limit", "3000", "-g", "0"),
        ]
    )

    @property
    def command(self) -> list[str]:
        tgi = [*super().command[:3], "tgi", "--hostname", "127.0.0.1"]
        return [*tgi, "--port", str(self.port), *self.flags]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Limited(tmp_path_factory.mktemp("limited") / "tgi.log") as running:
        yield running


@pytest.mark.parametrize("text", LIMITED)
def test_errors_of_a_limited_server(limited: Server, text: str) -> None:
    is_refused(post(limited, "/generate", **LIMITED[text]), text, limits(limited))


def row(error_type: str) -> dict[str, Any]:
    (found,) = (row for row in TABLE["statuses"] if row["error_type"] == error_type)
    return dict(found)


def is_row(reply: httpx.Response, error_type: str) -> None:
    result = row(error_type)
    assert (reply.status_code, reply.json()["error_type"]) == (result["status"], error_type)
    # docs/tgi.md: a failed generation does without these words.
    assert reply.json()["error"].startswith(result["error"].removesuffix(" Server error:"))


def test_template_errors(server: Server) -> None:
    body = {"messages": MESSAGES, "chat_template": "{{ raise_exception('no') }}"}
    is_row(httpx.post(server.url + "/chat_tokenize", json=body), "template_error")


def test_too_many_prompts(server: Server) -> None:
    most = limits(server)["max_client_batch_size"]
    body = {"model": "tgi", "prompt": [PROMPT] * (most + 1)}
    reply = httpx.post(server.url + "/v1/completions", json=body)
    result = row("batch size exceeded")
    # TGI has another status; invalid input is a 400 on OpenAI's routes.
    assert reply.status_code == 400
    assert begins(result["error"].replace("{n}", str(most)), reply.json()["error"]["message"], {})


@pytest.fixture
def overloaded(tmp_path: Path) -> Iterator[Server]:
    """A server of one test, which stops it."""
    with Limited(tmp_path / "tgi.log") as running:
        yield running


def test_overload_and_a_failed_generation(overloaded: Server) -> None:
    """Of three requests one runs and one waits. What has not ended with the server has failed."""
    replies: list[httpx.Response] = []
    threads: list[threading.Thread] = []

    def occupy() -> None:
        body = {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True}
        httpx.post(overloaded.url + "/v1/completions", json=body, timeout=60)

    def wait() -> None:
        replies.append(post(overloaded, "/generate"))

    def start(task: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=task))
        threads[-1].start()

    try:
        start(occupy)
        until(lambda: "tgi_batch_current_size 1" in metrics(overloaded))
        start(wait)
        until(lambda: "tgi_queue_size 1" in metrics(overloaded))
        is_row(post(overloaded, "/generate"), "overloaded")
        failures = re.findall(r'tgi_request_failure{err="(\w+)"}', metrics(overloaded))
        assert "overloaded" in failures
    finally:
        overloaded.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
    (reply,) = replies
    is_row(reply, "generation")


def test_every_status_is_tested_or_excused() -> None:
    shown = {"validation", "template_error", "overloaded", "generation", "batch size exceeded"}
    assert shown | EXCUSED["statuses"] == known("statuses")


BARE: dict[int, dict[str, Any]] = {
    400: {"content": "{", "headers": {"content-type": "application/json"}},
    413: {"json": {"inputs": "a" * (9 << 20)}},
    415: {"content": "{}"},
    422: {"json": {"inputs": 1}},
}


@pytest.mark.parametrize("status", TABLE["bare_statuses"])
def test_statuses_of_bodies_that_cannot_be_read(server: Server, status: int) -> None:
    if str(status) in EXCUSED["bare_statuses"]:
        assert post(server, "/generate").status_code == 200
        return
    reply = httpx.post(server.url + "/generate", **BARE[status])
    assert reply.status_code == status
    assert set(reply.json()) == {"error", "error_type"}


# --- metrics ---


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def after_requests(server: Server) -> str:
    """The metrics once requests have ended in several ways."""
    post(server, "/generate")
    assert post(server, "/generate", top_k=0).status_code == 422
    refusing = {"messages": MESSAGES, "chat_template": "{{ raise_exception('no') }}"}
    httpx.post(server.url + "/v1/chat/completions", json=refusing)
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 1900}}
    with httpx.stream("POST", server.url + "/generate_stream", json=body) as reply:
        next(reply.iter_lines())
    until(lambda: 'tgi_request_failure{err="dropped"}' in metrics(server))
    return metrics(server)


@pytest.mark.parametrize("name", sorted(TABLE["metrics"].keys() - EXCUSED["metrics"]))
def test_metrics(after_requests: str, name: str) -> None:
    result = TABLE["metrics"][name]
    assert f"# TYPE {name} {result['type']}\n" in after_requests
    suffix = "_count" if result["type"] == "histogram" else ""
    samples = re.findall(rf"^{name}{suffix}(?:{{(.*)}})? [0-9.e+-]+$", after_requests, re.M)
    assert samples
    for label, values in result["labels"].items():
        seen = {re.search(rf'{label}="(\w+)"', sample)[1] for sample in samples}  # type: ignore[index]
        # Of an overload and of a failed generation see above, and the router's own tests.
        elsewhere = {"overloaded", "generation"}
        assert seen >= set(values) - EXCUSED["labels"] - elsewhere


@pytest.mark.parametrize("name", sorted(EXCUSED["metrics"]))
def test_unsupported_metrics_are_absent(after_requests: str, name: str) -> None:
    assert f"# TYPE {name} " not in after_requests
