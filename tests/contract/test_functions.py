"""OpenAI's older `functions` and `function_call`, with the official client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from serving import Server

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
ADD: Any = {"name": "add", "description": "Add two numbers.", "parameters": SCHEMA}
ASKED: Any = {"role": "user", "content": "Add 12 and 30."}
GREEDY: Any = {"model": "brook", "temperature": 0, "max_tokens": 60}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def test_a_call_and_its_result(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=[ASKED], functions=[ADD], **GREEDY)
    (choice,) = answer.choices
    assert choice.finish_reason == "function_call"
    assert choice.message.tool_calls is None
    call = choice.message.function_call
    assert call is not None
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 12, "b": 30})
    sent: Any = choice.message.model_dump(exclude_none=True) | {"content": None}
    result: Any = {"role": "function", "name": "add", "content": "42"}
    turns = [ASKED, sent, result]
    answer = client.chat.completions.create(messages=turns, functions=[ADD], **GREEDY)
    assert "42" in (answer.choices[0].message.content or "")


def test_a_stream(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(
        messages=[ASKED], functions=[ADD], stream=True, **GREEDY
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    calls = [choice.delta.function_call for choice in choices if choice.delta.function_call]
    assert [call.name for call in calls if call.name] == ["add"]
    arguments = "".join(call.arguments or "" for call in calls)
    assert len(calls) > 2
    assert json.loads(arguments) == {"a": 12, "b": 30}
    assert choices[-1].finish_reason == "function_call"


def test_a_named_function_is_called(client: openai.OpenAI) -> None:
    hello: Any = {"role": "user", "content": "Hello!"}
    answer = client.chat.completions.create(
        messages=[hello], functions=[ADD], function_call={"name": "add"}, **GREEDY
    )
    call = answer.choices[0].message.function_call
    assert call is not None
    assert set(json.loads(call.arguments)) == {"a", "b"}
    assert answer.choices[0].finish_reason == "stop"


def test_function_call_none_calls_no_function(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=[ASKED], functions=[ADD], function_call="none", **GREEDY
    )
    assert answer.choices[0].message.function_call is None
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_an_absent_function_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="function_call"):
        client.chat.completions.create(
            messages=[ASKED], functions=[ADD], function_call={"name": "sub"}, **GREEDY
        )
