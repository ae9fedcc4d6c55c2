"""What users of vLLM write with the `openai` client.

Grammars and sampling in `extra_body`, loops of several turns with tools, thoughts that go back, and
vLLM's routes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import loops
import openai
import pytest
import reasoning_model
from loops import how
from serving import Server

__all__ = ["how"]

STORY: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
PERSON = loops.schema(name="string", age="integer")
COLOUR = 'start: "red" | "green"'


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def one_of(*texts: str) -> Callable[[str], bool]:
    return lambda text: text in texts


def spells(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


GRAMMARS: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    ({"structured_outputs": {"json": PERSON}}, is_person),
    ({"structured_outputs": {"json": json.dumps(PERSON)}}, is_person),
    ({"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"}}, spells("[0-9]{3}-[a-f]{2}")),
    ({"structured_outputs": {"choice": ["Oslo", "Rome"]}}, one_of("Oslo", "Rome")),
    ({"structured_outputs": {"grammar": COLOUR}}, one_of("red", "green")),
    (
        {"structured_outputs": {"json_object": True}},
        lambda text: isinstance(json.loads(text), dict),
    ),
    ({"guided_json": PERSON}, is_person),
    ({"guided_regex": "[0-9]{3}"}, spells("[0-9]{3}")),
    ({"guided_choice": ["Oslo", "Rome"]}, one_of("Oslo", "Rome")),
    ({"guided_grammar": COLOUR, "guided_decoding_backend": "auto"}, one_of("red", "green")),
]
SAMPLING = {
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "min_tokens": 4,
    "stop_token_ids": [5],
    "allowed_token_ids": None,
    "bad_words": ["wolf"],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
    "cache_salt": "ours",
    "request_id": "one",
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


@pytest.mark.parametrize("grammar", range(len(GRAMMARS)))
def test_structured_outputs(client: openai.OpenAI, grammar: int) -> None:
    """In chats and completions, whole and streamed: the same text, and it is what was asked for."""
    fields, holds = GRAMMARS[grammar]
    asked: Any = {"model": "brook", "temperature": 0, "max_tokens": 60, "extra_body": fields}
    of_chat = client.chat.completions
    whole = of_chat.create(messages=STORY, **asked).choices[0].message.content
    assert holds(whole), whole
    chunks = of_chat.create(messages=STORY, stream=True, **asked)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    asked["prompt"] = "Tell me of a fox:"
    text = client.completions.create(**asked).choices[0].text
    assert holds(text), text
    chunks = client.completions.create(stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text


def test_sampling_parameters_and_token_ids(client: openai.OpenAI) -> None:
    """All at once: what a stream tells is what the answer tells."""
    kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
    asked: Any = {"model": "brook", "messages": STORY, "max_tokens": 12, "seed": 3}
    answer = client.chat.completions.create(
        **asked, extra_body={**SAMPLING, **kwargs, "prompt_logprobs": 2}
    )
    ids = answer.prompt_token_ids
    choice = answer.choices[0]
    assert len(answer.prompt_logprobs) == len(ids) == answer.usage.prompt_tokens
    assert answer.prompt_logprobs[0] is None
    for token, result in zip(ids[1:], answer.prompt_logprobs[1:], strict=True):
        assert {"logprob", "rank", "decoded_token"} <= result[str(token)].keys()
        assert 2 <= len(result) <= 3
    usage = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(
            **asked, stream=True, stream_options=usage, extra_body={**SAMPLING, **kwargs}
        )
    )
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(each.delta.content or "" for each in said) == choice.message.content
    assert [token for each in said for token in each.token_ids or ()] == choice.token_ids
    assert all(chunk.usage for chunk in chunks)
    # The prompt as ids goes on as the conversation does.
    asked = {"model": "brook", "prompt": ids, "max_tokens": 12, "seed": 3}
    text = client.completions.create(**asked, extra_body=SAMPLING).choices[0]
    assert (text.text, text.token_ids) == (choice.message.content, choice.token_ids)


class Asking:
    """An `openai` client of either kind, whose answers come whole or as a stream."""

    def __init__(self, url: str, asynchronous: bool, stream: bool) -> None:
        self.asynchronous, self.stream = asynchronous, stream
        self.options: Any = {"base_url": f"{url}/v1", "api_key": "unused", "max_retries": 0}

    def __call__(self, messages: list[Any], **fields: Any) -> dict[str, Any]:
        """The assistant's message, as it goes back."""
        asked = {"model": "brook", "temperature": 0, "max_tokens": 70, **fields}
        asked |= {"messages": messages, "stream": self.stream}
        if self.asynchronous:
            return asyncio.run(self.later(asked))
        result = openai.OpenAI(**self.options).chat.completions.create(**asked)
        return assembled(list(result)) if self.stream else result.choices[0].message.model_dump()

    async def later(self, asked: dict[str, Any]) -> dict[str, Any]:
        async with openai.AsyncOpenAI(**self.options) as client:
            result = await client.chat.completions.create(**asked)
            if not self.stream:
                return result.choices[0].message.model_dump()
            return assembled([chunk async for chunk in result])


