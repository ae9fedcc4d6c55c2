"""`huggingface_hub.InferenceClient` with every parameter that it has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from serving import Server

PROMPT = "Once upon a time"
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
# Parameter -> its value, and what it needs beside it.
TEXT: dict[str, tuple[Any, dict[str, Any]]] = {
    "adapter_id": (None, {}),
    "best_of": (2, {"do_sample": True}),
    "decoder_input_details": (False, {}),
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
    "top_n_tokens": (None, {}),
    "top_p": (0.9, {}),
    "truncate": (3, {}),
    "typical_p": (0.9, {}),
    "watermark": (True, {}),
}
CHAT: dict[str, tuple[Any, dict[str, Any]]] = {
    "frequency_penalty": (0.5, {}),
    "logit_bias": (None, {}),
    "logprobs": (False, {}),
    "max_tokens": (5, {}),
    "n": (2, {}),
    "presence_penalty": (-0.5, {}),
    "response_format": ({"type": "json_object"}, {}),
    "seed": (7, {}),
    "stop": (["\n"], {}),
    "stream_options": ({"include_usage": True}, {"stream": True}),
    "temperature": (0.7, {}),
    "tool_choice": ("auto", {}),
    "tool_prompt": (None, {}),
    "tools": (None, {}),
    "top_logprobs": (None, {}),
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


def test_the_tables_are_complete() -> None:
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
    asked: dict[str, Any] = {"max_tokens": 6, name: value}
    answer = client.chat_completion(QUESTION, stream=stream, **asked)
    if stream:
        text = "".join(choice.delta.content or "" for chunk in answer for choice in chunk.choices)
    else:
        text = answer.choices[0].message.content or ""
    assert text
