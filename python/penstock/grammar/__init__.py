"""Structured output: answers that keep to a JSON schema, a regular expression or a grammar.

A `GrammarSpec` text is compiled, off the step loop, into a `CompiledGrammar`; each sequence
follows it
with a `Matcher` of its own, which is advanced by the tokens that were emitted and fills a row of
the
token mask. Two backends: `automaton` (outlines' expressions as tables, exact about how many tokens
a document still needs) and `llguidance_backend` (llguidance, for what no table can say). What they
make is followed by the extension (`native`), and all sequences of a step together (`masks`).

Nothing here imports torch: the process that compiles starts in a fraction of a second.
"""

from penstock.grammar.protocol import (
    CompiledGrammar,
    EndConditions,
    GrammarKind,
    GrammarRejected,
    GrammarSpec,
    Matcher,
    Reasoning,
    words,
)

__all__ = [
    "CompiledGrammar",
    "EndConditions",
    "GrammarKind",
    "GrammarRejected",
    "GrammarSpec",
    "Matcher",
    "Reasoning",
    "words",
]
