"""All grammars that a worker knows: compiled once, kept while there is room."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.faults import Fault
from penstock.grammar import automaton, llguidance_backend, tool_calls
from penstock.grammar.compiler_pool import CompilerPool
from penstock.grammar.composite import UnionGrammar
from penstock.grammar.fair_queue import Caller
from penstock.grammar.llguidance_backend import LlguidanceGrammar
from penstock.grammar.pending_compilation import PendingCompilation
from penstock.grammar.protocol import (
    CompiledGrammar,
    CompileLimitExceeded,
    CompileQueueFull,
    CompilerUnavailable,
    EndConditions,
    GrammarKind,
    GrammarRejected,
    GrammarSpec,
    Matcher,
)
from penstock.grammar.reasoning import ReasoningGrammar
from penstock.grammar.vocabulary import Vocabulary

MOST_BYTES = 256 << 20  # of compiled grammars
MOST_REJECTIONS = 1024  # remembered, by digest, so that a bad grammar costs once


class GrammarCache:
    """Used by many threads. Nothing happens before the first grammar is asked for.

    ranks: workers of the group, each of which has a library of its own.
    """

    def __init__(self, tokenizer: Path, vocab: int, ranks: int = 1) -> None:
        self._path, self._vocab, self._ranks = tokenizer, vocab, ranks
        self._pool = CompilerPool(tokenizer, vocab)
        self._lock = threading.Lock()
        self._grammars: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._rejections: OrderedDict[bytes, tuple[type[GrammarRejected], str]] = OrderedDict()
        self._pending: dict[GrammarSpec, PendingCompilation] = {}
        self._size = 0
        self._vocabulary: Vocabulary | None = None
        self._loading = threading.Lock()

    def prepare(self, spec: GrammarSpec, most: int, caller: Caller | None = None) -> None:
        """Compiles a grammar unless it is known. `most` is how many tokens the answer may have.
        Raises GrammarRejected, CompilerUnavailable or NoTokenizer; CompilationCancelled once the
        caller has left."""
        grammar = self._grammar(spec, caller)
        if spec.complete and grammar.shortest > most:
            raise GrammarRejected(
                f"the shortest document needs {grammar.shortest} tokens, and the answer may have "
                f"{most}; allow at least {grammar.shortest}"
            )

    def holds(self, spec: GrammarSpec) -> bool:
        """Whether a sequence may follow a grammar now: a step does not wait for one that was
        dropped to be compiled again, unless the other ranks may have kept theirs."""
        with self._lock:
            return spec in self._grammars or self._ranks > 1

    def matcher(self, spec: GrammarSpec, ends: EndConditions, emitted: Sequence[int]) -> Matcher:
        """Where a sequence is after `emitted`. Compiles a grammar that it does not hold."""
        matcher = self._grammar(spec).start(ends)
        for token in emitted:
            matcher.advance(token)
        return matcher

    def agreed(self, fault: Fault) -> bool:
        """Whether every rank comes to this fault: then all leave the sequence out of the step."""
        return self._ranks == 1 or not isinstance(fault, CompileLimitExceeded | CompilerUnavailable)

    def close(self) -> None:
        """Ends the process that compiles; nothing can be compiled any more."""
        self._pool.close()

    def _grammar(self, spec: GrammarSpec, caller: Caller | None = None) -> CompiledGrammar:
        caller = caller or Caller()
        with self._lock:
            found = self._grammars.get(spec)
            if found is not None:
                self._grammars.move_to_end(spec)
                return found
            if self._rejections:
                kind, reason = self._rejections.get(_digest(spec), (None, ""))
                if kind is not None:
                    raise kind(reason)
            pending = self._pending.get(spec)
            mine = pending is None
            if pending is None:
                pending = self._pending[spec] = PendingCompilation(caller.client)
            pending.join()
        if mine:
            # A thread of its own: whoever asked first may leave before others that wait do.
            arguments = spec, pending
            threading.Thread(
                target=self._compile, args=arguments, name="grammar", daemon=True
            ).start()
        return pending.wait(caller, lambda: self._leave(spec, pending))

    def _leave(self, spec: GrammarSpec, pending: PendingCompilation) -> None:
        """One that waited for a grammar has left. Whoever asks for it after the last one begins
        anew."""
        with self._lock:
            last = pending.leave()
            if last and self._pending.get(spec) is pending:
                del self._pending[spec]
        if last:
            pending.caller.cancel()

    def _compile(self, spec: GrammarSpec, pending: PendingCompilation) -> None:
        grammar: CompiledGrammar | None = None
        error: BaseException | None = None
        try:
            grammar = self._made(spec, pending.caller)
        except BaseException as raised:
            error = raised
        with self._lock:
            if self._pending.get(spec) is pending:
                del self._pending[spec]
            if grammar is not None:
                self._keep(spec, grammar)
            elif isinstance(error, GrammarRejected) and not isinstance(error, CompileQueueFull):
                self._rejections[_digest(spec)] = type(error), str(error)
                while len(self._rejections) > MOST_REJECTIONS:
                    self._rejections.popitem(last=False)
        pending.end(grammar, error)

    def _keep(self, spec: GrammarSpec, grammar: CompiledGrammar) -> None:
        before = self._grammars.pop(spec, None)
        if before is not None:
            self._size -= before.size + len(spec.text)
        self._grammars[spec] = grammar
        self._size += grammar.size + len(spec.text)
        while self._size > MOST_BYTES and len(self._grammars) > 1:
            dropped, old = self._grammars.popitem(last=False)
            self._size -= old.size + len(dropped.text)

    def _made(self, spec: GrammarSpec, caller: Caller) -> CompiledGrammar:
        if spec.reasoning is not None:
            inner = self._grammar(replace(spec, reasoning=None), caller)
            return ReasoningGrammar(inner, spec.reasoning, self.vocabulary(), spec.complete)
        either = tool_calls.alternatives(spec)
        if either is not None:
            return UnionGrammar([self._grammar(one, caller) for one in either])
        if self._vocabulary is None:  # while the grammar is being compiled
            threading.Thread(target=self._read, name="vocabulary", daemon=True).start()
        made = self._pool.compile(spec, caller)
        vocabulary = self.vocabulary()
        if isinstance(made, LlguidanceGrammar):
            grammar: CompiledGrammar = llguidance_backend.native_grammar(made, vocabulary)
        else:
            grammar = automaton.native_grammar(made, vocabulary, spec.complete)
        if spec.kind is not GrammarKind.CALLS:
            return grammar
        return tool_calls.framed(grammar, spec.text, vocabulary)

    def _read(self) -> None:
        with contextlib.suppress(Fault):  # whoever waits for it gets it
            self.vocabulary()

    def vocabulary(self) -> Vocabulary:
        """The model's tokens, read when first needed."""
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._path, self._vocab)
            return self._vocabulary


def _digest(spec: GrammarSpec) -> bytes:
    """Stands for a grammar whose text, of up to a megabyte, need not be kept."""
    return hashlib.sha256(repr(spec).encode("utf-8", "surrogatepass")).digest()
