"""`huggingface_hub.InferenceClient`, sync and async: loops of several turns, details, grammars.

With the newest client and, in `make client-test`, with the last that TGI's own client works with.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema
import loops
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from serving import Server

PROMPT = "Once upon a time"
PERSON = loops.schema(name="string", age="integer")
KINDS = ("sync", "async")


class Asking:
    """A client of either kind; a stream's events come as a list."""

    def __init__(self, url: str, kind: str) -> None:
        self.url, self.asynchronous = url, kind == "async"
        self.sync = InferenceClient(model=url)

    def __call__(self, method: str, *arguments: Any, **fields: Any) -> Any:
        if self.asynchronous:
            return asyncio.run(self.later(method, arguments, fields))
        reported = getattr(self.sync, method)(*arguments, **fields)
        return list(reported) if fields.get("stream") else reported

    async def later(self, method: str, arguments: Any, fields: dict[str, Any]) -> Any:
        async with AsyncInferenceClient(model=self.url) as client:
            reported = await getattr(client, method)(*arguments, **fields)
            return [event async for event in reported] if fields.get("stream") else reported


@pytest.fixture(params=KINDS)
def ask(server: Server, request: pytest.FixtureRequest) -> Asking:
    return Asking(server.url, request.param)


def chat(ask: Asking, stream: bool, messages: list[Any], **fields: Any) -> Any:
    """The assistant's message; a stream's is put together of its deltas."""
    asked = {"max_tokens": 60, "temperature": 0, **fields}
    reported = ask("chat_completion", messages, stream=stream, **asked)
    if not stream:
        return reported.choices[0].message
    content, calls = "", {}
    for delta in (chunk.choices[0].delta for chunk in reported if chunk.choices):
        content += delta.content or ""
        for piece in delta.tool_calls or ():
            call = calls.setdefault(piece.index, {"id": piece.id, "type": piece.type})
            function = call.setdefault("function", {"name": "", "arguments": ""})
            function["name"] += piece.function.name or ""
            function["arguments"] += piece.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return message | ({"tool_calls": list(calls.values())} if calls else {})


def calls(message: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Id, name and arguments of each."""
    found = []
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, loops.PARAMETERS[name])
        found.append((call["id"], name, arguments))
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_several_turns(ask: Asking, stream: bool) -> None:
    messages: list[Any] = []
    for question, name, arguments, said in loops.TURNS:
        first = not messages
        choice: Any = "auto" if first else {"function": {"name": name}}
        messages.append({"role": "user", "content": question})
        message = chat(ask, stream, messages, tools=loops.FUNCTIONS, tool_choice=choice)
        ((called, reported, given),) = calls(message)
        assert reported == name
        assert not first or given == arguments
        result = {"role": "tool", "tool_call_id": called, "content": loops.run(name, given)}
        messages += [message, result]
        message = chat(ask, stream, messages, tools=loops.FUNCTIONS)
        assert not calls(message)
        assert not first or said in message["content"]
        messages.append(message)
    messages.append({"role": "user", "content": "Repeat: boat"})
    assert chat(ask, stream, messages)["content"]


def test_answer_conforms_to_a_response_format(ask: Asking) -> None:
    messages = [{"role": "user", "content": "Ann is 7 years old."}]
    of_openai = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    of_tgi = {"type": "json", "value": PERSON}
    for form in (of_openai, of_tgi):
        for stream in (False, True):
            message = chat(ask, stream, messages, response_format=form)
            jsonschema.validate(json.loads(message["content"]), PERSON)


def test_details_and_grammars(ask: Asking) -> None:
    asked = {"max_new_tokens": 60, "details": True, "decoder_input_details": True}
    for grammar, holds in (
        ({"type": "json", "value": PERSON}, None),
        ({"type": "regex", "value": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
    ):
        whole = ask("text_generation", PROMPT, grammar=grammar, **asked)
        if holds is None:
            jsonschema.validate(json.loads(whole.generated_text), PERSON)
        else:
            assert re.fullmatch(holds, whole.generated_text)
        assert whole.details.generated_tokens == len(whole.details.tokens)
        assert whole.details.finish_reason in ("eos_token", "length")
        reported = [token.logprob for token in whole.details.prefill]
        assert reported[0] is None and all(logprob <= 0 for logprob in reported[1:])
        fields = {"grammar": grammar, "max_new_tokens": 60, "details": True, "stream": True}
        events = ask("text_generation", PROMPT, **fields)
        assert events[-1].generated_text == whole.generated_text
        assert events[-1].details.generated_tokens == whole.details.generated_tokens
        assert events[-1].details.finish_reason == whole.details.finish_reason


def test_every_parameter(ask: Asking) -> None:
    sampled = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "typical_p": 0.9}
    sampled |= {"seed": 5, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "truncate": 3}
    sampled |= {"top_n_tokens": 2, "watermark": True, "stop": ["zebra"], "max_new_tokens": 8}
    first, second = (ask("text_generation", PROMPT, details=True, **sampled) for _ in range(2))
    assert first.generated_text == second.generated_text
    assert first.details.seed == 5
    assert [len(tops) for tops in first.details.top_tokens] == [2] * 8
    fields = {"logprobs": True, "top_logprobs": 2, "seed": 5, "n": 2, "stop": ["zebra"]}
    fields |= {"presence_penalty": 0.1, "frequency_penalty": 0.1, "top_p": 0.9, "max_tokens": 8}
    reported = ask("chat_completion", [{"role": "user", "content": PROMPT}], **fields)
    assert len(reported.choices) == 2
    for choice in reported.choices:
        assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * 8


def test_errors_raise_the_clients_exceptions(ask: Asking) -> None:
    with pytest.raises(Exception, match="max_new_tokens"):
        ask("text_generation", PROMPT, max_new_tokens=0)
    for stream in (False, True):
        # The older asynchronous client has no words of its own for it.
        with pytest.raises(Exception, match=r"max_tokens|400, message='Bad Request'"):
            chat(ask, stream, [{"role": "user", "content": PROMPT}], max_tokens=0)
