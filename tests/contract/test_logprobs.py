"""Log-probabilities over HTTP, with the clients that people use, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import penstock
import pytest
import torch
from serving import Server
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = "Once upon a time there was a fox who said: 日本 ✓"
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
TOLERANCE = 2e-3  # float32 on both sides


class Oracle:
    """brook by transformers."""

    def __init__(self) -> None:
        path = Path(penstock.__file__).parent / "brook"
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def rows(self, ids: list[int]) -> torch.Tensor:
        """log_softmax after each of these tokens."""
        with torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)

    def own(self, ids: list[int]) -> list[float]:
        """Of each token from the second on."""
        return self.rows(ids)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def test_echo_returns_prompt_logprobs(client: openai.OpenAI, oracle: Oracle) -> None:
    """As lm-eval's local-completions sends it: ids or text, one token, echoed."""
    ids = oracle.tokenizer(TEXT)["input_ids"]
    for prompt in (ids, TEXT):
        for _ in range(2):  # the second time, the prefix cache has it all
            answer = client.completions.create(
                model="brook", prompt=prompt, max_tokens=1, logprobs=1, echo=True, temperature=0
            )
            result = answer.choices[0].logprobs
            assert (
                result is not None
                and result.tokens
                and result.token_logprobs
                and result.top_logprobs
            )
            assert len(result.tokens) == len(result.token_logprobs) == len(ids) + 1
            assert result.token_logprobs[0] is None
            expected = oracle.own(ids)
            assert result.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=TOLERANCE)
            rows = oracle.rows(ids)
            for at in range(1, len(ids)):
                likeliest = max(result.top_logprobs[at].items(), key=lambda item: item[1])
                assert likeliest[1] == pytest.approx(float(rows[at - 1].max()), abs=TOLERANCE)
                greedy = int(rows[at - 1].argmax()) == ids[at]
                assert (result.tokens[at] == likeliest[0]) == greedy
                assert result.tokens[at] in result.top_logprobs[at]
            assert answer.choices[0].text.startswith(TEXT)
            assert result.text_offset is not None
            assert result.text_offset[0] == 0 and result.text_offset[-1] == len(TEXT)


