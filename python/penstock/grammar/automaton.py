"""Regular expressions as byte-level DFAs, with the distance of each state to acceptance.

outlines-core compiles the expression; its index over a vocabulary of the 256 bytes is the DFA
itself. Token masks are computed from the DFA and the model's vocabulary on demand, per state that a
sequence reaches (`python/src/grammar`): nothing has the size of states times vocabulary.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock._core import CompiledGrammar
from penstock.grammar.native import NativeGrammar
from penstock.grammar.protocol import GrammarRejected, Ints
from penstock.grammar.vocabulary import Vocabulary

MOST_STATES = 30_000  # a table of 15 MB; int16 holds them
FAR = 1 << 30  # cost of a state without a completion
# Prefix of each expression. outlines-core also builds the DFA of an unanchored search; its states
# multiply unless the expression begins with a byte that the rest cannot match.
FIRST = "\x00"


@dataclass(frozen=True)
class Automaton:
    """A DFA over bytes. State 0 is the start. An accepting state can be reached from every
    state."""

    table: npt.NDArray[np.int16]  # [states, 256]: the state after a byte, or -1
    accepting: npt.NDArray[np.bool_]  # [states]: the text may end here
    cost: Ints  # [states]: tokens that complete the text; 0 if it is complete

    def to_bytes(self) -> bytes:
        """Returns the concatenated arrays, for `from_bytes`."""
        return self.table.tobytes() + self.accepting.tobytes() + self.cost.tobytes()

    @classmethod
    def from_bytes(cls, states: int, data: bytes) -> Automaton:
        """Parses the output of `to_bytes`."""
        table = np.frombuffer(data, np.int16, states * 256).reshape(states, 256)
        accepting = np.frombuffer(data, np.bool_, states, table.nbytes)
        cost = np.frombuffer(data, np.int32, states, table.nbytes + accepting.nbytes)
        return cls(table, accepting, cost)


def _without_anchors(regex: str) -> str:
    """Strips `^` at the beginning and `$` at the end, which outlines-core cannot compile. They
    are redundant in an expression that must match the whole text."""
    regex = regex.removeprefix("^")
    body = regex.removesuffix("$")
    escapes = len(body) - len(body.rstrip("\\"))
    return body if escapes % 2 == 0 else regex


def compile_regex(regex: str, vocabulary: Vocabulary) -> Automaton:
    """Compiles an expression that must match the whole text. Raises GrammarRejected."""
    from outlines_core import Index
    from outlines_core import Vocabulary as Bytes

    regex = _without_anchors(regex)
    try:
        index = Index(f"{FIRST}(?:{regex})", Bytes(256, {bytes([b]): [b] for b in range(256)}))
    except Exception as error:
        raise GrammarRejected(
            f"the regular expression cannot be compiled: {_last_line(error)}"
        ) from error
    transitions = index.get_transitions()
    final = set(index.get_final_states())
    start = transitions[index.get_initial_state()][ord(FIRST)]
    states = {start: 0}
    for state in transitions:
        if state != index.get_initial_state():
            states.setdefault(state, len(states))
    for state in final:
        states.setdefault(state, len(states))
    if len(states) > MOST_STATES:
        raise GrammarRejected(
            f"the grammar has {len(states)} states; at most {MOST_STATES} are possible: use fewer "
            "or smaller repetitions"
        )
    table = np.full((len(states), 256), -1, np.int16)
    for state, followers in transitions.items():
        if state not in states:
            continue
        row = table[states[state]]
        for byte, follower in followers.items():
            if byte < 256 and follower in states:
                row[byte] = states[follower]
    accepting = np.zeros(len(states), np.bool_)
    accepting[[states[state] for state in final]] = True
    return _measured(Automaton(table, accepting, np.zeros(len(states), np.int32)), vocabulary)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def _measured(automaton: Automaton, vocabulary: Vocabulary) -> Automaton:
    """Adds the costs and removes the transitions to states without a completion."""
    path, order = _shortest_paths(automaton, vocabulary)
    cost = np.full(len(automaton.accepting), FAR, np.int32)
    for state in order:
        cost[state] = _tokens(state, path, cost, vocabulary) if state in path else 0
    if cost[0] >= FAR:
        raise GrammarRejected(
            "no text satisfies the grammar, or the model's tokens cannot spell it"
        )
    table = automaton.table.copy()
    table[(table >= 0) & (cost[table] >= FAR)] = -1
    return replace(automaton, table=table, cost=cost)


def _shortest_paths(
    automaton: Automaton, vocabulary: Vocabulary
) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Returns, for each state, the (byte, state) that begins its shortest path to an accepting
    state, in bytes that are tokens by themselves; and the states by the length of that path."""
    usable = [text[0] for text in vocabulary.single]
    before: list[list[tuple[int, int]]] = [[] for _ in automaton.accepting]
    rows, columns = np.nonzero(automaton.table[:, usable] >= 0)
    seen = set()
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        after = int(automaton.table[row, usable[column]])
        if (row, after) not in seen:
            seen.add((row, after))
            before[after].append((row, usable[column]))
    order = np.flatnonzero(automaton.accepting).tolist()
    reached, path, queue = set(order), {}, deque(order)
    while queue:
        state = queue.popleft()
        for earlier, byte in before[state]:
            if earlier not in reached:
                reached.add(earlier)
                path[earlier] = (byte, state)
                order.append(earlier)
                queue.append(earlier)
    return path, order


def _tokens(
    state: int, path: dict[int, tuple[int, int]], cost: Ints, vocabulary: Vocabulary
) -> int:
    """Returns the fewest tokens that spell the shortest path; the costs of the states on it are
    known."""
    text, best = b"", FAR
    while state in path and len(text) < vocabulary.longest:
        byte, state = path[state]
        text += bytes([byte])
        if text in vocabulary.texts:
            best = min(best, 1 + int(cost[state]))
    return best


def native_grammar(automaton: Automaton, vocabulary: Vocabulary, complete: bool) -> NativeGrammar:
    """Builds the native grammar; `complete`: whether texts are completed within the token
    budget."""
    data = automaton.to_bytes()
    own = CompiledGrammar.from_automaton(vocabulary.own, len(automaton.cost), data, complete)
    return NativeGrammar(own)
