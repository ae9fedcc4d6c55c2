"""Structured output: text constrained by a JSON schema, a regular expression or a grammar.

A `GrammarSpec` is compiled, off the step loop, into a `CompiledGrammar`. Each sequence has its own
`Matcher`, which advances by the emitted tokens and fills a row of the token mask. There are two
backends: `automaton` (outlines' expressions as DFAs, with the exact number of tokens to the end)
and `llguidance_backend` (llguidance, for everything else). The Rust extension runs the matchers
(`native`) and fills all masks of a step together (`masks`).

Nothing here imports torch, so the compiler process starts in a fraction of a second.
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
