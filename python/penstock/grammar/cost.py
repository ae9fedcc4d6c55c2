"""Estimates the cost of compiling a regular expression."""

from __future__ import annotations

import re

# Estimated states from which on a compilation is costly. A state takes 40 us of CPU time, so one
# with fewer takes a tenth of a second, unless its alternatives multiply.
COSTLY_STATES = 2_500
# States for the characters of UTF-8, and for those of a property such as \w.
WIDE, PROPERTY = 11, 300
MOST = 1 << 40  # cap of the estimate
REPETITION = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def states(regex: str) -> int:
    """Estimates the states of an expression with its bounded repetitions expanded: 300 for
    `(ab{2}){100}`. Less accurate for overlapping alternatives."""
    sizes, last, at = [0], 0, 0  # of the open groups; of the element before a repetition
    while at < len(regex):
        character = regex[at]
        repetition = REPETITION.match(regex, at)
        if repetition:
            least, most = repetition.groups()
            times = int((most or least)[:12])
            sizes[-1] = min(MOST, sizes[-1] + last * max(times - 1, 0))
            last, at = 0, repetition.end()
            continue
        at += 1
        if character == "(":
            sizes.append(0)
            last = 0
        elif character == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] = min(MOST, sizes[-1] + last)
        elif character not in "|*+?^$)":
            begun = at
            if character == "\\":
                at = _after_escape(regex, at)
            elif character == "[":
                at = _after_class(regex, at)
            last = _width(character, regex[begun:at])
            sizes[-1] += last
    return min(MOST, sum(sizes))


def is_costly(regex: str) -> bool:
    """Whether compilation takes long, judged by the repetitions: a plain list of words compiles
    quickly."""
    return states(regex) > COSTLY_STATES + len(regex)


def _width(character: str, rest: str) -> int:
    """Estimates the states of an element that begins with `character` and ends with `rest`."""
    escaped = character == "\\"
    if escaped and rest[:1] in set("wWpP"):
        return PROPERTY
    of_class = character == "[" and (rest.startswith("^") or not rest.isascii() or "\\" in rest)
    wide = (escaped and rest[:1] in set("dDsS")) or character == "." or not character.isascii()
    return WIDE if wide or of_class else 1


def _after_escape(regex: str, at: int) -> int:
    """Returns the index after an escape: `\\p{L}` and `\\x{41}` are one position, too."""
    if regex[at : at + 2] in ("p{", "P{", "x{", "u{", "U{"):
        end = regex.find("}", at)
        return len(regex) if end < 0 else end + 1
    return at + 1


def _after_class(regex: str, at: int) -> int:
    """Returns the index after a class whose bracket has been read; classes may be nested."""
    depth, first = 1, at
    if regex[at : at + 1] == "^":
        first = at = at + 1
    while at < len(regex) and depth:
        character = regex[at]
        if character == "\\":
            at += 1
        elif character == "[":
            depth += 1
        elif character == "]" and at > first:
            depth -= 1
        at += 1
    return at
