"""LangChain's loops of several turns with tools, and its errors, by each API its models speak."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import loops
import openai
import pydantic
import pytest
from serving import Server

langchain = pytest.importorskip("langchain", reason="`make client-test` installs it")
from langchain.agents import create_agent  # noqa: E402
from langchain_anthropic import ChatAnthropic  # noqa: E402
from langchain_core.exceptions import ContextOverflowError  # noqa: E402
from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

ROUTES = ("chat", "responses", "messages")
HOW = ("invoke", "stream", "ainvoke", "astream")
TEXT = "Extract the name and the age: Ann is 7 years old."
FUNCTIONS = [loops.get_weather, loops.add]


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


def model(server: Server, route: str, max_tokens: int = 60) -> Any:
    asked: Any = {"model": "brook", "api_key": "unused", "max_retries": 0, "temperature": 0}
    if route == "messages":
        return ChatAnthropic(base_url=server.url, max_tokens=max_tokens, **asked)
    responses = route == "responses"
    url = f"{server.url}/v1"
    asked |= {"use_responses_api": responses, "stream_usage": True}
    return ChatOpenAI(base_url=url, max_tokens=max_tokens, **asked)


def ask(asked: Any, how: str, messages: list[Any]) -> Any:
    """The answer; of a stream, the sum of its chunks, which is what LangChain's users send back."""
    if how == "invoke":
        return asked.invoke(messages)
    if how == "stream":
        return joined(list(asked.stream(messages)))
    if how == "ainvoke":
        return loops.complete(asked.ainvoke(messages))

    async def chunks() -> list[Any]:
        return [chunk async for chunk in asked.astream(messages)]

    return joined(loops.complete(chunks()))


def joined(chunks: list[Any]) -> Any:
    assert len(chunks) > 2
    return reduce(add, chunks)


def results(answer: Any) -> list[ToolMessage]:
    return [
        ToolMessage(loops.run(call["name"], call["args"]), tool_call_id=call["id"])
        for call in answer.tool_calls
    ]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("route", ROUTES)
def test_a_loop_of_several_turns(server: Server, route: str, how: str) -> None:
    asked = model(server, route)
    messages: list[Any] = []
    for question, name, arguments, said in loops.TURNS:
        first = not messages
        messages.append(HumanMessage(question))
        choice = "auto" if first else name
        answer = ask(asked.bind_tools(FUNCTIONS, tool_choice=choice), how, messages)
        (call,) = answer.tool_calls
        assert call["name"] == name
        assert not first or call["args"] == arguments
        assert answer.usage_metadata["output_tokens"] > 0
        messages += [answer, *results(answer)]
        answer = ask(asked.bind_tools(FUNCTIONS), how, messages)
        assert not answer.tool_calls
        assert answer.text
        assert not first or said in answer.text
        messages.append(answer)
    assert ask(asked, how, [*messages, HumanMessage("Repeat: boat")]).text


@pytest.mark.parametrize("route", ROUTES)
def test_several_tool_results_and_a_failure_are_accepted(server: Server, route: str) -> None:
    forced = model(server, route).bind_tools(FUNCTIONS, tool_choice="any")
    messages: list[Any] = [HumanMessage("Tell me a story about a fox.")]
    for _ in range(3):
        answer = forced.invoke(messages)
        assert answer.tool_calls
        failed = [
            ToolMessage("there is none", tool_call_id=call["id"], status="error")
            for call in answer.tool_calls
        ]
        messages += [answer, *failed]
    assert len({call["id"] for message in messages[1::2] for call in message.tool_calls}) > 2


@pytest.mark.parametrize("route", ROUTES)
def test_an_agent(server: Server, route: str) -> None:
    """It calls the tools and sends what they gave, until the model answers."""
    agent = create_agent(model(server, route), FUNCTIONS, system_prompt="You are brook.")
    question, name, _, said = loops.TURNS[0]
    result = agent.invoke({"messages": [HumanMessage(question)]})["messages"]
    assert [message.type for message in result] == ["human", "ai", "tool", "ai"]
    assert result[1].tool_calls[0]["name"] == name
    assert said in result[-1].text
    again = agent.invoke({"messages": [*result, HumanMessage(loops.TURNS[1][0])]})["messages"]
    assert len(again) > 5
    assert again[-1].text


@pytest.mark.parametrize("route", ROUTES)
def test_a_streamed_agent(server: Server, route: str) -> None:
    agent = create_agent(model(server, route), FUNCTIONS)
    question, _, _, said = loops.TURNS[0]
    asked = {"messages": [HumanMessage(question)]}

    async def pieces() -> list[tuple[str, str]]:
        stream = agent.astream(asked, stream_mode="messages")
        return [(result["langgraph_node"], message.text) async for message, result in stream]

    for found in (
        [
            (result["langgraph_node"], message.text)
            for message, result in agent.stream(asked, stream_mode="messages")
        ],
        loops.complete(pieces()),
    ):
        texts = [text for node, text in found if node == "model" and text]
        assert len(texts) > 2
        assert said in "".join(texts)
        assert any(node == "tools" for node, _ in found)


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
@pytest.mark.parametrize("route", ROUTES)
def test_structured_output_within_a_conversation(server: Server, route: str, method: str) -> None:
    asked = model(server, route).with_structured_output(Person, method=method, include_raw=True)
    messages: list[Any] = [HumanMessage(TEXT)]
    for _ in range(3):
        result = asked.invoke(messages)
        assert isinstance(result["parsed"], Person), result
        answer = result["raw"]
        given = [ToolMessage("thanks", tool_call_id=call["id"]) for call in answer.tool_calls]
        messages += [answer, *given, HumanMessage(TEXT)]
    streamed = list(model(server, route).with_structured_output(Person, method=method).stream(TEXT))
    assert isinstance(streamed[-1], Person)


@pytest.mark.parametrize("route", ROUTES)
def test_a_prompt_beyond_the_context_raises_context_overflow(server: Server, route: str) -> None:
    asked, prompt = model(server, route), [HumanMessage("word " * 5000)]
    for how in HOW:
        with pytest.raises(ContextOverflowError):
            ask(asked, how, prompt)


# The model for Anthropic's API looks at the prompt alone, whose text is Anthropic's.
@pytest.mark.parametrize("route", ["chat", "responses"])
def test_prompt_and_answer_beyond_the_context_raise_context_overflow(
    server: Server, route: str
) -> None:
    with pytest.raises(ContextOverflowError):
        model(server, route, max_tokens=2000).invoke([HumanMessage("word " * 200)])
    with pytest.raises(openai.BadRequestError) as caught:
        model(server, route, max_tokens=100_000).invoke([HumanMessage("hi")])
    assert not isinstance(caught.value, ContextOverflowError), "a shorter prompt does not help"