def assembled(chunks: list[Any]) -> dict[str, Any]:
    """A message of its deltas, as vLLM's examples put it together."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "reasoning": "",
        "tool_calls": [],
    }
    calls = message["tool_calls"]
    for delta in (chunk.choices[0].delta for chunk in chunks if chunk.choices):
        message["content"] += delta.content or ""
        message["reasoning"] += getattr(delta, "reasoning", None) or ""
        for piece in delta.tool_calls or ():
            if piece.index == len(calls):
                calls.append(
                    {"id": piece.id, "type": piece.type, "function": {"name": "", "arguments": ""}}
                )
            function = calls[piece.index]["function"]
            function["name"] += piece.function.name or ""
            function["arguments"] += piece.function.arguments or ""
    if not calls:
        del message["tool_calls"]
    return message


def results(message: dict[str, Any]) -> list[dict[str, Any]]:
    """What the called tools answer."""
    found = []
    for call in message["tool_calls"]:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, loops.PARAMETERS[name])
        answer = {"role": "tool", "tool_call_id": call["id"], "name": name}
        found.append({**answer, "content": loops.run(name, arguments)})
    return found


def test_a_loop_of_several_turns(server: Server, how: dict[str, bool]) -> None:
    ask = Asking(server.url, **how)
    messages: list[Any] = []
    for question, name, arguments, said in loops.TURNS:
        first = not messages
        choice: Any = "auto" if first else {"type": "function", "function": {"name": name}}
        messages.append({"role": "user", "content": question})
        message = ask(messages, tools=loops.FUNCTIONS, tool_choice=choice)
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == name
        assert not first or json.loads(call["function"]["arguments"]) == arguments
        messages += [message, *results(message)]
        message = ask(messages, tools=loops.FUNCTIONS)
        assert not message.get("tool_calls")
        assert not first or said in message["content"]
        messages.append(message)
    messages.append({"role": "user", "content": "Repeat: boat"})
    assert ask(messages, tools=loops.FUNCTIONS, tool_choice="none")["content"]


@pytest.fixture(scope="module")
def reasoning_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with reasoning_model.server(tmp_path_factory.mktemp("thinking")) as running:
        yield running


def test_reasoning_is_accepted_in_the_next_request(
    reasoning_server: Server, how: dict[str, bool]
) -> None:
    ask = Asking(reasoning_server.url, **how)
    messages: list[Any] = [{"role": "user", "content": "Tell me a story about a fox."}]
    for _ in range(3):
        message = ask(messages, tools=loops.FUNCTIONS, tool_choice="required")
        assert message["reasoning"]
        assert not message["content"]
        messages += [message, *results(message)]
    closed = {"chat_template_kwargs": {"enable_thinking": False}}
    last = ask(messages, tools=loops.FUNCTIONS, tool_choice="none", extra_body=closed)
    assert last["content"]
    assert not last.get("reasoning")


def test_tokenize_texts_and_conversations(server: Server, client: openai.OpenAI) -> None:
    def post(path: str, **body: Any) -> Any:
        reply = httpx.post(f"{server.url}{path}", json={"model": "brook", **body})
        assert reply.status_code == 200, reply.text
        return reply.json()

    text = "Once upon a time: é ✓"
    result = post("/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True)
    assert result["count"] == len(result["tokens"]) == len(result["token_strs"])
    assert post("/detokenize", tokens=result["tokens"]) == {"prompt": text}
    (model,) = client.models.list()
    assert model.max_model_len == result["max_model_len"]  # type: ignore[attr-defined]
    messages = [*STORY, {"role": "assistant", "content": "It ran."}, *STORY]
    result = post("/tokenize", messages=messages, tools=loops.FUNCTIONS)
    asked: Any = {"model": "brook", "messages": messages, "tools": loops.FUNCTIONS, "max_tokens": 1}
    answer = client.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    assert result["tokens"] == answer.prompt_token_ids  # type: ignore[attr-defined]
    assert "fox" in post("/detokenize", tokens=result["tokens"])["prompt"]


def test_version_and_load_routes(server: Server) -> None:
    def get(path: str) -> Any:
        reply = httpx.get(f"{server.url}{path}")
        assert reply.status_code == 200
        return reply.json()

    assert re.fullmatch(r"\d+\.\d+\.\d+", get("/version")["version"])
    assert isinstance(get("/load")["server_load"], int)
    assert "tokenizer_class" in get("/tokenizer_info")
    assert "messages" in get("/tokenizer_info")["chat_template"]
