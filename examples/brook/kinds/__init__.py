"""The kinds of samples, and how often each is drawn."""

from collections.abc import Callable
from random import Random

from ..sample import Sample
from . import arithmetic, copying, extraction, facts, library, stories, talk, tools

Maker = Callable[[Random, bool], Sample]

# Makers of short samples, and the share of each among the samples (not the tokens).
SHORT: tuple[tuple[Maker, float], ...] = (
    (arithmetic.sample, 30.0),
    (arithmetic.follow_up, 4.0),
    (arithmetic.word_problem, 4.0),
    (arithmetic.counting, 2.0),
    (arithmetic.order, 3.0),
    (copying.echo, 10.0),
    (copying.reverse, 12.0),
    (copying.again, 4.0),
    (copying.spell, 2.5),
    (copying.letters, 7.0),
    (facts.sample, 10.0),
    (extraction.sample, 9.0),
    (extraction.several, 2.0),
    (tools.call, 7.0),
    (tools.result, 4.0),
    (tools.unused, 0.7),
    (stories.sample, 8.0),
    (stories.plain, 2.5),
    (talk.sample, 8.0),
    (talk.memory, 6.0),
    (library.plain, 1.0),
)

# The rows of the evaluation table that have one right answer.
JUDGED: dict[str, tuple[Maker, ...]] = {
    "arithmetic": (arithmetic.sample, arithmetic.sample, arithmetic.word_problem),
    "counting": (arithmetic.counting,),
    "echo": (copying.echo,),
    "order": (arithmetic.order,),
    "letters": (copying.letters,),
    "reverse": (copying.reverse,),
    "facts": (facts.sample,),
    "json": (extraction.sample, extraction.sample, extraction.several),
    "tool call": (tools.call,),
    "tool result": (tools.result,),
    "recall": (talk.memory, arithmetic.follow_up, copying.again),
}
