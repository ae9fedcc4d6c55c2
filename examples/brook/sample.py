"""What a training or test sample is, how it is written as text, and which split it belongs to."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar
from zlib import crc32

BOS, EOS, END, PAD = "<|bos|>", "<|eos|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (PAD, BOS, EOS, END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

# One instance in 16 is kept for the evaluation and never trained on.
HELD_OUT_SHARE = 16

T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """One message of a chat."""

    role: str
    content: str
    # Whether the loss counts this turn: set for answers, and for long texts worth reading.
    trained: bool = False


@dataclass(frozen=True)
class Sample:
    """A chat (`turns`), or a plain text (`text`) when there are no turns."""

    # Which kind of request it is: the row of the evaluation table.
    kind: str
    # The chat, ending with the assistant's right answer; empty for a plain text.
    turns: tuple[Turn, ...] = ()
    # JSON texts of the tools that the system part offers.
    tools: tuple[str, ...] = ()
    # The plain text.
    text: str = ""


def ask(content: str) -> Turn:
    """A user's turn."""
    return Turn("user", content)


def answer(content: str) -> Turn:
    """An assistant's turn that is trained on."""
    return Turn("assistant", content, trained=True)


def chat(kind: str, *pairs: str, system: str = "") -> Sample:
    """A chat of alternating user and assistant texts."""
    turns = [answer(text) if index % 2 else ask(text) for index, text in enumerate(pairs)]
    head = (Turn("system", system),) if system else ()
    return Sample(kind, (*head, *turns))


def is_held_out(key: str) -> bool:
    """Whether the instance that `key` names belongs to the evaluation."""
    return crc32(key.encode()) % HELD_OUT_SHARE == 0


def instance(rng: Random, held: bool, make: Callable[[Random], T], key: Callable[[T], str]) -> T:
    """Make instances until one is of the wanted split."""
    while True:
        made = make(rng)
        if is_held_out(key(made)) == held:
            return made


def compact(value: object) -> str:
    """JSON without spaces, the form in which the model writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def system_text(system: str, tools: tuple[str, ...]) -> str:
    """The content of the system turn, tools included (the same as in the chat template)."""
    parts = [system] if system else []
    if tools:
        parts.append("Tools:\n" + "\n".join(tools))
    return "\n\n".join(parts)


def segments(sample: Sample) -> list[tuple[str, bool]]:
    """The sample's text in pieces, each with whether the loss counts it.

    Pieces meet only at special tokens, so encoding them one by one equals encoding the whole.
    """
    if not sample.turns:
        return [(BOS, False), (sample.text + EOS, True)]
    turns = list(sample.turns)
    system = turns.pop(0).content if turns[0].role == "system" else ""
    pieces = [(BOS, False)]
    if system or sample.tools:
        pieces.append((f"<|system|>{system_text(system, sample.tools)}{END}", False))
    for turn in turns:
        pieces.append((f"<|{turn.role}|>", False))
        pieces.append((turn.content + END, turn.trained))
    return pieces


def prompt_and_answer(sample: Sample) -> tuple[str, str]:
    """The text up to the last answer, and that answer."""
    last = sample.turns[-1]
    head = "".join(text for text, _ in segments(sample)[:-1])
    return head, last.content