def test_echo_without_an_answer(client: openai.OpenAI, oracle: Oracle) -> None:
    ids = oracle.tokenizer(TEXT)["input_ids"]
    answer = client.completions.create(
        model="brook", prompt=[ids, ids[:5]], max_tokens=0, logprobs=0, echo=True
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 0
    assert answer.choices[0].text == TEXT
    for choice, own in zip(answer.choices, (ids, ids[:5]), strict=True):
        assert choice.finish_reason == "length"
        result = choice.logprobs
        assert result is not None and result.token_logprobs and result.tokens
        assert result.token_logprobs[1:] == pytest.approx(oracle.own(own), abs=TOLERANCE)
    only = client.completions.create(model="brook", prompt=TEXT, max_tokens=0, echo=True)
    assert only.choices[0].text == TEXT and only.choices[0].logprobs is None


def test_truncated_prompt_is_echoed_truncated(client: openai.OpenAI, oracle: Oracle) -> None:
    ids = oracle.tokenizer(TEXT)["input_ids"]
    for prompt in (ids, TEXT):
        answer = client.completions.create(
            model="brook", prompt=prompt, max_tokens=0, logprobs=0, echo=True,
            extra_body={"truncate_prompt_tokens": 5},
        )  # fmt: skip
        result = answer.choices[0].logprobs
        assert result is not None and result.token_logprobs and result.text_offset
        assert answer.choices[0].text == oracle.tokenizer.decode(ids[-5:])
        assert result.token_logprobs[1:] == pytest.approx(oracle.own(ids[-5:]), abs=TOLERANCE)
        assert result.text_offset[0] == 0 and max(result.text_offset) < len(answer.choices[0].text)


def test_partial_characters_have_distinct_tokens(client: openai.OpenAI, oracle: Oracle) -> None:
    ids = oracle.tokenizer("日本 ✓")["input_ids"]
    answer = client.completions.create(
        model="brook", prompt=ids, max_tokens=0, logprobs=1, echo=True
    )
    result = answer.choices[0].logprobs
    assert result is not None and result.tokens
    parts = [token for token in result.tokens if token.startswith("bytes:\\x")]
    assert len(parts) > 1 and len(set(parts)) == len(parts)


@pytest.mark.parametrize("stream", [False, True])
def test_completions(client: openai.OpenAI, oracle: Oracle, stream: bool) -> None:
    wish: dict[str, Any] = dict(model="brook", prompt="Once upon", max_tokens=12, temperature=0)
    wish |= {"logprobs": 3, "stream": stream}
    if stream:
        chunks = list(client.completions.create(**wish))
        parts = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
        text = "".join(c.choices[0].text for c in chunks)
        tokens = [token for part in parts for token in part.tokens]
        own = [logprob for part in parts for logprob in part.token_logprobs]
        tops = [top for part in parts for top in part.top_logprobs]
        offsets = [offset for part in parts for offset in part.text_offset]
    else:
        choice = client.completions.create(**wish).choices[0]
        text, result = choice.text, choice.logprobs
        tokens, own, tops, offsets = (
            result.tokens, result.token_logprobs, result.top_logprobs, result.text_offset
        )  # fmt: skip
    assert len(tokens) == len(own) == len(tops) == 12
    assert "".join(tokens) == text
    assert [text[at : at + len(t)] for at, t in zip(offsets, tokens, strict=True)] == tokens
    prompt = oracle.tokenizer("Once upon")["input_ids"]
    ids = prompt + oracle.tokenizer.convert_tokens_to_ids(oracle.tokenizer.tokenize(text))
    rows = oracle.rows(ids)
    for at, (token, logprob, top) in enumerate(zip(tokens, own, tops, strict=True)):
        best = rows[len(prompt) - 1 + at].topk(3).values.tolist()
        assert list(top.values()) == pytest.approx(best, abs=TOLERANCE)
        assert top[token] == logprob == max(top.values())


@pytest.mark.parametrize("stream", [False, True])
def test_chat(client: openai.OpenAI, stream: bool) -> None:
    wish: dict[str, Any] = dict(model="brook", messages=QUESTION, max_tokens=32, temperature=0)
    wish |= {"logprobs": True, "top_logprobs": 2, "stream": stream}
    if stream:
        chunks = list(client.chat.completions.create(**wish))
        content = [
            each
            for chunk in chunks
            if chunk.choices[0].logprobs
            for each in chunk.choices[0].logprobs.content
        ]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        choice = client.chat.completions.create(**wish).choices[0]
        content, text = choice.logprobs.content, choice.message.content
    assert "42" in text
    # The end token has logprobs too: it was generated.
    assert b"".join(bytes(each.bytes) for each in content[:-1]).decode() == text
    for each in content:
        assert len(each.top_logprobs) == 2
        assert each.top_logprobs[0].token == each.token
        assert each.top_logprobs[0].logprob == each.logprob >= each.top_logprobs[1].logprob
    plain = client.chat.completions.create(**{**wish, "top_logprobs": None, "stream": False})
    assert [each.logprob for each in plain.choices[0].logprobs.content] == pytest.approx(
        [each.logprob for each in content], abs=1e-5
    )
    assert all(each.top_logprobs == [] for each in plain.choices[0].logprobs.content)


def test_prompt_logprobs(server: Server, oracle: Oracle) -> None:
    ids = oracle.tokenizer(TEXT)["input_ids"]
    answer = post(server, "/v1/completions", prompt=ids, max_tokens=1, prompt_logprobs=2).json()
    result = answer["choices"][0]["prompt_logprobs"]
    assert result[0] is None and len(result) == len(ids)
    rows, own = oracle.rows(ids), oracle.own(ids)
    for at, entry in enumerate(result[1:]):
        mine = entry[str(ids[at + 1])]
        assert mine["logprob"] == pytest.approx(own[at], abs=TOLERANCE)
        assert mine["rank"] == 1 + int((rows[at] > rows[at][ids[at + 1]]).sum())
        assert {int(k) for k in entry} == {*rows[at].topk(2).indices.tolist(), ids[at + 1]}
        assert [each["rank"] for each in entry.values()] == sorted(
            each["rank"] for each in entry.values()
        )
    chat = post(
        server, "/v1/chat/completions", messages=QUESTION, max_tokens=1, prompt_logprobs=0
    ).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_native(server: Server, oracle: Oracle) -> None:
    ids = oracle.tokenizer(TEXT)["input_ids"]
    parameters = {"max_new_tokens": 6, "top_n_tokens": 4, "decoder_input_details": True}
    details = post(server, "/generate", inputs=TEXT, parameters=parameters).json()["details"]
    assert [token["id"] for token in details["prefill"]] == ids
    assert details["prefill"][0]["logprob"] is None
    own = [token["logprob"] for token in details["prefill"][1:]]
    assert own == pytest.approx(oracle.own(ids), abs=TOLERANCE)
    whole = oracle.rows(ids + [token["id"] for token in details["tokens"]])[len(ids) - 1 :]
    for row, token, top in zip(whole, details["tokens"], details["top_tokens"], strict=False):
        assert [each["id"] for each in top] == row.topk(4).indices.tolist()
        assert top[0] == pytest.approx({**token, "text": top[0]["text"]}, abs=1e-5)
    assert len(details["top_tokens"]) == 6
    del parameters["decoder_input_details"]
    lines = post(server, "/generate_stream", inputs=TEXT, parameters=parameters).text.split("\n\n")
    events = [httpx.Response(200, text=line[6:]).json() for line in lines if line[:5] == "data:"]
    assert [event["top_tokens"] for event in events] == details["top_tokens"]
    plain = post(server, "/generate", inputs=TEXT, parameters={"details": True}).json()
    assert plain["details"]["prefill"] == [] and "top_tokens" not in plain["details"]


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "logprobs": -1}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "logprobs": True}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 0, "stream": True}, "stream"),
        ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/generate", {"inputs": "a", "parameters": {"top_n_tokens": 21}}, "top_n_tokens"),
        (
            "/generate_stream",
            {"inputs": "a", "parameters": {"decoder_input_details": True}},
            "decoder_input_details",
        ),
    ],
)
def test_bounds(server: Server, path: str, fields: dict[str, Any], name: str) -> None:
    body = {"messages": QUESTION, **fields} if "chat" in path else fields
    reply = post(server, path, **body)
    assert reply.status_code == (400 if path.startswith("/v1/") else 422)
    assert name in reply.text


@pytest.mark.parametrize("most", [1, 6])
def test_beam_search_returns_prompt_logprobs(server: Server, most: int) -> None:
    """The same as of a request that does not search, by itself and echoed."""
    asked = {"prompt": TEXT, "temperature": 0, "max_tokens": most, "logprobs": 1, "echo": True}
    asked["prompt_logprobs"] = 1
    plain = post(server, "/v1/completions", **asked).json()["choices"][0]
    beams = post(server, "/v1/completions", **asked, use_beam_search=True, beam_width=3, n=2).json()
    for choice in beams["choices"]:
        assert choice["prompt_logprobs"] == plain["prompt_logprobs"]
        prompt = len(plain["prompt_logprobs"])
        for of_token in ("tokens", "token_logprobs", "top_logprobs"):
            result = choice["logprobs"][of_token]
            assert result[:prompt] == plain["logprobs"][of_token][:prompt]
            assert len(result) > prompt
