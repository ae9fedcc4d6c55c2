"""pydantic-ai works unmodified: its agents call tools over the OpenAI and the Anthropic routes."""

from __future__ import annotations

import asyncio
from typing import Any

import loops
import pydantic
import pytest
from serving import Server

pydantic_ai = pytest.importorskip("pydantic_ai", reason="`make client-test` installs it")
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

WEATHER = "What is the weather in Paris?"
TEXT = "Extract the name and the age: Ann is 7 years old."
ROUTES = ("chat", "responses", "messages")


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


def model(server: Server, route: str) -> Any:
    if route == "messages":
        provider = AnthropicProvider(base_url=server.url, api_key="unused")
        return AnthropicModel("brook", provider=provider)
    kind = OpenAIChatModel if route == "chat" else OpenAIResponsesModel
    return kind("brook", provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="unused"))


def agent(server: Server, route: str, tools: list[Any], output: Any = str) -> Any:
    settings = {"temperature": 0, "max_tokens": 60}
    return pydantic_ai.Agent(
        model(server, route), model_settings=settings, tools=tools, output_type=output, retries=0
    )


@pytest.mark.parametrize("route", ROUTES)
def test_a_loop_of_several_turns(server: Server, route: str) -> None:
    one = agent(server, route, [loops.get_weather, loops.add])

    async def loop() -> None:
        first = await one.run(WEATHER)
        assert "21" in first.output
        # A question, a call, its result, and what is said of it.
        assert len(first.all_messages()) == 4
        second = await one.run("Add 12 and 30.", message_history=first.all_messages())
        assert "42" in second.output
        third = await one.run("Repeat: boat", message_history=second.all_messages())
        assert third.output
        assert len(third.all_messages()) == 8

    asyncio.run(loop())


@pytest.mark.parametrize("route", ROUTES)
def test_a_streamed_loop_of_several_turns(server: Server, route: str) -> None:
    one = agent(server, route, [loops.get_weather, loops.add])

    async def said(question: str, history: Any) -> tuple[str, Any]:
        async with one.run_stream(question, message_history=history) as answer:
            stream = answer.stream_text(delta=True, debounce_by=None)
            pieces = [piece async for piece in stream]
            assert len(pieces) > 2
            return "".join(pieces), answer.all_messages()

    async def loop() -> None:
        text, history = await said(WEATHER, None)
        assert "21" in text
        assert len(history) == 4
        text, history = await said("Add 12 and 30.", history)
        assert "42" in text
        assert len(history) == 6

    asyncio.run(loop())


@pytest.mark.parametrize("route", ROUTES)
def test_answer_is_parsed_into_a_type(server: Server, route: str) -> None:
    one = agent(server, route, [], Person)

    async def loop() -> None:
        first = await one.run(TEXT)
        assert isinstance(first.output, Person)
        # The call that gave the answer, and its result, go back.
        second = await one.run(TEXT, message_history=first.all_messages())
        assert isinstance(second.output, Person)
        async with one.run_stream(TEXT, message_history=first.all_messages()) as answer:
            outputs = [output async for output in answer.stream_output(debounce_by=None)]
        assert isinstance(outputs[-1], Person)

    asyncio.run(loop())
