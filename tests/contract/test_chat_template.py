"""Chat templates of requests: good ones are used, hostile ones cost their sender a 4xx."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import openai
import pytest
from serving import Server

ASKED: Any = [{"role": "user", "content": "What is 12 + 30?"}]
GROWING = (
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
)
HOSTILE = {
    "endless": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "huge": "{% for i in range(90000) %}{{ 'a' * 9000 }}{% endfor %}",
    "growing": GROWING + "{% endfor %}{{ ns.s | length }}",
    "repeated": "{{ 'a' * 99999999999 }}",
    "deep": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "nested": "{{ " + "(" * 30000 + "1" + ")" * 30000 + " }}",
    "broken": "{% if %}",
    "long": "a" * 70000,
    "raising": "{{ raise_exception('not so') }}",
}


def ask(client: openai.OpenAI, template: str, **fields: Any) -> str:
    asked: Any = {"model": "brook", "messages": ASKED, "temperature": 0, "max_tokens": 16, **fields}
    answer = client.chat.completions.create(**asked, extra_body={"chat_template": template})
    return str(answer.choices[0].message.content)


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def test_request_template_replaces_the_models_template(
    client: openai.OpenAI, server: Server
) -> None:
    same = "{{ bos_token }}<|user|>{{ messages[0].content }}<|end|><|assistant|>"
    assert "42" in ask(client, same)
    body = {
        "messages": [*ASKED, {"role": "assistant", "content": "It is"}],
        "chat_template": "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}!{{ x }}",
        "chat_template_kwargs": {"x": "loud"},
    }
    result = httpx.post(f"{server.url}/chat_tokenize", json=body).json()
    assert result["templated_text"] == "[user]What is 12 + 30?[assistant]It is"
    result = httpx.post(
        f"{server.url}/chat_tokenize", json={**body, "continue_final_message": False}
    ).json()
    assert result["templated_text"].endswith("It is!loud")


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_template_affects_only_its_sender(client: openai.OpenAI, kind: str) -> None:
    caught: list[openai.APIStatusError] = []

    def send() -> None:
        try:
            ask(client, HOSTILE[kind])
        except openai.APIStatusError as error:
            caught.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    plain = client.chat.completions.create(
        model="brook", messages=ASKED, temperature=0, max_tokens=16
    )
    assert "42" in str(plain.choices[0].message.content)
    sender.join(timeout=60)
    (error,) = caught
    assert 400 <= error.status_code < 500
    assert error.status_code != 429
    assert error.param == "chat_template"
