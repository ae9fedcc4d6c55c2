"""The worker's cache of compiled grammars."""

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
from penstock.grammar.reasoning import FreeTextGrammar, ReasoningGrammar
from penstock.grammar.vocabulary import Vocabulary

MOST_BYTES = 256 << 20  # of compiled grammars
MOST_REJECTIONS = 1024  # cached by digest, so that a bad grammar is compiled only once


class GrammarCache:
    """A thread-safe LRU cache of compiled grammars. The tokenizer and the compiler load on first
    use.

    ranks: workers of the group; each has its own cache.
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
        """Compiles a grammar on a cache miss. `most` is the maximum number of output tokens.

        Raises GrammarRejected, CompilerUnavailable or NoTokenizer; CompilationCancelled once the
        caller has left.
        """
        grammar = self._grammar(spec, caller)
        if spec.complete and grammar.shortest > most:
            raise GrammarRejected(
                f"the shortest document needs {grammar.shortest} tokens, and the request allows "
                f"{most}; allow at least {grammar.shortest}"
            )

    def holds(self, spec: GrammarSpec) -> bool:
        """Whether a sequence can use the grammar now. A step does not wait for the recompilation
        of an evicted grammar, unless other ranks may still hold theirs."""
        with self._lock:
            return spec in self._grammars or self._ranks > 1

    def matcher(self, spec: GrammarSpec, ends: EndConditions, emitted: Sequence[int]) -> Matcher:
        """Returns a matcher advanced by `emitted`. Compiles the grammar on a cache miss."""
        matcher = self._grammar(spec).start(ends)
        for token in emitted:
            matcher.advance(token)
        return matcher

    def agreed(self, fault: Fault) -> bool:
        """Whether every rank gets this fault: then all of them exclude the sequence from the
        step."""
        return self._ranks == 1 or not isinstance(fault, CompileLimitExceeded | CompilerUnavailable)

    def close(self) -> None:
        """Stops the compiler process; later compilations fail."""
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
            # A separate thread: the first caller may leave while others wait for the grammar.
            arguments = spec, pending
            threading.Thread(
                target=self._compile, args=arguments, name="grammar", daemon=True
            ).start()
        return pending.wait(caller, lambda: self._leave(spec, pending))

    def _leave(self, spec: GrammarSpec, pending: PendingCompilation) -> None:
        """Removes a caller. After the last one has left, the next caller starts a new
        compilation."""
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
        if spec.kind is GrammarKind.TEXT:
            return FreeTextGrammar()
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
        with contextlib.suppress(Fault):  # `vocabulary` raises it again for each caller
            self.vocabulary()

    def vocabulary(self) -> Vocabulary:
        """Returns the model's vocabulary, loaded on first use."""
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._path, self._vocab)
            return self._vocabulary


def _digest(spec: GrammarSpec) -> bytes:
    """Returns the cache key of a rejection; the text, of up to a megabyte, need not be kept."""
    return hashlib.sha256(repr(spec).encode("utf-8", "surrogatepass")).digest()
