"""Conversations of several turns with tools, by both official `anthropic` clients.

What was received is sent back as it came: blocks of text, of calls and of thoughts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import loops
import pytest
import reasoning_model
from loops import how
from serving import Server

__all__ = ["how"]

GREEDY: Any = {"model": "brook", "max_tokens": 60, "extra_body": {"temperature": 0}}


def result(call: Any, text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call.id, "content": text, **fields}


def say(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Asking:
    """A client of either kind, whose answers come whole or as a stream."""

    def __init__(self, url: str, asynchronous: bool, stream: bool) -> None:
        self.asynchronous, self.stream = asynchronous, stream
        options: Any = {"base_url": url, "api_key": "unused", "max_retries": 0}
        self.sync = anthropic.Anthropic(**options)
        self.options = options

    def __call__(self, messages: list[Any], **fields: Any) -> Any:
        asked = {**GREEDY, "messages": messages, **fields}
        if self.asynchronous:
            return asyncio.run(self.later(asked))
        if not self.stream:
            return self.sync.messages.create(**asked)
        with self.sync.messages.stream(**asked) as stream:
            events = list(stream)
            return self.streamed(events, stream.get_final_message())

    async def later(self, asked: dict[str, Any]) -> Any:
        async with anthropic.AsyncAnthropic(**self.options) as client:
            if not self.stream:
                return await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                events = [event async for event in stream]
                return self.streamed(events, await stream.get_final_message())

    @staticmethod
    def streamed(events: list[Any], message: Any) -> Any:
        """The message, which came in pieces: its calls and its text are those of the events."""
        pieces: dict[int, str] = {}
        names = {"text_delta": "text", "input_json_delta": "partial_json"}
        names["thinking_delta"] = "thinking"
        for event in events:
            if event.type == "content_block_delta" and event.delta.type in names:
                piece = getattr(event.delta, names[event.delta.type])
                pieces[event.index] = pieces.get(event.index, "") + piece
        for place, block in enumerate(message.content):
            if block.type == "tool_use":
                assert json.loads(pieces[place]) == block.input
            else:
                assert pieces[place] == getattr(block, block.type)
        return message


def strictly(message: Any) -> Any:
    """The message, whose fields have the types that the client declares."""
    type(message).model_validate(message.model_dump(warnings="error"), strict=True)
    return message


def test_a_loop_of_several_turns(server: Server, how: dict[str, bool]) -> None:
    ask = Asking(server.url, **how)
    messages: list[Any] = []
    for question, name, arguments, said in loops.TURNS:
        first = not messages
        choice = {"type": "auto"} if first else {"type": "tool", "name": name}
        messages.append(say(question))
        answer = strictly(ask(messages, tools=loops.TOOLS, tool_choice=choice))
        assert answer.stop_reason == "tool_use"
        (call,) = answer.content
        assert call.name == name
        assert not first or call.input == arguments
        messages.append({"role": "assistant", "content": answer.content})
        messages.append(say([result(call, loops.run(call.name, call.input))]))
        answer = strictly(ask(messages, tools=loops.TOOLS))
        assert answer.stop_reason == "end_turn"
        assert not first or said in answer.content[0].text
        messages.append({"role": "assistant", "content": answer.content})
    messages.append(say("Repeat: boat"))
    last = strictly(ask(messages, tools=loops.TOOLS, tool_choice={"type": "none"}))
    assert last.content[0].type == "text"


def test_several_tool_results_and_a_failure_are_accepted(
    server: Server, how: dict[str, bool]
) -> None:
    """With results as lists of blocks, marks for a cache, and a text beside them."""
    ask = Asking(server.url, **how)
    mark = {"cache_control": {"type": "ephemeral"}}
    messages: list[Any] = [say([{"type": "text", "text": "Tell me a story about a fox.", **mark}])]
    forced = {"tools": [{**tool, **mark} for tool in loops.TOOLS], "tool_choice": {"type": "any"}}
    for _ in range(3):
        answer = strictly(ask(messages, max_tokens=90, **forced))
        calls = [block for block in answer.content if block.type == "tool_use"]
        assert calls
        assert len({call.id for call in calls}) == len(calls)
        messages.append({"role": "assistant", "content": [*answer.content]})
        blocks: list[Any] = [result(call, "there is none", is_error=True) for call in calls]
        blocks[0]["content"] = [{"type": "text", "text": "sunny", **mark}]
        messages.append(say([*blocks, {"type": "text", "text": "And now?"}]))
    # As JSON, as the client's models are stored.
    stored = json.loads(json.dumps(messages, default=lambda block: block.model_dump()))
    assert strictly(ask(stored, tools=loops.TOOLS)).content


@pytest.fixture(scope="module")
def reasoning_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with reasoning_model.server(tmp_path_factory.mktemp("thinking")) as running:
        yield running


def test_reasoning_is_accepted_in_the_next_request(
    reasoning_server: Server, how: dict[str, bool]
) -> None:
    ask = Asking(reasoning_server.url, **how)
    fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 70}
    messages: list[Any] = [say("What is the weather in Paris?")]
    for _ in range(3):
        answer = strictly(ask(messages, tools=loops.TOOLS, tool_choice={"type": "any"}, **fields))
        thought, *calls = answer.content
        assert thought.type == "thinking"
        assert isinstance(thought.signature, str)
        assert thought.thinking
        assert calls and {call.type for call in calls} == {"tool_use"}
        messages.append({"role": "assistant", "content": answer.content})
        messages.append(say([result(call, loops.run(call.name, call.input)) for call in calls]))
    reported = ask.sync.messages.count_tokens(model="brook", messages=messages, tools=loops.TOOLS)
    assert reported.input_tokens > 200


def by_runner(url: str, stream: bool, ask: str) -> list[Any]:
    """The client's own loop: it calls the functions, and asks until there is nothing to call."""
    client = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)
    tools = [anthropic.beta_tool(tool) for tool in (loops.get_weather, loops.add)]
    runner = client.beta.messages.tool_runner(
        messages=[say(ask)], tools=tools, stream=stream, **GREEDY
    )
    return [each.get_final_message() if stream else each for each in runner]


async def by_runner_later(url: str, stream: bool, ask: str) -> list[Any]:
    client = anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0)

    async def get_weather(city: str) -> str:
        """Get the current weather."""
        return loops.get_weather(city)

    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return loops.add(a, b)

    tools = [anthropic.beta_async_tool(tool) for tool in (get_weather, add)]
    async with client:
        runner = client.beta.messages.tool_runner(
            messages=[say(ask)], tools=tools, stream=stream, **GREEDY
        )
        return [await each.get_final_message() if stream else each async for each in runner]


def test_tool_runner_of_the_client(server: Server, how: dict[str, bool]) -> None:
    """It asks for a thread of messages first, which is refused in the words that it understands."""
    question, name, arguments, said = loops.TURNS[0]
    if how["asynchronous"]:
        seen = asyncio.run(by_runner_later(server.url, how["stream"], question))
    else:
        seen = by_runner(server.url, how["stream"], question)
    first, last = seen
    (call,) = first.content
    assert (call.name, call.input) == (name, arguments)
    assert said in last.content[0].text
