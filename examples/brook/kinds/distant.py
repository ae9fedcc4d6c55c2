"""Facts far back: in a long text, or early in a long chat."""

from collections.abc import Callable
from random import Random

from ..sample import Sample, Turn, answer, ask
from . import arithmetic, copying, library, stories, talk
from .facts import NOTED, Fact, any_fact, questions, several

Count = Callable[[str], int]

_JOINS = ("\n\n", "\n\nQuestion: ", "\n", " ")


def _filler(rng: Random, taken: set[str]) -> str:
    """Something to read past: a story, a docstring, or facts about other subjects."""
    roll = rng.random()
    if roll < 0.6:
        return stories.tell(rng).text
    if roll < 0.75:
        return rng.choice(library.texts())
    made = (any_fact(rng) for _ in range(rng.randint(1, 5)))
    return " ".join(one.statement for one in made if one.subject not in taken)


def _fillers(rng: Random, taken: set[str], room: int, count: Count) -> list[str]:
    """Fillers of at least `room` tokens together, and hardly more."""
    found: list[str] = []
    while room > 0:
        text = _filler(rng, taken)
        size = count(text) + 1
        if size > room + 40:
            text = " ".join(text.split(" ")[: room + 1])
            size = count(text) + 1
        if size > 1:
            found.append(text)
            room -= size
    return found


def reading(rng: Random, facts: list[Fact], room: int, count: Count) -> str:
    """A text of about `room` tokens with the facts scattered in it."""
    pieces = _fillers(rng, {one.subject for one in facts}, room, count)
    for one in facts:
        pieces.insert(int(rng.random() ** 1.3 * (len(pieces) + 1)), one.statement)
    return rng.choice(("\n", " ", "\n\n")).join(pieces)


def text(rng: Random, room: int, count: Count) -> Sample:
    """A long text, as user or system turn, then questions about facts in it."""
    facts = several(rng, False, rng.randint(3, 10))
    body = reading(rng, facts, room - 45 * len(facts), count)
    asked = questions(rng, facts)
    roll = rng.random()
    if roll < 0.5:
        first = ask(body + rng.choice(_JOINS) + asked[0].content)
        return Sample("distant", (first, *asked[1:]))
    if roll < 0.75:
        return Sample("distant", (ask(body), answer(rng.choice(NOTED)), *asked))
    return Sample("distant", (Turn("system", body), *asked))


def _exchange(rng: Random) -> Sample:
    makers = (
        stories.sample,
        stories.sample,
        arithmetic.sample,
        copying.echo,
        copying.reverse,
        talk.sample,
    )
    return rng.choice(makers)(rng, False)


def chat(rng: Random, room: int, count: Count) -> Sample:
    """A long chat that ends with questions about what was told at its beginning."""
    facts = several(rng, False, rng.randint(1, 4))
    said, asked = talk.statement_and_question(rng, False)
    statements = [ask(" ".join(one.statement for one in facts)), answer(rng.choice(NOTED))]
    turns = [*said, *statements] if rng.random() < 0.5 else [*statements, *said]
    room -= 45 * len(facts) + 80
    while room > 0:
        more = _exchange(rng).turns
        room -= sum(count(turn.content) + 2 for turn in more)
        if room > 0:
            turns += more
    return Sample("distant", (*turns, *asked, *questions(rng, facts)))


def sample(rng: Random, longest: int, count: Count) -> Sample:
    """A training sample of any length up to `longest` tokens, long ones more often."""
    room = int(longest * (1 - 0.75 * rng.random() ** 2))
    return (text if rng.random() < 0.75 else chat)(rng, room, count)


def judged(rng: Random, distance: int, count: Count) -> Sample:
    """A test sample: held-out fact, `distance` tokens of other text, question."""
    facts = several(rng, True, 3)
    wanted = facts[0]
    shown = [*rng.sample(facts[1:], 2), wanted]
    taken = {one.subject for one in facts}
    pieces = [one.statement for one in shown] + _fillers(rng, taken, distance, count)
    question = rng.choice(wanted.questions)
    return Sample(
        f"fact {distance} back", (ask("\n".join(pieces) + "\n\n" + question), answer(wanted.answer))
    )
