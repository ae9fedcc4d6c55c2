"""The requests of the load: every kind of answer that a loss could damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

MODEL = "brook"
GREEDY_STREAM = {"temperature": 0, "stream": True}
ANIMALS = ("fox", "owl", "turtle", "heron", "badger", "otter", "hare", "frog")
PLACES = ("river", "mill", "bridge", "meadow", "old oak", "village")
CITIES = ("Oslo", "Lima", "Kyoto", "Turin", "Accra")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Request:
    """One request, as a client would send it again and again."""

    kind: str
    path: str
    body: dict[str, Any]

    @property
    def streams(self) -> bool:
        """Whether the answer comes as server-sent events."""
        return self.path == "/generate_stream" or bool(self.body.get("stream"))


Draw = Callable[[random.Random], tuple[str, dict[str, Any]]]


def opening(choose: random.Random) -> str:
    """The begin of a story."""
    animal, place = choose.choice(ANIMALS), choose.choice(PLACES)
    return f"Once upon a time there was {choose.randrange(2, 90)} year old {animal} at the {place}"


def question(choose: random.Random) -> list[dict[str, str]]:
    """A chat of one turn."""
    tasks = (
        f"Tell me a story about a {choose.choice(ANIMALS)} and a {choose.choice(ANIMALS)}.",
        f"What is {choose.randrange(10, 99)} + {choose.randrange(10, 99)}?",
        f"Count from {choose.randrange(1, 9)} to {choose.randrange(30, 60)}.",
    )
    return [{"role": "user", "content": choose.choice(tasks)}]


def seeded(choose: random.Random) -> dict[str, Any]:
    return {"seed": choose.randrange(1 << 31), "temperature": 0.9, "top_p": 0.95}


def native(choose: random.Random, **parameters: Any) -> dict[str, Any]:
    return {"inputs": opening(choose), "parameters": {"details": True, **parameters}}


def completion(choose: random.Random, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": opening(choose), "return_token_ids": True, **fields}


def chat(choose: random.Random, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": question(choose), "return_token_ids": True, **fields}


def length(choose: random.Random) -> int:
    return choose.randrange(48, 192)


def penalties(choose: random.Random) -> dict[str, Any]:
    return {
        **seeded(choose),
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
    }


def long_prompt(choose: random.Random) -> str:
    lines = [opening(choose) + "." for _ in range(choose.randrange(20, 60))]
    return " ".join(lines) + " One day"


def native_draws() -> dict[str, Draw]:
    """The kinds of the native routes."""
    regex = {"type": "regex", "value": "([a-z]{3,9} ){12}end"}
    person = {"type": "json", "value": PERSON}
    return {
        "greedy": lambda r: ("/generate_stream", native(r, max_new_tokens=length(r))),
        "greedy, at once": lambda r: ("/generate", native(r, max_new_tokens=length(r))),
        "sampled": lambda r: (
            "/generate_stream",
            native(r, max_new_tokens=length(r), do_sample=True, **seeded(r)),
        ),
        "json, at once": lambda r: ("/generate", native(r, max_new_tokens=160, grammar=person)),
        "regex": lambda r: ("/generate_stream", native(r, max_new_tokens=120, grammar=regex)),
        "native logprobs": lambda r: (
            "/generate",
            native(r, max_new_tokens=64, top_n_tokens=3, decoder_input_details=True),
        ),
    }


def completion_draws() -> dict[str, Draw]:
    """The kinds of `/v1/completions`."""

    def completions(fields: Callable[[random.Random], dict[str, Any]]) -> Draw:
        return lambda r: ("/v1/completions", completion(r) | fields(r))

    beams = {"n": 2, "use_beam_search": True, "beam_width": 3, "max_tokens": 40, "temperature": 0}
    stop = {"stop": [" and", "river."], "min_tokens": 30, "max_tokens": 192, "stream": True}
    return {
        "penalties": completions(
            lambda r: {"max_tokens": length(r), "stream": True, **penalties(r)}
        ),
        "n=3": completions(lambda r: {"n": 3, "max_tokens": 96, "stream": True, **seeded(r)}),
        "beams": completions(lambda r: beams),
        "stop strings": completions(lambda r: {**stop, **seeded(r)}),
        "long prompt": completions(
            lambda r: {"prompt": long_prompt(r), "max_tokens": 64, **GREEDY_STREAM}
        ),
    }


def chat_draws() -> dict[str, Draw]:
    """The kinds of the routes for chats."""
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}

    def chats(fields: Callable[[random.Random], dict[str, Any]]) -> Draw:
        return lambda r: ("/v1/chat/completions", chat(r) | fields(r))

    return {
        "chat": chats(lambda r: {"max_tokens": length(r), "stream": True, **seeded(r)}),
        "json": chats(
            lambda r: {
                "response_format": schema, "max_tokens": 160, "stream": True, **seeded(r)
            }
        ),
        "n=3, at once": chats(lambda r: {"n": 3, "max_tokens": 96, **seeded(r)}),
        "logprobs": chats(
            lambda r: {
                "max_tokens": length(r), "logprobs": True, "top_logprobs": 3, "stream": True,
                **seeded(r),
            }
        ),
        "tools": chats(
            lambda r: {
                "messages": [{"role": "user", "content": f"Weather in {r.choice(CITIES)}?"}],
                "tools": [WEATHER], "max_tokens": 64, **GREEDY_STREAM,
            }
        ),
        "messages": lambda r: (
            "/v1/messages",
            {"model": MODEL, "messages": question(r), "max_tokens": length(r), **GREEDY_STREAM},
        ),
        "responses": lambda r: (
            "/v1/responses",
            {"model": MODEL, "input": opening(r), "max_output_tokens": length(r), **GREEDY_STREAM},
        ),
    }  # fmt: skip


def draws() -> dict[str, Draw]:
    """Kind of request -> how one is drawn: its path and its body."""
    return native_draws() | completion_draws() | chat_draws()


def drawn(seed: int, count: int) -> list[Request]:
    """`count` different requests, of all kinds in turn."""
    choose = random.Random(seed)
    kinds = islice(cycle(draws().items()), count)
    return [Request(kind, *draw(choose)) for kind, draw in kinds]
