"""`huggingface_hub.InferenceClient` with every parameter that it has."""

from __future__ import annotations

import inspect
import json
from functools import partial
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError
from serving import Server

PROMPT = "Once upon a time"
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
REFUSED = "an adapter"  # none is served: a clear refusal, not the base model's answer
# Parameter -> its value, and what it needs beside it.
TEXT: dict[str, tuple[Any, dict[str, Any]]] = {
    "adapter_id": (REFUSED, {}),
    "best_of": (2, {"do_sample": True}),
    "decoder_input_details": (True, {}),
    "do_sample": (True, {}),
    "frequency_penalty": (0.5, {}),
    "grammar": ({"type": "json", "value": {"type": "object"}}, {}),
    "max_new_tokens": (5, {}),
    "repetition_penalty": (1.2, {}),
    "return_full_text": (True, {}),
    "seed": (7, {"do_sample": True}),
    "stop": (["\n"], {}),
    "temperature": (0.7, {}),
    "top_k": (5, {}),
    "top_n_tokens": (3, {}),
    "top_p": (0.9, {}),
    "truncate": (3, {}),
    "typical_p": (0.9, {}),
    "watermark": (True, {}),
}
CHAT: dict[str, tuple[Any, dict[str, Any]]] = {
    "frequency_penalty": (0.5, {}),
    "logit_bias": ({"5": 1.0}, {}),
    "logprobs": (True, {}),
    "max_tokens": (5, {}),
    "n": (2, {}),
    "presence_penalty": (-0.5, {}),
    "response_format": ({"type": "json_object"}, {}),
    "seed": (7, {}),
    "stop": (["\n"], {}),
    "stream_options": ({"include_usage": True}, {"stream": True}),
    "temperature": (0.7, {}),
    "tool_choice": ("auto", {"tools": TOOLS}),
    "tool_prompt": ("You can call these functions.", {"tools": TOOLS}),
    "tools": (TOOLS, {}),
    "top_logprobs": (2, {"logprobs": True}),
    "top_p": (0.9, {}),
    "extra_body": ({"top_k": 5}, {}),
}
if "stop_sequences" in inspect.signature(InferenceClient.text_generation).parameters:
    TEXT["stop_sequences"] = (["\n"], {})  # until version 2
NOT_STREAMED = {"best_of", "decoder_input_details"}
NOT_PARAMETERS = {"self", "prompt", "messages", "details", "stream", "model"}


@pytest.fixture(scope="module")
def client(server: Server) -> InferenceClient:
    return InferenceClient(model=server.url)


def test_parameter_tables_cover_every_client_parameter() -> None:
    for method, table in (
        (InferenceClient.text_generation, TEXT),
        (InferenceClient.chat_completion, CHAT),
    ):
        known = set(inspect.signature(method).parameters) - NOT_PARAMETERS
        assert known == set(table), method


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TEXT)
def test_text_generation(client: InferenceClient, name: str, stream: bool) -> None:
    value, beside = TEXT[name]
    if name in NOT_STREAMED and stream:
        pytest.skip("only of an answer in one piece")
    asked: dict[str, Any] = {"max_new_tokens": 6, **beside, name: value}
    if value is REFUSED:
        with pytest.raises(ValidationError, match=name):
            client.text_generation(PROMPT, stream=stream, details=True, **asked)
        return
    answer = client.text_generation(PROMPT, stream=stream, details=True, **asked)
    if stream:
        *_, last = answer
        assert last.generated_text
        assert last.details is not None
    else:
        assert answer.generated_text
        assert answer.details.generated_tokens <= 6


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CHAT)
def test_chat_completion(client: InferenceClient, name: str, stream: bool) -> None:
    value, beside = CHAT[name]
    if "stream" in beside and not stream:
        pytest.skip("only of a stream")
    asked: dict[str, Any] = {"max_tokens": 6, **beside, name: value, "stream": stream}
    answer = client.chat_completion(QUESTION, **asked)
    if stream:
        text = "".join(choice.delta.content or "" for chunk in answer for choice in chunk.choices)
    else:
        text = answer.choices[0].message.content or ""
    assert text


def test_text_generation_returns_the_requested_details(client: InferenceClient) -> None:
    """Parameters whose effect is to be told more."""
    ask = partial(client.text_generation, PROMPT, details=True, max_new_tokens=6)
    result = ask(decoder_input_details=True, top_n_tokens=3).details
    assert result.prefill[0].logprob is None and all(
        each.logprob <= 0 for each in result.prefill[1:]
    )
    assert [len(each) for each in result.top_tokens] == [3] * 6
    assert len(ask(best_of=2, do_sample=True).details.best_of_sequences) == 1
    assert ask(return_full_text=True).generated_text.startswith(PROMPT)
    assert len(ask(truncate=3, decoder_input_details=True).details.prefill) == 3
    assert ask(stop=["a"]).generated_text.endswith("a")
    assert ask(seed=7, do_sample=True).details.seed == 7
    json.loads(ask(grammar={"type": "json", "value": {"type": "object"}}).generated_text)
    for event in ask(top_n_tokens=3, stream=True):
        assert len(event.top_tokens) == 3


def test_chat_completion_returns_the_requested_details(client: InferenceClient) -> None:
    ask = partial(client.chat_completion, QUESTION, max_tokens=6)
    assert len(ask(n=2).choices) == 2
    content = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert all(len(token.top_logprobs) == 2 for token in content)
    json.loads(ask(response_format={"type": "json_object"}).choices[0].message.content)
    *_, last = ask(stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens == 6
    biased = ask(logit_bias={"300": 100}, temperature=0).choices[0].message.content
    assert len(set(biased)) < len(biased)  # the same token again and again
    weather = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = client.chat_completion(weather, tools=TOOLS, tool_choice="auto", max_tokens=48)
    (call,) = called.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
