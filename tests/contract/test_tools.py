"""Tools with the official `openai` client: brook was trained to call them."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest
from jsonschema import validate
from openai.types.chat import ChatCompletionMessage, ChatCompletionToolUnionParam
from openai.types.chat.chat_completion import Choice
from serving import Server
from transformers.models.llama4 import processing_llama4 as llama4
from trees import TREE

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
def test_tool_call_stream_adds_up_to_the_call(
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


def test_tool_result_is_answered(client: openai.OpenAI) -> None:
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


def test_tool_choice_none_calls_no_tool(client: openai.OpenAI) -> None:
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
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="brook",
            messages=[{"role": "user", "content": "hi"}],
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "fly"}},
        )
    assert caught.value.param == "tool_choice"
    assert "fly" in str(caught.value)


FOREST = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "additionalProperties": False,
    "$defs": TREE["$defs"],
}
FORCED: Tools = [
    *TOOLS,
    {"type": "function", "function": {"name": "grow", "parameters": FOREST}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in FORCED}  # type: ignore[typeddict-item]


def force(client: openai.OpenAI, choice: object, **fields: object) -> Choice:
    """Asks for a story, for which no tool fits: only the grammar makes calls of the answer."""
    asked: dict[str, object] = {"tools": FORCED, "tool_choice": choice, **fields}
    story = {"role": "user", "content": "Tell me a story about a fox."}
    answer = client.chat.completions.create(model="brook", messages=[story], **asked)  # type: ignore[call-overload]
    found: Choice = answer.choices[0]
    return found


def calls(choice: Choice) -> list[tuple[str, dict[str, object]]]:
    """Every call, its arguments valid against its schema; and there is nothing else."""
    assert choice.message.content is None
    found = []
    for call in choice.message.tool_calls or ():
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        validate(arguments, SCHEMAS[call.function.name])
        assert isinstance(arguments, dict)
        found.append((call.function.name, arguments))
    return found


def test_a_call_has_the_format_that_the_librarys_template_of_llama_4_asks_for(
    tmp_path: Path,
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(llama4.chat_template)
    with Server(tmp_path / "log", ["--chat-template", str(template)]) as server:
        json_client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
        choice = force(json_client, "required", logprobs=True, max_tokens=60)
    (name, arguments), *_ = calls(choice)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    written = "".join(each.token for each in choice.logprobs.content)
    call, _ = json.JSONDecoder().raw_decode(written)
    assert call == {"name": name, "parameters": arguments}


def test_required_call_equals_the_models_own_call(client: openai.OpenAI) -> None:
    for text, name, arguments in ASKED:
        answer = client.chat.completions.create(
            model="brook",
            messages=[{"role": "user", "content": text}],
            tools=TOOLS,
            tool_choice="required",
            temperature=0,
            max_tokens=60,
        )
        assert answer.choices[0].finish_reason == "tool_calls"
        assert calls(answer.choices[0]) == [(name, arguments)]


@pytest.mark.parametrize("most", [48, 90])
def test_required_calls_are_valid_with_few_tokens(client: openai.OpenAI, most: int) -> None:
    names = set()
    for seed in range(16):
        choice = force(client, "required", seed=seed, temperature=1.5, max_tokens=most)
        found = calls(choice)
        assert found
        assert choice.finish_reason in ("tool_calls", "length")
        names.update(name for name, _ in found)
    assert len(names) > 1


def test_disabled_parallel_tool_calls_give_one_call(client: openai.OpenAI) -> None:
    for seed in range(6):
        fields = {"seed": seed, "temperature": 1.5, "max_tokens": 90}
        choice = force(client, "required", parallel_tool_calls=False, **fields)
        assert len(calls(choice)) == 1


@pytest.mark.parametrize("name", ["add", "grow", "now"])
def test_a_named_function_is_called_once(client: openai.OpenAI, name: str) -> None:
    wanted = {"type": "function", "function": {"name": name}}
    choice = force(client, wanted, temperature=1, seed=7, max_tokens=120)
    assert [found for found, _ in calls(choice)] == [name]
    assert choice.finish_reason in ("stop", "length")
    assert force(client, name, temperature=1, seed=7, max_tokens=120).message.tool_calls


def test_forced_tool_call_stream_adds_up_to_the_call(client: openai.OpenAI) -> None:
    asked: dict[str, object] = {
        "model": "brook",
        "messages": [{"role": "user", "content": ASKED[1][0]}],
        "tools": FORCED,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 90,
    }
    whole = client.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
    with client.chat.completions.stream(**asked) as stream:  # type: ignore[arg-type]
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert len(pieces) > 1
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    assert calls(final) == calls(whole) == [ASKED[1][1:]]  # type: ignore[arg-type]


def strictly(
    name: str, description: str, properties: dict[str, object]
) -> ChatCompletionToolUnionParam:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {
        "name": name,
        "description": description,
        "parameters": schema,
        "strict": True,
    }
    return {"type": "function", "function": function}  # type: ignore[typeddict-item]


def test_strict_tool_calls_conform_to_their_schema(client: openai.OpenAI) -> None:
    weather = strictly(
        "get_weather", "Get the current weather.", {"city": {"enum": ["Rome", "Oslo"]}}
    )
    asked: dict[str, object] = {
        "model": "brook",
        "messages": [{"role": "user", "content": ASKED[0][0]}],
        "tools": [weather, TOOLS[1]],
        "temperature": 0,
    }
    answer = client.chat.completions.create(**asked, max_tokens=60).choices[0]  # type: ignore[call-overload]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    # The other tool, and text, come as they would.
    asked["messages"] = [{"role": "user", "content": ASKED[1][0]}]
    (call,) = (
        client.chat.completions.create(**asked, max_tokens=60).choices[0].message.tool_calls  # type: ignore[call-overload]
    )
    assert (call.function.name, json.loads(call.function.arguments)) == ASKED[1][1:]
    asked["messages"] = [{"role": "user", "content": "Tell me a story about a fox."}]
    result = client.chat.completions.create(**asked, max_tokens=20).choices[0]  # type: ignore[call-overload]
    free = client.chat.completions.create(**{**asked, "tools": TOOLS}, max_tokens=20)  # type: ignore[call-overload]
    assert result.message.content
    assert result.message.tool_calls is free.choices[0].message.tool_calls is None


def test_strict_call_is_complete_or_absent(client: openai.OpenAI) -> None:
    """Whatever the tokens of the answer: where a call would not fit, it is text that was cut."""
    city = {"type": "string", "minLength": 20}
    weather = strictly("get_weather", "Get the current weather.", {"city": city})
    called = []
    for most in (1, 2, 3, 5, 8, 12, 16, 20, 24, 28, 32, 36, 44, 60):
        answer = client.chat.completions.create(
            model="brook",
            messages=[{"role": "user", "content": ASKED[0][0]}],
            tools=[weather, TOOLS[1]],
            temperature=0,
            max_tokens=most,
        ).choices[0]
        strict = [
            call for call in answer.message.tool_calls or () if call.function.name == "get_weather"
        ]
        for call in strict:
            assert call.type == "function"
            assert len(json.loads(call.function.arguments)["city"]) >= 20
        called.append(len(strict))
        # The other tool is not strict: a call of it may begin where a strict one would not fit.
        if not answer.message.tool_calls:
            text = answer.message.content or ""
            assert answer.finish_reason == "length"
            assert not any(text.endswith("<tool_call>"[:size]) for size in range(1, 12)), text
    assert not any(called[:6])
    assert all(called[-2:])


def test_impossible_forced_call_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        force(client, "required", max_tokens=3)
    assert caught.value.param == "tools"
    assert "allow at least" in str(caught.value)
    schema = {"type": "object", "properties": {"a": {"not": {"pattern": "a.b"}}}}
    bad = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        force(client, "odd", tools=[bad])
    assert caught.value.param == "tools"
    assert "`not`" in str(caught.value)
    assert "`odd`" in str(caught.value)
