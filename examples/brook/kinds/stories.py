# ruff: noqa: E501 (tables of words and phrases read best as they are)
"""Short stories from the small world along the brook."""

from dataclasses import dataclass, replace
from random import Random

from ..sample import Sample, Turn, answer, ask
from . import words
from .story_plots import ENDINGS, MORALS, PLOTS, SCENES
from .story_world import ADJECTIVES, CAST, HOMES, LOOKS, PLACES, STRANGERS, THINGS, Character

_ASK_ANY = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "Can you tell me a story?",
    "A story, please.",
    "Tell me a bedtime story.",
    "Please write a short story.",
    "story",
    "Once upon a time",
    "I would like to hear a story.",
    "Write a short story for children.",
)
_ASK_ONE = (
    "Tell me a story about {a}.",
    "Write a story about {a}.",
    "Tell me a short story about {a}.",
    "Can you tell me a story about {a}?",
    "a story about {a}",
    "Write a short story about {a}.",
    "I want a story about {a}, please.",
    "Tell a story with {a} in it.",
)
_ASK_TWO = (
    "Tell me a story about {a} and {b}.",
    "Write a story about {a} and {b}.",
    "Tell me a short story about {a} and {b}.",
    "a story about {a} and {b}",
    "Can you write a story with {a} and {b}?",
    "Write a short story about {a} and {b}.",
    "Tell me a story with {a} and {b} in it.",
    "Story: {a} and {b}",
)
_OPENINGS = (
    "Once upon a time, {hero.looks} lived {hero.home}. {His} name was {hero.name}, and {he} was very {hero.nature}.",
    "Once upon a time there was {a_hero} called {hero.name}. {He} lived {hero.home}.",
    "Once upon a time, {hero.looks} called {hero.name} lived {hero.home}.",
    "By the brook lived {a_hero} called {hero.name}. Everyone knew that {hero.name} was {hero.nature}.",
    "{hero.name} was {hero.looks}. {He} lived {hero.home}, and {he} was the most {hero.nature} {hero.species} of all.",
    "There was once {a_hero} whose name was {hero.name}. {His} home was {hero.home}.",
)


@dataclass(frozen=True)
class Story:
    """A story and what it is about."""

    # The whole text, in one paragraph.
    text: str
    # Who it is about.
    hero: Character
    # Who helps.
    friend: Character
    # The thing in it.
    thing: str


def _fields(hero: Character, friend: Character, thing: str, rng: Random) -> dict[str, object]:
    sort = THINGS.get(thing, "treasure")
    his = "his" if hero.pronoun == "he" else "her"
    full = f"{rng.choice(ADJECTIVES[sort])} {thing}"
    return {
        "hero": hero, "friend": friend, "thing": thing, "full": full, "a_full": words.article(full),
        "a_hero": words.article(hero.species), "a_friend": words.article(friend.species),
        "he": hero.pronoun, "He": hero.pronoun.capitalize(), "his": his, "His": his.capitalize(),
        "him": "him" if hero.pronoun == "he" else "her",
        "fhe": friend.pronoun, "FHe": friend.pronoun.capitalize(),
        "fhis": "his" if friend.pronoun == "he" else "her",
        "fhim": "him" if friend.pronoun == "he" else "her",
        "place": rng.choice(PLACES), "other": rng.choice(PLACES),
    }  # fmt: skip


def tell(rng: Random, hero: Character | None = None, thing: str = "") -> Story:
    """Make a story, with this hero and this thing if they are given."""
    hero = hero or rng.choice(CAST)
    friend = rng.choice([one for one in CAST if one is not hero])
    thing = thing or rng.choice(list(THINGS))
    fields = _fields(hero, friend, thing, rng)
    while fields["other"] == fields["place"]:
        fields["other"] = rng.choice(PLACES)
    plot = rng.choice(PLOTS[THINGS.get(thing, "treasure")])
    beats = [_OPENINGS, SCENES, *plot, ENDINGS]
    if rng.random() < 0.3:
        beats.append(MORALS)
    text = " ".join(rng.choice(beat) for beat in beats).format(**fields)
    return Story(text, hero, friend, thing)


def sentence(rng: Random) -> str:
    """One sentence out of a story."""
    return rng.choice(tell(rng).text.split(". ")).rstrip(".") + "."


def stranger(rng: Random) -> Character:
    """Someone who does not live along the brook."""
    species = rng.choice(words.ANIMALS + list(STRANGERS))
    looks = f"{words.article(rng.choice(LOOKS))} {species}"
    natures = [one.nature for one in CAST]
    return Character(
        species,
        words.name(rng),
        looks,
        rng.choice(natures),
        rng.choice(("he", "she")),
        rng.choice(HOMES),
    )


def _request(rng: Random) -> tuple[str, Story]:
    roll = rng.random()
    if roll < 0.2:
        return rng.choice(_ASK_ANY), tell(rng)
    if roll < 0.35:
        hero = (
            stranger(rng) if rng.random() < 0.5 else replace(rng.choice(CAST), name=words.name(rng))
        )
        story = tell(rng, hero, rng.choice(("", rng.choice(words.ITEMS))))
        called = f"{words.article(hero.species)} {rng.choice(('called', 'named'))} {hero.name}"
        if rng.random() < 0.4:
            return rng.choice(_ASK_TWO).format(a=called, b=words.article(story.thing)), story
        return rng.choice(_ASK_ONE).format(a=called), story
    outside = rng.random() < 0.3
    story = tell(rng, None, rng.choice(words.ITEMS) if outside else "")
    if rng.random() < 0.2:
        story = tell(rng, stranger(rng), story.thing)
    roll = rng.random()
    who, what = words.article(story.hero.species), words.article(story.thing)
    if roll < 0.1:
        return rng.choice(_ASK_ONE).format(a=what), story
    if roll < 0.25:
        return rng.choice(_ASK_ONE).format(a=who), story
    if roll < 0.35:
        return rng.choice(_ASK_ONE).format(a=f"{story.hero.name} the {story.hero.species}"), story
    first, second = (who, what) if rng.random() < 0.7 else (what, who)
    return rng.choice(_ASK_TWO).format(a=first, b=second), story


def sample(rng: Random, held: bool) -> Sample:
    """A story on request; at times a question about it follows."""
    request, story = _request(rng)
    turns = [ask(request), answer(story.text)]
    roll = rng.random()
    if roll < 0.1:
        question = rng.choice(("Who is the story about?", "Who was that story about?"))
        reply = f"It is about {story.hero.name} the {story.hero.species}."
        turns += [ask(question), answer(reply)]
    elif roll < 0.2:
        question = rng.choice(("Who helped?", "Who was the friend in the story?"))
        reply = f"{story.friend.name} the {story.friend.species}."
        turns += [ask(question), answer(reply)]
    elif roll < 0.3:
        more = rng.choice(
            ("Another one, please.", "Tell me another story.", "One more!", "Another!")
        )
        turns += [ask(more), answer(tell(rng).text)]
    return Sample("story", tuple(turns))


def plain(rng: Random, held: bool) -> Sample:
    """One story or several, as plain text."""
    count = rng.choice((1, 1, 1, 2, 3))
    return Sample("plain", text="\n\n".join(tell(rng).text for _ in range(count)))


def reading(rng: Random) -> Turn:
    """A user's turn that holds a story: something to read past in long samples."""
    return Turn("user", tell(rng).text, trained=True)
