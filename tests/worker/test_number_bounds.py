"""Bounds of numbers, compared with exact decimal arithmetic."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from decimal import Decimal, localcontext

import numpy as np
import pytest
from penstock.grammar import growth
from penstock.grammar.compile import Compiler
from penstock.grammar.protocol import CompiledGrammar, EndConditions
from test_grammars import EOS
from test_keywords import compile_schema, document
from test_tool_call_grammars import compiler

__all__ = ["compiler"]
Bounds = dict[str, float]
MOST_ZEROS = 80  # that a spelling of a number may need at its end
CASES: list[Bounds] = [
    {"exclusiveMinimum": 0, "exclusiveMaximum": 0.01},
    {"exclusiveMinimum": 0, "maximum": 0.5},
    {"exclusiveMinimum": 0.0, "minimum": 0, "exclusiveMaximum": 1e-70},
    {"exclusiveMinimum": 7, "maximum": 7.5},
    {"exclusiveMinimum": 100, "exclusiveMaximum": 100.25},
    {"exclusiveMinimum": 8796093022208, "maximum": 8796093022208.5},
    {"exclusiveMinimum": -7.5, "exclusiveMaximum": -7},
    {"exclusiveMinimum": -0.5, "exclusiveMaximum": 0},
    {"minimum": -0.5, "exclusiveMaximum": -0.0},
    {"minimum": -1e-9, "exclusiveMaximum": 0},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 1.5},
    {"exclusiveMinimum": -0.5, "exclusiveMaximum": 0.5},
    {"minimum": 7, "maximum": 7.5},
    {"exclusiveMinimum": 7},
    {"exclusiveMaximum": 0},
]


def drawn(seed: int) -> Bounds:
    """Bounds at random, often whole and close to each other."""
    draw = random.Random(seed)
    whole = draw.choice((0, 0, 0, 1, 7, 10, 99, 100, 1234))
    exponent = draw.choice((1, 2, 3, 4, 9))
    digits = draw.randint(1, 9 if exponent == 1 else 12)
    fraction = min(digits * 10.0**-exponent, 0.9)
    near = whole + draw.choice((0, 0, 0, fraction / 2))
    ends = [near, draw.choice((whole + fraction, whole + fraction, whole + 1, whole + 2.5))]
    if draw.random() < 0.5:
        ends = [-end for end in reversed(ends)]
    if draw.random() < 0.1 and ends[1]:
        ends[0] = -ends[1]
    low, high = sorted(float(f"{end:.15g}") for end in ends)  # llguidance rounds more digits
    lower, upper = draw.choice(("m", "exclusiveM")), draw.choice(("m", "exclusiveM"))
    bounds = {f"{lower}inimum": low, f"{upper}aximum": high}
    if draw.random() < 0.1:
        bounds.popitem()
    return bounds


def holds(bounds: Bounds, value: Decimal) -> bool:
    signs = {"minimum": (0, 1), "maximum": (0, -1)}
    signs |= {"exclusiveMinimum": (1,), "exclusiveMaximum": (-1,)}
    return all(value.compare(Decimal(repr(end))) in signs[key] for key, end in bounds.items())


def texts(bounds: Bounds, draw: random.Random) -> Iterator[str]:
    """Numbers at the bounds, close to them and between them."""
    ends = [Decimal(repr(end)) for end in bounds.values()]
    steps = [Decimal(10) ** -draw.randint(1, 30) * draw.randint(1, 99) for _ in range(8)]
    steps += [Decimal(1).scaleb(-place) for place in (1, 2, 3, 12, 15, 16, 17, 40, 63)]
    values = [Decimal(0), *ends, *(Decimal(math.floor(end)) for end in ends)]
    values += [end + sign * step for end in ends for step in steps for sign in (1, -1)]
    for end in bounds.values():
        values += [Decimal(repr(math.nextafter(end, way))) for way in (math.inf, -math.inf)]
    for _ in range(12):
        share = Decimal(draw.randint(0, 999)) / 1000
        values.append(min(ends) + (max(ends) - min(ends)) * share)
    for value in values:
        text = f"{value:f}"
        yield text
        yield text + ("00" if "." in text else ".00")
    yield from ("-0", "-0.0", "0.000")


def is_possible(made: CompiledGrammar, text: str) -> bool:
    return made.start(EndConditions((EOS[0], EOS[1]), 10_000), text.encode()).is_accepting


def spellings(text: str) -> Iterator[str]:
    """The number without zeros at its end, and with some."""
    digits = f"{Decimal(text).normalize() + 0:f}"
    yield digits
    digits += "" if "." in digits else "."
    yield from (digits + "0" * zeros for zeros in range(MOST_ZEROS))


def is_needed(text: str, bounds: Bounds) -> bool:
    """Whether a valid number must be possible: one of 15 digits, except close to 0."""
    value = Decimal(text).normalize()
    tiny = 0 in bounds.values() and 0 < abs(value) < Decimal("1e-64")
    return len(value.as_tuple().digits) <= 15 and not tiny


def check(compiler: Compiler, bounds: Bounds, seed: int) -> None:
    made = compile_schema(compiler, {"type": "number", **bounds})
    for text in texts(bounds, random.Random(seed)):
        if holds(bounds, Decimal(text)):
            if is_needed(text, bounds):
                assert any(is_possible(made, s) for s in spellings(text)), (bounds, text)
        else:
            assert not is_possible(made, text), (bounds, text)
    draw = np.random.default_rng(seed)
    for more in (0, 2, 5, 90):
        found = document(made, compiler, made.shortest + more, draw).decode()
        assert holds(bounds, Decimal(found)), (bounds, found)


@pytest.mark.parametrize("bounds", CASES, ids=str)
def test_numbers_keep_to_bounds(compiler: Compiler, bounds: Bounds) -> None:
    with localcontext(prec=400):
        check(compiler, bounds, 3)


@pytest.mark.parametrize("part", range(8))
def test_numbers_keep_to_random_bounds(compiler: Compiler, part: int) -> None:
    with localcontext(prec=400):
        for seed in range(part * 50, part * 50 + 50):
            check(compiler, drawn(seed), seed)


def test_zeros_of_the_nearer_bound_reserve_no_tokens(compiler: Compiler) -> None:
    """Such a number may end soon after any of its zeros."""
    bounds = {"minimum": 1e-64, "exclusiveMaximum": 0.01}
    each, _ = growth.schema_growth({"type": "number", **bounds}, compiler.vocabulary)
    assert each < 16
