"""Echo and reverse."""

from random import Random

from ..sample import Sample, chat, instance
from . import library, words
from .stories import sentence

_ECHO = (
    "Repeat this: {}",
    "Repeat after me: {}",
    "Echo: {}",
    "Say: {}",
    "Repeat: {}",
    'Repeat the text "{}"',
    'Say "{}".',
    "Say '{}'",
    'Repeat after me: "{}"',
    "Please say: {}",
    "Repeat exactly: {}",
    "Please repeat: {}",
    "Repeat this sentence: {}",
    "Please repeat this text exactly: {}",
    "Copy this: {}",
    "echo {}",
    "Write this again: {}",
    "Repeat the following text.\n{}",
    "Say exactly this: {}",
)
_REVERSE = (
    "Reverse these words: {}",
    "Reverse the order of these words: {}",
    "Reverse: {}",
    "Say these words backwards: {}",
    "Write these words in reverse order: {}",
    "reverse {}",
    "Turn the order of the words around: {}",
)
_REVERSE_LETTERS = (
    "Reverse these letters: {}",
    "Write these letters backwards: {}",
    "Reverse: {}",
)
_MARKS = "!?.,;:-_/()[]{}<>@#$%&*+=~'|\\^"
_RARE = "äöüßéèêàçñøåœπλΩжщя中文日本語한글🙂🚀🌊☕→€£"


def _word(rng: Random) -> str:
    roll = rng.random()
    if roll < 0.3:
        return library.word(rng)
    if roll < 0.5:
        return rng.choice(words.PLAIN_WORDS)
    if roll < 0.75:
        return rng.choice(words.ANIMALS + words.ITEMS + words.FOODS + words.COLOURS + words.JOBS)
    if roll < 0.82:
        return words.name(rng)
    if roll < 0.88:
        return rng.choice(words.NUMBER_WORDS)
    return words.made_up_word(rng)


def _word_list(rng: Random, most: int) -> list[str]:
    make = (lambda rng: rng.choice(words.NUMBER_WORDS)) if rng.random() < 0.06 else _word
    return [make(rng) for _ in range(rng.randint(2, most))]


def _scrap(rng: Random) -> str:
    """Letters, digits, marks and rare characters without sense."""
    pool = rng.choice(
        (
            "0123456789",
            "abcdefghijklmnopqrstuvwxyz",
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
            _MARKS,
            _RARE,
        )
    )
    return "".join(rng.choice(pool) for _ in range(rng.randint(1, 10)))


def _mixed(rng: Random) -> str:
    parts = [_scrap(rng) if rng.random() < 0.4 else _word(rng) for _ in range(rng.randint(1, 8))]
    return " ".join(parts)


def text(rng: Random) -> str:
    """A text to repeat: words, a sentence or two, or scraps."""
    roll = rng.random()
    if roll < 0.08:
        return _word(rng)
    if roll < 0.35:
        return " ".join(_word_list(rng, 14))
    if roll < 0.5:
        made = " ".join(_word_list(rng, 10)).capitalize()
        return made + rng.choice(".!?")
    if roll < 0.7:
        return " ".join(sentence(rng) for _ in range(rng.randint(1, 3)))
    return _mixed(rng)


def echo(rng: Random, held: bool) -> Sample:
    """Repeat a text exactly."""
    body = instance(rng, held, text, str)
    return chat("echo", rng.choice(_ECHO).format(body), body)


def _short_list(rng: Random) -> list[str]:
    return _word_list(rng, 8)


def reverse(rng: Random, held: bool) -> Sample:
    """Words in reverse order, or single letters in reverse order."""
    if rng.random() < 0.2:
        letters = instance(rng, held, _letters, " ".join)
        question = rng.choice(_REVERSE_LETTERS).format(" ".join(letters))
        return chat("reverse", question, " ".join(reversed(letters)))
    body = instance(rng, held, _short_list, " ".join)
    question = rng.choice(_REVERSE).format(" ".join(body))
    return chat("reverse", question, " ".join(reversed(body)))


def _letters(rng: Random) -> list[str]:
    return [rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 8))]


def again(rng: Random, held: bool) -> Sample:
    """A later turn asks for the earlier text once more, as it was or reversed."""
    body = instance(rng, held, _short_list, " ".join)
    plain = " ".join(body)
    first = rng.choice(_ECHO).format(plain)
    if rng.random() < 0.5:
        later = rng.choice(("Say it again.", "Once more, please.", "Repeat that again.", "Again!"))
        return chat("recall", first, plain, later, plain)
    later = rng.choice(("Now reverse it.", "Now backwards.", "Now say the words in reverse order."))
    return chat("recall", first, plain, later, " ".join(reversed(body)))


_COMMON_WORDS = tuple(
    word
    for word in dict.fromkeys(
        words.PLAIN_WORDS
        + words.ANIMALS
        + words.ITEMS
        + words.FOODS
        + words.COLOURS
        + words.JOBS
        + words.NAMES
    )
    if word.isalpha() and 2 < len(word) < 7
)
_SPELL = ("Spell {}.", "Spell the word {}.", "How do you spell {}?", 'Spell "{}".', "spell {}")
_BACKWARDS = (
    "Spell {} backwards.",
    "Write the word {} backwards.",
    "Reverse the letters of {}.",
    'Reverse the letters of "{}".',
    "Reverse the word {}.",
    "What is {} backwards?",
)


def _word_to_spell(rng: Random) -> str:
    """A common word, or, so that spelling is not learned by heart, any word of 3 to 8 letters."""
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(_COMMON_WORDS)
    make = library.word if roll < 0.8 else words.made_up_word
    while not 3 <= len(word := make(rng)) <= 8:
        pass
    return word


def spell(rng: Random, held: bool) -> Sample:
    """The letters of a word."""
    word = _word_to_spell(rng)
    return chat("spell", rng.choice(_SPELL).format(word), " ".join(word))


def letters(rng: Random, held: bool) -> Sample:
    """The letters of a word, forwards and then backwards; the words held out are common ones."""
    make = (lambda rng: rng.choice(_COMMON_WORDS)) if held else _word_to_spell
    word = instance(rng, held, make, str)
    question = rng.choice(_BACKWARDS).format(word)
    return chat("letters", question, f"{' '.join(word)} -> {' '.join(reversed(word))}")
