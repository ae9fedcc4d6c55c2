"""Legal uses that few think of, with the clients that people have."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import numpy as np
import openai
import pydantic
import pytest
import tritonclient.http
from serving import Server

ASKED: Any = [{"role": "user", "content": "What is 12 + 30?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}


class Sum(pydantic.BaseModel):
    sum: int


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, messages: Any = ASKED, **fields: Any) -> Any:
    fields = {"max_tokens": 40, "temperature": 0, **fields}
    return client.chat.completions.create(model="brook", messages=messages, **fields).choices[0]


def test_developer_messages_are_system_messages(client: openai.OpenAI) -> None:
    reported = [{"role": "developer", "content": "Be brief."}, *ASKED]
    system = [{"role": "system", "content": "Be brief."}, *ASKED]
    assert ask(client, reported).message.content == ask(client, system).message.content


def test_answer_with_all_client_fields_is_accepted_back(client: openai.OpenAI) -> None:
    """With all the fields that the client's own class has, most of them null."""
    first = ask(client).message
    follow: Any = {"role": "user", "content": "What is 3 + 4?"}
    for sent in (first, first.model_dump(), first.to_dict()):
        assert "7" in ask(client, [*ASKED, sent, follow]).message.content


@pytest.mark.parametrize("content", ["rain", [{"type": "text", "text": "rain"}]])
def test_tool_results_with_unusual_content(client: openai.OpenAI, content: Any) -> None:
    """A call without arguments, from a turn without content; a result in parts."""
    turns = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": content},
    ]
    assert ask(client, turns, tools=[WEATHER]).message.content


def test_pydantic_class_works_as_tool_and_response_format(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    common: Any = {"model": "brook", "messages": ASKED, "max_tokens": 40, "temperature": 0}
    answer = client.chat.completions.parse(**common, tools=tools, tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(**common, response_format=Sum) as stream:
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Sum)


def test_pydantic_class_works_as_message_output_format(server: Server) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0)
    answer = client.messages.parse(model="brook", max_tokens=40, messages=ASKED, output_format=Sum)
    assert isinstance(answer.parsed_output, Sum)


def test_several_choices_stream_concurrently(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = client.chat.completions.create(
        model="brook", messages=ASKED, max_tokens=4, n=3, stream=True, stream_options=options
    )
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert sorted(texts) == [0, 1, 2] and all(texts.values())
    assert chunk.usage is not None and chunk.usage.completion_tokens == 12


def test_sampling_parameters_as_text_with_nulls(server: Server) -> None:
    """As scripts for Triton's vLLM backend send them."""
    sampling = {"max_tokens": "5", "temperature": "0", "logprobs": None, "stop": None}
    sampling |= {"skip_special_tokens": "true", "include_stop_str_in_output": "false"}
    inputs = []
    for name, text in (("text_input", "A fox"), ("sampling_parameters", json.dumps(sampling))):
        tensor = tritonclient.http.InferInput(name, [1], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode()], dtype=object))
        inputs.append(tensor)
    triton = tritonclient.http.InferenceServerClient(server.url.removeprefix("http://"))
    (reported,) = triton.infer("brook", inputs).as_numpy("text_output")
    assert reported.startswith(b"A fox")
