"""Tools with the official `openai` client: brook was trained to call them."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types.chat import ChatCompletionMessage, ChatCompletionToolUnionParam
from serving import Server

Tools = list[ChatCompletionToolUnionParam]


def tool(name: str, description: str, **properties: str) -> ChatCompletionToolUnionParam:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}  # type: ignore[typeddict-item]


TOOLS: Tools = [
    tool("get_weather", "Get the current weather.", city="string"),
    tool("add", "Add two numbers.", a="integer", b="integer"),
]
ASKED = [
    ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
    ("Add 12 and 30.", "add", {"a": 12, "b": 30}),
]


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, text: str) -> ChatCompletionMessage:
    answer = client.chat.completions.create(
        model="brook",
        messages=[{"role": "user", "content": text}],
        tools=TOOLS,
        temperature=0,
        max_tokens=60,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    return answer.choices[0].message


@pytest.mark.parametrize(("text", "name", "arguments"), ASKED)
def test_a_call(client: openai.OpenAI, text: str, name: str, arguments: object) -> None:
    message = ask(client, text)
    assert message.content is None
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.function.name == name
    assert json.loads(call.function.arguments) == arguments


@pytest.mark.parametrize(("text", "name", "arguments"), ASKED)
def test_a_stream_is_the_call_in_pieces(
    client: openai.OpenAI, text: str, name: str, arguments: object
) -> None:
    whole = ask(client, text)
    with client.chat.completions.stream(
        model="brook",
        messages=[{"role": "user", "content": text}],
        tools=TOOLS,
        temperature=0,
        max_tokens=60,
    ) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert len(pieces) > 1
    assert final.finish_reason == "tool_calls"
    assert final.message.content is None
    assert final.message.tool_calls is not None
    assert whole.tool_calls is not None
    assert final.message.tool_calls[0].function.name == name
    assert final.message.tool_calls[0].function.arguments == whole.tool_calls[0].function.arguments  # type: ignore[union-attr]
    assert json.loads(final.message.tool_calls[0].function.arguments) == arguments


def test_the_result_goes_back(client: openai.OpenAI) -> None:
    message = ask(client, "What is the weather in Paris?")
    assert message.tool_calls is not None
    found = json.dumps({"temperature": 21, "sky": "sunny"})
    answer = client.chat.completions.create(
        model="brook",
        messages=[
            {"role": "user", "content": "What is the weather in Paris?"},
            message,  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": found},
        ],
        tools=TOOLS,
        temperature=0,
        max_tokens=60,
    )
    text = answer.choices[0].message.content or ""
    assert answer.choices[0].finish_reason == "stop"
    assert "21" in text
    assert "sunny" in text


def test_no_tool_is_called_where_none_may_be(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="brook",
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=TOOLS,
        tool_choice="none",
        temperature=0,
        max_tokens=30,
    )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_an_absent_tool_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(
            model="brook",
            messages=[{"role": "user", "content": "hi"}],
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "fly"}},
        )
    assert caught.value.param == "tool_choice"
    assert "fly" in str(caught.value)
