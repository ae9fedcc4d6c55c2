"""Facts given in the prompt: close by, far back in a long text, and in an earlier turn."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..sample import Sample, Turn, answer, ask, chat, instance
from . import words


@dataclass(frozen=True)
class Fact:
    """One thing to know."""

    # The fact as a sentence.
    statement: str
    # Questions with the same answer.
    questions: tuple[str, ...]
    # The right answer.
    answer: str
    # What it is about; facts in one prompt have different subjects.
    subject: str


def _owned(rng: Random) -> Fact:
    who = words.name(rng)
    kind, value = rng.choice(
        (
            ("favourite colour", rng.choice(words.COLOURS)),
            ("favourite food", rng.choice(words.FOODS)),
            ("favourite animal", rng.choice(words.ANIMALS)),
            ("favourite subject", rng.choice(words.SUBJECTS)),
            ("favourite number", str(rng.randrange(1000))),
            ("birthday", f"{rng.randint(1, 28)} {rng.choice(words.MONTHS)}"),
            ("lucky word", words.made_up_word(rng)),
            ("mother", words.name(rng)),
            ("best friend", words.name(rng)),
        )
    )
    if rng.random() < 0.3:
        kind = kind.replace("favourite", "favorite")
    said = f"{who}'s {kind} is {value}."
    return Fact(
        said,
        (f"What is {who}'s {kind}?", f"Tell me {who}'s {kind}.")
        if kind not in ("mother", "best friend")
        else (f"Who is {who}'s {kind}?",),
        said,
        f"{who} {kind}",
    )


def _home(rng: Random) -> Fact:
    who, where = words.name(rng), words.city(rng)
    said = f"{who} lives in {where}."
    return Fact(
        said, (f"Where does {who} live?", f"In which city does {who} live?"), said, f"{who} home"
    )


def _job(rng: Random) -> Fact:
    who, job = words.name(rng), rng.choice(words.JOBS)
    said = f"{who} works as {words.article(job)}."
    return Fact(said, (f"What is {who}'s job?", f"What does {who} work as?"), said, f"{who} job")


def _pet(rng: Random) -> Fact:
    who, animal, pet = words.name(rng), rng.choice(words.ANIMALS), words.name(rng)
    said = f"{who} has {words.article(animal)} called {pet}."
    asked = (f"What is {who}'s {animal} called?", f"What is the name of {who}'s {animal}?")
    return Fact(said, asked, f"{who}'s {animal} is called {pet}.", f"{who} {animal}")


def _place(rng: Random) -> Fact:
    item = f"{rng.choice(words.COLOURS)} {rng.choice(words.ITEMS)}"
    where = rng.choice(words.SPOTS) if rng.random() < 0.5 else f"in the {rng.choice(words.ROOMS)}"
    said = f"The {item} is {where}."
    return Fact(said, (f"Where is the {item}?", f"Where can I find the {item}?"), said, item)


def _code(rng: Random) -> Fact:
    what = rng.choice(("code", "number", "secret code", "magic number", "password", "access code"))
    of = f"the {rng.choice(words.ROOMS + words.ITEMS)}"
    value = words.made_up_word(rng) if what == "password" else words.code(rng)
    preposition = rng.choice(("for", "of"))
    said = f"The {what} {preposition} {of} is {value}."
    return Fact(said, (f"What is the {what} {preposition} {of}?",), said, f"{what} {of}")


def _secret(rng: Random) -> Fact:
    what = rng.choice(
        ("secret word", "code word", "password", "magic word", "secret number", "pin code")
    )
    value = (
        words.code(rng)
        if what in ("secret number", "pin code")
        else rng.choice(
            (words.made_up_word(rng), rng.choice(words.PLAIN_WORDS), rng.choice(words.ITEMS))
        )
    )
    said = f"The {what} is {value}."
    return Fact(said, (f"What is the {what}?", f"What was the {what}?"), said, what)


def _train(rng: Random) -> Fact:
    to, time = words.city(rng), words.clock(rng)
    vehicle = rng.choice(("train", "bus", "boat", "plane"))
    said = f"The {vehicle} to {to} leaves at {time}."
    return Fact(said, (f"When does the {vehicle} to {to} leave?",), said, f"{vehicle} {to}")


def _price(rng: Random) -> Fact:
    item, price = rng.choice(words.ITEMS), rng.randint(2, 400)
    said = f"The {item} costs {price} coins."
    return Fact(
        said,
        (f"How much does the {item} cost?", f"What does the {item} cost?"),
        said,
        f"price {item}",
    )


def _age(rng: Random) -> Fact:
    who, age = words.name(rng), rng.randint(3, 99)
    said = f"{who} is {age} years old."
    return Fact(said, (f"How old is {who}?", f"What is {who}'s age?"), said, f"{who} age")


def _attribute(rng: Random) -> Fact:
    noun = rng.choice(words.PLAIN_WORDS)
    owner = rng.choice((words.name(rng), words.city(rng), f"the {rng.choice(words.ITEMS)}"))
    value = rng.choice((words.made_up_word(rng), words.code(rng), rng.choice(words.PLAIN_WORDS)))
    said = f"The {noun} of {owner} is {value}."
    return Fact(said, (f"What is the {noun} of {owner}?",), said, f"{noun} {owner}")


def _mine(rng: Random) -> Fact:
    noun = rng.choice(words.ITEMS + words.ANIMALS)
    value = rng.choice((words.name(rng), rng.choice(words.COLOURS)))
    verb = "is called" if value[0].isupper() else "is"
    asked = f"What is my {noun} called?" if value[0].isupper() else f"What colour is my {noun}?"
    return Fact(
        f"My {noun} {verb} {value}.", (asked,), f"Your {noun} {verb} {value}.", f"my {noun}"
    )


_MAKERS: tuple[Callable[[Random], Fact], ...] = (
    *(_owned, _owned, _home, _job, _pet, _place, _place, _code),
    *(_secret, _train, _price, _age, _attribute, _attribute, _mine),
)


def any_fact(rng: Random) -> Fact:
    """A fact of either split."""
    return rng.choice(_MAKERS)(rng)


def fact(rng: Random, held: bool) -> Fact:
    """A fact of the wanted split."""
    return instance(rng, held, any_fact, lambda made: made.statement)


def several(rng: Random, held: bool, count: int) -> list[Fact]:
    """Facts with different subjects; the first is of the wanted split, the others of any."""
    found = [fact(rng, held)]
    subjects = {found[0].subject}
    while len(found) < count:
        made = fact(rng, False)
        if made.subject not in subjects:
            subjects.add(made.subject)
            found.append(made)
    return found


_INTRODUCTIONS = (
    "",
    "",
    "Here are some facts. ",
    "Facts: ",
    "Read this: ",
    "Some things to know:\n",
    "Note: ",
    "Context: ",
    "Use these facts to answer. ",
    "Remember this. ",
)


def sample(rng: Random, held: bool) -> Sample:
    """Several facts and a question about one of them, in one turn, a system turn or two turns."""
    facts = several(rng, held, rng.randint(1, 8))
    wanted = facts[0]
    shown = rng.sample(facts, len(facts))
    text = rng.choice((" ", " ", "\n", "\n- ")).join(one.statement for one in shown)
    question = rng.choice(wanted.questions)
    intro = rng.choice(_INTRODUCTIONS)
    roll = rng.random()
    if roll < 0.6:
        mark = rng.choice((" ", "\n", "\n\n", " Question: ", "\nQuestion: "))
        return chat("facts", intro + text + mark + question, wanted.answer)
    if roll < 0.8:
        return chat("facts", question, wanted.answer, system=intro + text)
    return chat("facts", intro + text, rng.choice(NOTED), question, wanted.answer)


NOTED = ("I will remember that.", "Thank you, I will remember.", "Noted.")


def questions(rng: Random, facts: list[Fact]) -> list[Turn]:
    """Question and answer turns about each fact, in random order."""
    turns = []
    for one in rng.sample(facts, len(facts)):
        turns += [ask(rng.choice(one.questions)), answer(one.answer)]
    return turns
