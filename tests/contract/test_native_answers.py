"""What the native API's answers say, beyond the table of test_native_contract.py."""

from __future__ import annotations

import httpx
import pytest
from native_api import PROMPT, TABLE, events, post
from serving import Server


def test_token_texts_add_up_to_the_generated_text(server: Server) -> None:
    plain = post(server, "/generate").json()
    assert set(plain) == {"generated_text"}
    tokens = post(server, "/generate", details=True).json()["details"]["tokens"]
    assert len(tokens) == 6
    assert "".join(token["text"] for token in tokens) == plain["generated_text"]


def test_a_stream(server: Server) -> None:
    _, stream = events(server, details=True)
    assert [event["index"] for event in stream] == [1, 2, 3, 4, 5, 6]
    for event in stream[:-1]:
        assert event["generated_text"] is None
        assert event["details"] is None
    assert stream[-1]["details"]["seed"] is None
    assert events(server)[1][-1]["details"] is None
    whole = post(server, "/generate").json()["generated_text"]
    assert stream[-1]["generated_text"] == whole


def test_the_root_route_answers_with_a_list_or_a_stream(server: Server) -> None:
    assert set(post(server, "/").json()[0]) == {"generated_text"}
    body = {"inputs": PROMPT, "stream": True, "parameters": {"max_new_tokens": 2}}
    assert httpx.post(server.url + "/", json=body).text.startswith('data: {"index":1,')


def test_invocations_dispatch_on_their_fields(server: Server) -> None:
    def invoke(**body: object) -> httpx.Response:
        return httpx.post(server.url + "/invocations", json=body)

    assert set(invoke(inputs=PROMPT, parameters={"max_new_tokens": 2}).json()[0]) == {
        "generated_text"
    }
    assert invoke(prompt=PROMPT, max_tokens=2).json()["object"] == "text_completion"
    messages = [{"role": "user", "content": "hi"}]
    assert invoke(messages=messages, max_tokens=2).json()["object"] == "chat.completion"
    assert "`messages`" in invoke(parameters={}).json()["error"]
    assert invoke(messages=messages, max_tokens=0).json()["error"]["param"] == "max_tokens"


def test_without_parameters_the_answer_is_sampled(server: Server) -> None:
    body = {"inputs": PROMPT, "stream": True}
    with httpx.stream("POST", server.url + "/", json=body) as reply:
        assert reply.status_code == 200
    seeded = post(server, "/generate", details=True, do_sample=True, seed=7).json()
    assert seeded["details"]["seed"] == 7
    greedy = post(server, "/generate", details=True, seed=7).json()
    assert greedy["details"]["seed"] is None


def test_tokenize(server: Server) -> None:
    tokens = httpx.post(server.url + "/tokenize", json={"inputs": PROMPT}).json()
    assert all(token["text"] == PROMPT[token["start"] : token["stop"]] for token in tokens)


@pytest.mark.parametrize(
    ("grammar", "name"),
    [
        ({"type": "json", "value": {"type": "object", "not": {}}}, "not"),
        ({"type": "regex", "value": "("}, "regular expression"),
        ({"type": "other", "value": "a"}, "grammar.type"),
        ({"type": "regex"}, "grammar"),
    ],
    ids=str,
)
def test_invalid_grammars_are_refused(
    server: Server, grammar: dict[str, object], name: str
) -> None:
    reply = post(server, "/generate", grammar=grammar)
    assert (reply.status_code, reply.json()["error_type"]) == (422, "validation")
    assert name in reply.json()["error"]


def test_every_parameter_at_once(server: Server) -> None:
    parameters = {
        "best_of": 2,
        "temperature": 0.5,
        "repetition_penalty": 1.03,
        "frequency_penalty": 0.1,
        "top_k": 10,
        "top_p": 0.95,
        "typical_p": 0.95,
        "do_sample": True,
        "return_full_text": True,
        "stop": ["photographer"],
        "truncate": 3,
        "watermark": True,
        "details": True,
        "decoder_input_details": True,
        "seed": None,
        "top_n_tokens": 5,
        "grammar": None,
        "adapter_id": None,
    }
    assert parameters.keys() == TABLE["schemas"]["GenerateParameters"].keys() - {"max_new_tokens"}
    answer = post(server, "/generate", **parameters).json()
    assert answer["generated_text"].startswith(PROMPT)
    (other,) = answer["details"]["best_of_sequences"]
    for details in (answer["details"], other):
        assert len(details["prefill"]) == 3
        assert [len(top) for top in details["top_tokens"]] == [5] * 6


def test_text_ends_with_the_stop_string(server: Server) -> None:
    whole = post(server, "/generate", max_new_tokens=12).json()["generated_text"]
    stop = whole.split()[1]
    found = post(server, "/generate", max_new_tokens=12, stop=[stop], details=True).json()
    assert found["generated_text"].endswith(stop)
    assert found["details"]["finish_reason"] == "stop_sequence"
    ended = post(server, "/generate", details=True, max_new_tokens=400).json()
    assert ended["details"]["finish_reason"] == "eos_token"
    assert ended["details"]["tokens"][-1]["special"]


def test_openai_streams_end_with_done(server: Server) -> None:
    body = {"model": "tgi", "prompt": PROMPT, "max_tokens": 4, "stream": True}
    *_, end, nothing = httpx.post(f"{server.url}/v1/completions", json=body).text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
