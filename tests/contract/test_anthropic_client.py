"""The official `anthropic` client works unmodified."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from serving import Server

GREEDY: Any = {"extra_body": {"temperature": 0}}
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the current weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASKED: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0)


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model="brook",
        max_tokens=32,
        messages=[{"role": "user", "content": "What is 12 + 30?"}],
        **GREEDY,
    )
    assert answer.type == "message"
    assert answer.stop_reason == "end_turn"
    (block,) = answer.content
    assert block.type == "text"
    assert "42" in block.text
    count = client.messages.count_tokens(
        model="brook", messages=[{"role": "user", "content": "What is 12 + 30?"}]
    )
    usage = answer.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_message_stream_adds_up_to_the_message(client: anthropic.Anthropic) -> None:
    ask: Any = {
        "model": "brook",
        "max_tokens": 24,
        "messages": [{"role": "user", "content": "Tell me a story about a fox and a boat."}],
        **GREEDY,
    }
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_tools(client: anthropic.Anthropic) -> None:
    ask: Any = {"model": "brook", "max_tokens": 60, "tools": [WEATHER], **GREEDY}
    answer = client.messages.create(messages=ASKED, **ask)
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    with client.messages.stream(messages=ASKED, **ask) as stream:
        deltas = [event for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(deltas) > 1
    assert final.stop_reason == "tool_use"
    assert final.content[0].type == "tool_use"
    assert final.content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id}
    reported = [
        *ASKED,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [{**result, "content": '{"temperature": 21, "sky": "sunny"}'}]},
    ]
    said = client.messages.create(messages=reported, **ask)
    assert said.stop_reason == "end_turn"
    assert said.content[0].type == "text"
    assert "21" in said.content[0].text


def test_a_forced_tool(client: anthropic.Anthropic) -> None:
    clock: Any = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
    ask: Any = {"model": "brook", "max_tokens": 60, "tools": [WEATHER, clock], **GREEDY}
    asked: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
    answer = client.messages.create(messages=asked, tool_choice={"type": "any"}, **ask)
    assert answer.stop_reason == "tool_use"
    assert {block.type for block in answer.content} == {"tool_use"}
    choice: Any = {"type": "tool", "name": "get_weather"}
    (call,) = client.messages.create(messages=asked, tool_choice=choice, **ask).content
    assert call.type == "tool_use"
    assert call.name == "get_weather"
    assert isinstance(call.input["city"], str)
    with client.messages.stream(messages=asked, tool_choice=choice, **ask) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    assert streamed.input == call.input


def test_a_system_prompt_and_a_prefill(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model="brook",
        max_tokens=8,
        system="You are a helpful assistant.",
        messages=[
            {"role": "user", "content": "Tell me a story."},
            {"role": "assistant", "content": "Once upon"},
        ],
        stop_sequences=["."],
        **GREEDY,
    )
    assert answer.content[0].type == "text"
    assert answer.content[0].text.startswith(" a time")


def test_errors_raise_the_clients_exceptions(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="brook", max_tokens=0, messages=ASKED)
    assert "max_tokens" in str(caught.value)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", max_tokens=5, messages=ASKED)


def test_answer_conforms_to_a_schema(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    answer = client.messages.create(
        model="brook",
        max_tokens=24,
        messages=[{"role": "user", "content": "What is 12 + 30?"}],
        output_config={"format": {"type": "json_schema", "schema": schema}},
        **GREEDY,
    )
    (block,) = answer.content
    assert block.type == "text"
    assert isinstance(json.loads(block.text)["sum"], int)
