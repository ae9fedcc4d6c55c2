"""An answer under faults against its reference, token by token."""

from __future__ import annotations

import math
from enum import Enum

from .answers import Answer, Choice

# Logprobs are float32 in JSON; rounding of float64 sums differs with the batch below that.
LOGPROB_ERROR = 1e-5


class Verdict(Enum):
    """How an answer compares with its reference."""

    SAME = "same"
    BROKEN = "broken"  # an error, or something is missing
    DIFFERENT = "different"
    REFUSED = "refused"  # with a 429 or 503 before it began
    LEFT = "left"  # by its client, at a random moment
    CUT = "cut"  # by the launcher's end, which no stream survives


def difference(answer: Answer, reference: Answer) -> str | None:
    """The first place where a complete answer differs from its reference."""
    if answer.choices.keys() != reference.choices.keys():
        return f"choices {sorted(answer.choices)}, not {sorted(reference.choices)}"
    for index, expected in sorted(reference.choices.items()):
        if (found := _difference(answer.choices[index], expected)) is not None:
            return f"choice {index}: {found}"
    return None


def _difference(choice: Choice, expected: Choice) -> str | None:
    if choice.tokens != expected.tokens:
        return _first("token", choice.tokens, expected.tokens)
    if choice.text != expected.text:
        return _first("letter", list(choice.text), list(expected.text))
    if choice.finish != expected.finish:
        return f"finish reason {choice.finish}, not {expected.finish}"
    if len(choice.logprobs) != len(expected.logprobs):
        return f"{len(choice.logprobs)} logprobs, not {len(expected.logprobs)}"
    for place, (one, other) in enumerate(zip(choice.logprobs, expected.logprobs, strict=True)):
        if not math.isclose(one, other, rel_tol=LOGPROB_ERROR, abs_tol=LOGPROB_ERROR):
            return f"logprob {place} is {one}, not {other}"
    return None


def _first(name: str, found: list[int] | list[str], expected: list[int] | list[str]) -> str:
    for place, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            return f"{name} {place} is {one!r}, not {other!r} (of {len(expected)})"
    return f"{len(found)} {name}s, not {len(expected)}"
