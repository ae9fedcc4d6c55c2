# ruff: noqa: RUF001 (tables of words and phrases read best as they are)
"""Sums, differences, small products, small word problems, and counting."""

from random import Random

from ..sample import Sample, chat, instance
from .words import FOODS, THINGS, name

Problem = tuple[int, str, int]

_FORMS = {
    "+": (
        "What is {a} + {b}?",
        "{a} + {b}",
        "{a}+{b}",
        "{a}+{b}=",
        "{a} + {b} = ?",
        "Add {a} and {b}.",
        "How much is {a} plus {b}?",
        "What is {a}+{b}?",
        "What is the sum of {a} and {b}?",
        "Compute {a} + {b}.",
        "Calculate {a} + {b}",
        "{a} plus {b}",
        "what's {a} + {b}",
    ),
    "-": (
        "What is {a} - {b}?",
        "{a} - {b}",
        "{a}-{b}",
        "{a}-{b}=",
        "{a} - {b} = ?",
        "Subtract {b} from {a}.",
        "How much is {a} minus {b}?",
        "What is {a}-{b}?",
        "What is the difference {a} - {b}?",
        "Compute {a} - {b}.",
        "Calculate {a} - {b}",
        "{a} minus {b}",
        "what's {a} - {b}",
    ),
    "*": (
        "What is {a} * {b}?",
        "{a} * {b}",
        "{a}*{b}",
        "{a} x {b}",
        "{a} × {b}",
        "{a} * {b} = ?",
        "Multiply {a} by {b}.",
        "How much is {a} times {b}?",
        "What is {a} times {b}?",
        "Compute {a} * {b}.",
        "Calculate {a} * {b}",
        "{a} times {b}",
        "what's {a} times {b}",
    ),
}
_SHARES = ("+",) * 4 + ("-",) * 4 + ("*",) * 4
_HELD_SHARES = ("+",) * 2 + ("-",) * 2 + ("*",)


def solve(problem: Problem) -> int:
    """The right result."""
    a, operation, b = problem
    return {"+": a + b, "-": a - b, "*": a * b}[operation]


def equation(problem: Problem) -> str:
    """The answer as the model writes it."""
    a, operation, b = problem
    return f"{a} {operation} {b} = {solve(problem)}"


def _number(rng: Random, digits: int) -> int:
    return rng.randrange(10 ** rng.randint(1, digits))


def _product(rng: Random) -> tuple[int, int]:
    a = _number(rng, 2)
    b = rng.randrange(13 if a <= 12 else 10)
    return (a, b) if rng.random() < 0.6 else (b, a)


def _key(problem: Problem) -> str:
    a, operation, b = problem
    if operation != "-":
        a, b = sorted((a, b))
    return f"{a}{operation}{b}"


def _problem(rng: Random, held: bool, operation: str, digits: int = 3) -> Problem:
    def make(rng: Random) -> Problem:
        if operation == "*":
            a, b = _product(rng)
        else:
            a, b = _number(rng, digits), _number(rng, digits)
            if operation == "-" and a < b and rng.random() < 0.7:
                a, b = b, a
        return a, operation, b

    return instance(rng, held, make, _key)


def sample(rng: Random, held: bool) -> Sample:
    """One question with one result."""
    operation = rng.choice(_HELD_SHARES if held else _SHARES)
    problem = _problem(rng, held, operation)
    a, _, b = problem
    question = rng.choice(_FORMS[operation]).format(a=a, b=b)
    return chat("arithmetic", question, equation(problem))


def follow_up(rng: Random, held: bool) -> Sample:
    """A later turn goes on with the earlier result."""
    first = _problem(rng, False, rng.choice("+-"), 2)
    result = solve(first)
    if result < 0:
        first = (first[2], "-", first[0])
        result = -result

    def make(rng: Random) -> Problem:
        b, operation = _number(rng, 2), rng.choice("+-")
        return result, operation, b

    second = instance(rng, held, make, _key)
    operation, b = second[1:]
    forms = {
        "+": ("Now add {b}.", "Add {b} to that.", "And plus {b}?", "plus {b}?"),
        "-": ("Now subtract {b}.", "Take {b} away from that.", "And minus {b}?", "minus {b}?"),
    }
    question = rng.choice(_FORMS[first[1]]).format(a=first[0], b=first[2])
    later = rng.choice(forms[operation]).format(b=b)
    return chat("recall", question, equation(first), later, equation(second))


def word_problem(rng: Random, held: bool) -> Sample:
    """A person gains or gives away things."""
    operation = rng.choice("+-")
    a, _, b = _problem(rng, held, operation, 2)
    if operation == "-" and a < b:
        a, b = b, a
    things, who = rng.choice(FOODS + THINGS), name(rng)
    if operation == "+":
        verb = rng.choice(("buys", "finds", "gets", "picks up"))
        question = f"{who} has {a} {things} and {verb} {b} more."
    else:
        verb = rng.choice(("gives away", "loses", "sells"))
        question = f"{who} has {a} {things} and {verb} {b}."
    question += f" How many {things} does {who} have now?"
    result = solve((a, operation, b))
    if result == 1:
        return word_problem(rng, held)
    return chat(
        "arithmetic", question, f"{a} {operation} {b} = {result}. {who} has {result} {things}."
    )


def counting(rng: Random, held: bool) -> Sample:
    """Counting up or down over a short range."""

    def make(rng: Random) -> tuple[int, int]:
        first = rng.randrange(100) if rng.random() < 0.6 else 1
        return first, first + (rng.randint(2, 20) if rng.random() < 0.9 else rng.randint(20, 99))

    first, last = instance(rng, held, make, lambda pair: f"count {pair[0]} {pair[1]}")
    form = rng.choice(
        ("Count from {} to {}.", "count from {} to {}", "List the numbers from {} to {}.")
    )
    if first == 1 and rng.random() < 0.5:
        form = "Count to {1}."
    numbers = ", ".join(str(number) for number in range(first, last + 1))
    return chat("counting", form.format(first, last), numbers)


def order(rng: Random, held: bool) -> Sample:
    """Which of two numbers is larger or smaller, or a few numbers in order."""
    count = rng.choice((2, 2, 3, 4, 5, 6))
    digits = rng.choice((2, 3))

    def make(rng: Random) -> list[int]:
        return rng.sample(range(10**digits), count)

    numbers = instance(rng, held, make, lambda made: f"order {made}")
    if count == 2:
        larger = rng.random() < 0.6
        word = "larger" if larger else "smaller"
        form = rng.choice(("Which is {}, {} or {}?", "Which number is {}: {} or {}?"))
        wanted = max(numbers) if larger else min(numbers)
        return chat("order", form.format(word, *numbers), f"{wanted} is {word}.")
    shown = rng.choice((" ", ", ")).join(str(number) for number in numbers)
    form = rng.choice(("Sort these numbers: {}", "Sort: {}", "Put these numbers in order: {}"))
    return chat("order", form.format(shown), ", ".join(str(number) for number in sorted(numbers)))
