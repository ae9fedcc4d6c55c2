"""The official `openai` client's Responses API works unmodified."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from serving import Server

ASK: Any = {"model": "brook", "temperature": 0}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASKED = "What is the weather in Paris?"
STORY = "Tell me a story about a fox and a boat."


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def comparable(response: Any) -> dict[str, Any]:
    """A response without what differs between two of them."""
    fields: dict[str, Any] = response.model_dump(exclude={"id", "created_at", "completed_at"})
    for item in fields["output"]:
        item.pop("id")
        item.pop("call_id", None)
    if usage := fields["usage"]:
        usage.pop("input_tokens_details")  # the second prompt is in the cache
    return fields


def test_a_response(client: openai.OpenAI) -> None:
    answer = client.responses.create(input="What is 12 + 30?", max_output_tokens=32, **ASK)
    assert answer.id.startswith("resp_")
    assert answer.status == "completed"
    assert "42" in answer.output_text
    (item,) = answer.output
    assert item.type == "message"
    assert answer.usage is not None
    count = client.responses.input_tokens.count(model="brook", input="What is 12 + 30?")
    assert answer.usage.input_tokens == count.input_tokens > 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.input_tokens_details.cached_tokens < count.input_tokens
    chat = client.chat.completions.create(
        messages=[{"role": "user", "content": "What is 12 + 30?"}], max_tokens=32, **ASK
    )
    assert answer.output_text == chat.choices[0].message.content


def test_answers_validate_against_the_clients_types(client: openai.OpenAI) -> None:
    """The client itself builds its objects without a check."""
    reported = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    asked: Any = ({"input": "Hi!", **reported}, {"input": ASKED, "tools": [WEATHER]})
    for fields in asked:
        answer = client.responses.create(max_output_tokens=40, **ASK, **fields)
        events = list(client.responses.create(max_output_tokens=40, stream=True, **ASK, **fields))
        for made in (answer, *events):
            type(made).model_validate(made.model_dump(by_alias=True), strict=True)


def test_response_stream_adds_up_to_the_response(client: openai.OpenAI) -> None:
    ask: Any = {"input": STORY, "instructions": "You are a helpful assistant.", **ASK}
    whole = client.responses.create(max_output_tokens=24, **ask)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(max_output_tokens=24, stream=True, **ask))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert comparable(last.response) == comparable(whole)


def test_the_stream_helper(client: openai.OpenAI) -> None:
    ask: Any = {"input": "What is 12 + 30?", **ASK}
    whole = client.responses.create(**ask)
    with client.responses.stream(**ask) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage == whole.usage


def test_an_asynchronous_client(server: Server) -> None:
    async def ask() -> str:
        url = f"{server.url}/v1"
        client = openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
        asked = client.responses.stream(input="What is 12 + 30?", **ASK)
        async with client, asked as stream:
            return (await stream.get_final_response()).output_text

    assert "42" in asyncio.run(ask())


def test_tools(client: openai.OpenAI) -> None:
    ask: Any = {"tools": [WEATHER], "max_output_tokens": 60, **ASK}
    answer = client.responses.create(input=ASKED, **ask)
    (call,) = answer.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    with client.responses.stream(input=ASKED, **ask) as stream:
        kinds = [event.type for event in stream]
        (streamed,) = stream.get_final_response().output
    assert kinds.count("response.function_call_arguments.delta") > 1
    assert streamed.type == "function_call"
    assert streamed.parsed_arguments == {"city": "Paris"}
    result = {"temperature": 21, "sky": "sunny"}
    for made in (call, streamed):
        turns: Any = [{"role": "user", "content": ASKED}, made]
        output: Any = {"type": "function_call_output", "call_id": made.call_id}
        turns.append({**output, "output": json.dumps(result)})
        said = client.responses.create(input=turns, **ask)
        assert said.status == "completed"
        assert "21" in said.output_text


def test_a_forced_tool(client: openai.OpenAI) -> None:
    ask: Any = {"input": STORY, "tools": [WEATHER], "max_output_tokens": 60, **ASK}
    chosen: Any = ("required", {"type": "function", "name": "get_weather"})
    for choice in chosen:
        answer = client.responses.create(tool_choice=choice, **ask)
        assert {item.type for item in answer.output} == {"function_call"}
        for call in answer.output:
            assert call.type == "function_call"
            assert isinstance(json.loads(call.arguments)["city"], str)
    none = client.responses.create(tool_choice="none", **ask)
    assert {item.type for item in none.output} == {"message"}


def test_output_items_are_accepted_as_input(client: openai.OpenAI) -> None:
    turns: Any = [{"role": "user", "content": "What is 12 + 30?"}]
    first = client.responses.create(input=turns, **ASK)
    question = {"role": "user", "content": [{"type": "input_text", "text": "What is 5 + 4?"}]}
    second = client.responses.create(input=[*turns, *first.output, question], **ASK)
    assert "9" in second.output_text
    chat = client.chat.completions.create(
        messages=[
            turns[0],
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "What is 5 + 4?"},
        ],
        **ASK,
    )
    assert second.output_text == chat.choices[0].message.content
    assert second.usage is not None
    assert chat.usage is not None
    assert second.usage.input_tokens == chat.usage.prompt_tokens


def test_incomplete_response_can_be_continued(client: openai.OpenAI) -> None:
    ask: Any = [{"role": "user", "content": STORY}]
    whole = client.responses.create(input=ask, max_output_tokens=24, **ASK)
    begun = client.responses.create(input=ask, max_output_tokens=12, **ASK)
    rest = client.responses.create(input=[*ask, *begun.output], max_output_tokens=12, **ASK)
    assert begun.output_text + rest.output_text == whole.output_text


def test_answer_is_parsed_into_an_object(client: openai.OpenAI) -> None:
    asked = "Extract the name and the age: Ann is 7 years old."
    ask: Any = {"input": asked, "text_format": Person, "max_output_tokens": 64, **ASK}
    answer = client.responses.parse(**ask)
    assert isinstance(answer.output_parsed, Person)
    with client.responses.stream(**ask) as stream:
        done = [event for event in stream if event.type == "response.output_text.done"]
    assert done[0].parsed == answer.output_parsed
    again: Any = [{"role": "user", "content": asked}, *answer.output]
    again.append({"role": "user", "content": "What is 12 + 30?"})
    assert client.responses.create(input=again, max_output_tokens=32, **ASK).output_text


def test_logprobs(client: openai.OpenAI) -> None:
    ask: Any = {"input": "What is 12 + 30?", "top_logprobs": 2, **ASK}
    ask["include"] = ["message.output_text.logprobs"]
    (item,) = client.responses.create(**ask).output
    assert item.type == "message"
    part = item.content[0]
    assert part.type == "output_text"
    assert part.logprobs
    assert "".join(token.token for token in part.logprobs) == part.text
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)


def test_vllm_extensions_are_accepted(client: openai.OpenAI) -> None:
    extra = {"guided_regex": "(yes|no)", "seed": 7, "top_k": 5, "repetition_penalty": 1.1}
    answer = client.responses.create(input="Is it so?", model="brook", extra_body=extra)
    assert answer.output_text in ("yes", "no")
    stopped = client.responses.create(input=STORY, extra_body={"stop": ["."]}, **ASK)
    assert stopped.status == "completed"
    assert "." not in stopped.output_text


def test_metadata_is_echoed(client: openai.OpenAI) -> None:
    answer = client.responses.create(input="Hi!", metadata={"ticket": "42"}, store=False, **ASK)
    assert answer.metadata == {"ticket": "42"}
    assert answer.to_dict()["store"] is False


@pytest.mark.parametrize("stream", [False, True])
def test_stored_response_continues_a_conversation(client: openai.OpenAI, stream: bool) -> None:
    def create(**fields: Any) -> Any:
        if not stream:
            return client.responses.create(**fields, **ASK)
        events = list(client.responses.create(stream=True, **fields, **ASK))
        assert events[-1].type == "response.completed"
        return events[-1].response

    first = create(input="What is 12 + 30?", max_output_tokens=32)
    assert first.to_dict()["store"] is True
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = create(input="What is 5 + 4?", previous_response_id=first.id, max_output_tokens=32)
    assert second.previous_response_id == first.id
    assert "9" in second.output_text
    assert second.usage.input_tokens > first.usage.input_tokens
    items = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    client.responses.delete(first.id)
    for ask in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            ask(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create(input="Hi!", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


def test_errors_raise_the_clients_exceptions(client: openai.OpenAI) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, ""),
    ]
    for fields, param in refused:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(**{"input": "Hi!", **ASK, **fields}, stream=stream)
            assert caught.value.param == (param or "input[0].content[0].type")
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-5", input="Hi!")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
