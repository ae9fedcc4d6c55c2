"""A model that thinks first, and a server that renders no templates of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import reasoning_model
from jsonschema import validate

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    options = ["--no-request-chat-template"]
    with reasoning_model.server(tmp_path_factory.mktemp("thinking"), *options) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    story = {"role": "user", "content": "Tell me a story about a fox."}
    asked: Any = {"model": "brook", "messages": [story], "temperature": 0, **fields}
    return client.chat.completions.create(**asked).choices[0]


def test_forced_call_follows_the_reasoning(client: openai.OpenAI) -> None:
    for choice in ("required", "get_weather"):
        answer = ask(client, tools=[TOOL], tool_choice=choice, max_tokens=70)
        assert len(answer.message.reasoning_content) > 40
        (call,) = answer.message.tool_calls
        validate(json.loads(call.function.arguments), CITY)
        assert answer.message.content is None
    closed = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = ask(client, tools=[TOOL], tool_choice="required", max_tokens=70, extra_body=closed)
    assert answer.message.tool_calls


def test_document_follows_the_reasoning(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    for tools in ({}, {"tools": [TOOL]}):
        answer = ask(client, response_format=form, max_tokens=60, **tools)
        assert len(answer.message.reasoning_content) > 40
        if not answer.message.tool_calls:
            validate(json.loads(answer.message.content), CITY)
    with pytest.raises(openai.BadRequestError, match="allow at least"):
        ask(client, response_format=form, max_tokens=8)


def test_responses_return_reasoning_as_an_item(client: openai.OpenAI) -> None:
    story: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
    form = {"format": {"type": "json_schema", "name": "x", "schema": CITY}}
    ask: Any = {"model": "brook", "temperature": 0, "text": form, "max_output_tokens": 60}
    whole = client.responses.create(input=story, **ask)
    thought, said = whole.output
    assert thought.type == "reasoning"
    assert thought.content
    assert len(thought.content[0].text) > 40
    assert said.type == "message"
    validate(json.loads(whole.output_text), CITY)
    assert whole.usage is not None
    tokens = whole.usage.output_tokens_details.reasoning_tokens
    assert 0 < tokens < whole.usage.output_tokens
    kinds = []
    text = ""
    for event in client.responses.create(input=story, stream=True, **ask):
        type(event).model_validate(event.model_dump(by_alias=True), strict=True)
        kinds.append(event.type)
        text += event.delta if event.type == "response.reasoning_text.delta" else ""
    assert text == thought.content[0].text
    assert kinds.count("response.reasoning_text.done") == 1
    again = client.responses.create(input=[*story, *whole.output, *story], **ask)
    assert again.output_text


def test_harmony_answers_follow_reasoning_and_a_header(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    with reasoning_model.harmony_server(tmp_path) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
        answer = ask(client, response_format=form, max_tokens=90)
        validate(json.loads(answer.message.content), CITY)
        whole = len(answer.message.reasoning_content)
        assert whole > 20
        short = {"thinking_token_budget": 4}
        answer = ask(client, response_format=form, max_tokens=90, extra_body=short)
        validate(json.loads(answer.message.content), CITY)
        assert 0 < len(answer.message.reasoning_content) < whole
        answer = ask(client, tools=[TOOL], tool_choice="required", max_tokens=90)
        (call,) = answer.message.tool_calls
        validate(json.loads(call.function.arguments), CITY)
        assert answer.message.reasoning_content
        assert answer.message.content is None
        with pytest.raises(openai.BadRequestError, match="allow at least"):
            ask(client, response_format=form, max_tokens=12)


def test_request_templates_can_be_disabled(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, max_tokens=4, extra_body={"chat_template": "{{ messages[0].content }}"})
    assert caught.value.param == "chat_template"
    assert "not offered" in str(caught.value)


def test_reasoning_is_closed_after_its_tokens(client: openai.OpenAI) -> None:
    def thought(budget: int) -> Any:
        body = {"thinking_token_budget": budget, "logprobs": True, "ignore_eos": True}
        return ask(client, max_tokens=40, extra_body=body)

    for budget in (0, 4):
        choice = thought(budget)
        tokens = [entry.token for entry in choice.logprobs.content]
        assert "".join(tokens[budget:]).startswith("</think>")
        assert bool(getattr(choice.message, "reasoning_content", None)) == bool(budget)
        assert choice.message.content
    assert len(thought(-1).message.reasoning_content) > len(thought(4).message.reasoning_content)


def test_streamed_reasoning_is_closed_after_its_tokens(client: openai.OpenAI) -> None:
    story: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
    fields: Any = {"model": "brook", "messages": story, "temperature": 0, "max_tokens": 40}
    body = {"thinking_token_budget": 4, "ignore_eos": True}
    whole = client.chat.completions.create(**fields, extra_body=body).choices[0].message
    chunks = client.chat.completions.create(**fields, stream=True, extra_body=body)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    content = "".join(delta.content or "" for delta in deltas)
    assert (reasoning, content) == (whole.reasoning_content, whole.content)
    assert reasoning and content


def test_budget_without_a_conversation_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no reasoning format"):
        client.completions.create(
            model="brook", prompt="A", extra_body={"thinking_token_budget": 3}
        )
