# ruff: noqa: SIM905 (tables of words and phrases read best as they are)
"""JSON extraction: a sentence, the wanted fields, and the answer as compact JSON."""

from random import Random

from ..sample import Sample, chat, compact, instance
from . import words

Record = dict[str, str | int]

# Each scene: the sentences that carry its fields, and how each field is made.
_SCENES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("name", "age", "city"),
        (
            "{name} is {age} years old and lives in {city}.",
            "{name}, aged {age}, comes from {city}.",
            "My friend {name} from {city} is {age} years old.",
            "In {city} lives {name}, who is {age}.",
            "{name} ({age}) has lived in {city} for many years.",
        ),
    ),
    (
        ("name", "job", "city"),
        (
            "{name} works as a {job} in {city}.",
            "{name} from {city} is a {job}.",
            "The {job} {name} lives in {city}.",
            "In {city}, {name} has found work as a {job}.",
        ),
    ),
    (
        ("name", "age", "job"),
        (
            "{name} is a {job} and {age} years old.",
            "The {age}-year-old {job} is called {name}.",
            "At {age}, {name} became a {job}.",
        ),
    ),
    (
        ("name", "item", "price"),
        (
            "{name} bought a {item} for {price} euros.",
            "{name} paid {price} euros for a {item}.",
            "For {price} euros, {name} got a {item}.",
            "{name} sold a {item} for {price} euros.",
        ),
    ),
    (
        ("name", "item", "quantity"),
        (
            "{name} ordered {quantity} {items}.",
            "{name} would like to have {quantity} {items}, please.",
            "Please send {quantity} {items} to {name}.",
            "An order came in from {name}: {quantity} {items}.",
        ),
    ),
    (
        ("name", "city", "day"),
        (
            "{name} travels to {city} on {day}.",
            "On {day}, {name} will fly to {city}.",
            "{name} has a meeting in {city} on {day}.",
        ),
    ),
    (
        ("animal", "name", "colour"),
        (
            "We have a {colour} {animal} called {name}.",
            "The {animal} {name} is {colour}.",
            "{name} is a {colour} {animal}.",
        ),
    ),
    (
        ("name", "age", "city", "job"),
        (
            "{name} is {age} years old, lives in {city} and works as a {job}.",
            "{name}, a {age}-year-old {job}, lives in {city}.",
            "The {job} {name} from {city} turned {age} last week.",
        ),
    ),
    (
        ("event", "day", "time", "city"),
        (
            "The {event} in {city} starts on {day} at {time}.",
            "Come to the {event} on {day} at {time} in {city}!",
            "On {day} at {time} there is a {event} in {city}.",
        ),
    ),
)  # fmt: skip
_EVENTS = "concert meeting party market lecture wedding match festival exhibition workshop".split()
_EXTRA = (
    "The weather was fine.", "It was a long day.", "Everybody was happy.", "That is all we know.",
    "The news came this morning.", "It had rained all week.", "Nobody had expected that.",
)  # fmt: skip
_FORMS = (
    "Extract the {fields} as JSON: {text}",
    "Extract {fields} as JSON from this sentence: {text}",
    "Give me the {fields} as JSON.\n{text}",
    "{text}\nExtract the {fields} as JSON.",
    "Read this and answer with JSON with the keys {fields}.\n{text}",
    "Turn this into JSON with {fields}: {text}",
    "{text} Write the {fields} as JSON.",
    "Extract JSON ({fields}): {text}",
    "Return a JSON object with the fields {fields}. Text: {text}",
    "Extract the {fields}.\n\nText: {text}\n\nJSON:",
)


def _record(rng: Random) -> Record:
    return {
        "name": words.name(rng),
        "age": rng.randint(2, 99),
        "city": words.city(rng),
        "job": rng.choice(words.JOBS),
        "item": rng.choice(words.FOODS) if rng.random() < 0.5 else rng.choice(words.ITEMS),
        "price": rng.randint(1, 999),
        "quantity": rng.randint(2, 99),
        "day": rng.choice(words.WEEKDAYS),
        "time": words.clock(rng),
        "animal": rng.choice(words.ANIMALS),
        "colour": rng.choice(words.COLOURS),
        "event": rng.choice(_EVENTS),
    }


def _scene(rng: Random) -> tuple[str, Record]:
    fields, sentences = rng.choice(_SCENES)
    record = _record(rng)
    if "quantity" in fields:
        record["item"] = rng.choice(words.FOODS + words.THINGS)
    text = rng.choice(sentences).format(items=record["item"], **record)
    if rng.random() < 0.25:
        extra = rng.choice(_EXTRA)
        text = f"{text} {extra}" if rng.random() < 0.5 else f"{extra} {text}"
    return text, {field: record[field] for field in fields}


_LISTS = (
    ("animals", words.ANIMALS, "In the field there are {}."),
    ("items", words.ITEMS, "On the table there are {}."),
    ("colours", words.COLOURS, "The flag is {}."),
    ("foods", words.FOODS, "Please buy {}."),
    ("cities", words.CITIES, "We travelled to {}."),
    ("names", words.NAMES, "{} came to the party."),
)


def several(rng: Random, held: bool) -> Sample:
    """A sentence with several things of a sort, and the JSON list of them."""
    field, pool, sentence = rng.choice(_LISTS)

    def make(rng: Random) -> list[str]:
        return rng.sample(pool, rng.randint(2, 5))

    found = instance(rng, held, make, " ".join)
    text = sentence.format(words.listing(found))
    question = rng.choice(_FORMS).format(fields=field, text=text)
    return chat("json", question, compact({field: found}))


def sample(rng: Random, held: bool) -> Sample:
    """A sentence and the fields to take out of it, in the order in which they are asked for."""
    text, record = instance(rng, held, _scene, lambda scene: scene[0])
    fields = list(record)
    if rng.random() < 0.4:
        fields = rng.sample(fields, rng.randint(1, len(fields)))
    named = words.listing(fields) if rng.random() < 0.7 else ", ".join(fields)
    question = rng.choice(_FORMS).format(fields=named, text=text)
    system = (
        rng.choice(("You answer with JSON only.", "Answer in JSON.")) if rng.random() < 0.1 else ""
    )
    return chat(
        "json", question, compact({field: record[field] for field in fields}), system=system
    )
