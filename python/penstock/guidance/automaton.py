"""A regular language as a table over bytes, and how far each state is from a whole text.

outlines-core compiles the expression; its index over a vocabulary of the 256 bytes is the automaton
itself. The token masks follow from the table and the model's vocabulary, state by state, when a
sequence comes there: nothing is proportional to states times vocabulary.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.guidance.protocol import Ends, Ints, Refused, packed, set_bits, words
from penstock.guidance.vocabulary import Vocabulary

MOST_STATES = 30_000  # a table of 15 MB; int16 holds them
ENDED = -1  # the state after an end token, or after a token that no mask allowed
FAR = 1 << 30  # cost of a state from which no text can be completed
# Goes before each expression. outlines-core also builds the automaton of a search that may begin
# anywhere; without a first byte that the rest cannot match, its states multiply.
FIRST = "\x00"
MASK_BYTES = 64 << 20  # of masks kept, over all automata


@dataclass(frozen=True)
class Automaton:
    """State 0 is the start. From every state a whole text can be reached."""

    table: npt.NDArray[np.int16]  # [states, 256]: the state after a byte, or -1
    whole: npt.NDArray[np.bool_]  # [states]: the text may end here
    cost: Ints  # [states]: tokens that complete the text; 0 where it is whole

    def to_bytes(self) -> bytes:
        """The arrays one after the other, for `from_bytes`."""
        return self.table.tobytes() + self.whole.tobytes() + self.cost.tobytes()

    @classmethod
    def from_bytes(cls, states: int, data: bytes) -> Automaton:
        """What `to_bytes` wrote."""
        table = np.frombuffer(data, np.int16, states * 256).reshape(states, 256)
        whole = np.frombuffer(data, np.bool_, states, table.nbytes)
        cost = np.frombuffer(data, np.int32, states, table.nbytes + whole.nbytes)
        return cls(table, whole, cost)


def compile_regex(regex: str, vocabulary: Vocabulary) -> Automaton:
    """The automaton of an expression that must match the whole text. Raises Refused."""
    from outlines_core import Index
    from outlines_core import Vocabulary as Bytes

    try:
        index = Index(f"{FIRST}(?:{regex})", Bytes(256, {bytes([b]): [b] for b in range(256)}))
    except Exception as error:
        raise Refused(f"the regular expression cannot be compiled: {_first_line(error)}") from error
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
        raise Refused(
            f"the guide has {len(states)} states; at most {MOST_STATES} are possible: use fewer "
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
    whole = np.zeros(len(states), np.bool_)
    whole[[states[state] for state in final]] = True
    return _measured(Automaton(table, whole, np.zeros(len(states), np.int32)), vocabulary)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def _measured(automaton: Automaton, vocabulary: Vocabulary) -> Automaton:
    """With costs, and without the transitions from which no text can be completed."""
    path, order = _shortest_paths(automaton, vocabulary)
    cost = np.full(len(automaton.whole), FAR, np.int32)
    for state in order:
        cost[state] = _tokens(state, path, cost, vocabulary) if state in path else 0
    if cost[0] >= FAR:
        raise Refused("no text satisfies the guide, or the model's tokens cannot spell it")
    table = automaton.table.copy()
    table[(table >= 0) & (cost[table] >= FAR)] = -1
    return replace(automaton, table=table, cost=cost)


def _shortest_paths(
    automaton: Automaton, vocabulary: Vocabulary
) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """For each state the (byte, state) that begins its shortest way to a whole text, in bytes that
    are tokens by themselves; and the states in the order of those ways' length."""
    usable = [text[0] for text in vocabulary.single]
    before: list[list[tuple[int, int]]] = [[] for _ in automaton.whole]
    rows, columns = np.nonzero(automaton.table[:, usable] >= 0)
    seen = set()
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        after = int(automaton.table[row, usable[column]])
        if (row, after) not in seen:
            seen.add((row, after))
            before[after].append((row, usable[column]))
    order = np.flatnonzero(automaton.whole).tolist()
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
    """The fewest tokens that spell the shortest way; those of later states are known."""
    text, best = b"", FAR
    while state in path and len(text) < vocabulary.longest:
        byte, state = path[state]
        text += bytes([byte])
        if text in vocabulary.texts:
            best = min(best, 1 + int(cost[state]))
    return best


@dataclass(frozen=True)
class Mask:
    """What may follow in a state, end tokens apart."""

    bits: Ints
    costs: Ints
    """Of the states that it leads to, each once, rising."""

    @property
    def worst(self) -> int:
        """The highest of the costs; 0 if nothing may follow."""
        return int(self.costs[-1]) if len(self.costs) else 0


class Masks:
    """The masks of states that sequences came to, the oldest dropped for new ones.

    A key is (guide, state, the highest cost that the mask may lead to).
    """

    def __init__(self, most_bytes: int = MASK_BYTES) -> None:
        self._kept: OrderedDict[tuple[int, int, int], Mask] = OrderedDict()
        self._lock = threading.Lock()
        self._room = most_bytes

    def get(self, key: tuple[int, int, int]) -> Mask | None:
        """The mask, if it is kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: tuple[int, int, int], value: Mask) -> None:
        """Keeps a mask."""
        with self._lock:
            if key not in self._kept:
                self._room -= value.bits.nbytes
            self._kept[key] = value
            while self._room < 0 and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._room += dropped.bits.nbytes


class AutomatonGuide:
    """A `Compiled` guide. `shortest` is the number of tokens of the shortest text in bytes."""

    _numbers = iter(range(1 << 62))

    def __init__(
        self, automaton: Automaton, vocabulary: Vocabulary, complete: bool, masks: Masks
    ) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self.complete = complete
        self.masks = masks
        self.number = next(self._numbers)  # tells guides apart in `masks`
        self.words = words(vocabulary.size)
        self.shortest = int(automaton.cost[0])
        self.size = automaton.table.nbytes + automaton.cost.nbytes

    def start(self, ends: Ends, begun: bytes = b"") -> AutomatonCursor:
        """A cursor before the first token."""
        return AutomatonCursor(self, ends, self._after(0, begun))

    def needed(self, begun: bytes) -> int | None:
        """Tokens that complete a text which has begun so; None if none does."""
        state = self._after(0, begun)
        return None if state == ENDED else int(self.automaton.cost[state])

    def step(self, state: int, token: int) -> int:
        """The state after a token; ENDED if it cannot follow."""
        text = self.vocabulary.tokens[token] if token < self.vocabulary.size else b""
        return self._after(state, text) if text else ENDED

    def _after(self, state: int, text: bytes) -> int:
        for byte in text:
            state = int(self.automaton.table[state, byte])
            if state < 0:
                return ENDED
        return state

    def mask(self, state: int, most: int = FAR) -> Mask:
        """What may follow in `state`; of that, the tokens after which at most `most` tokens
        complete the text."""
        found = self.masks.get((self.number, state, most))
        if found is None:
            tokens, states = self.vocabulary.walk(self.automaton.table, state)
            costs = self.automaton.cost[states]
            within = costs <= most
            found = Mask(self._pack(tokens[within]), np.unique(costs[within]))
            self.masks.put((self.number, state, most), found)
        return found

    def affordable(self, state: int, most: int) -> Ints:
        """The bits of `mask(state, most)`. One mask serves all `most` up to the next cost."""
        costs = self.mask(state).costs
        below = int(np.searchsorted(costs, most, side="right"))
        return self.mask(state, int(costs[below - 1]) if below else -1).bits

    def _pack(self, tokens: Ints) -> Ints:
        allowed = np.zeros(self.vocabulary.size, np.bool_)
        allowed[tokens] = True
        return packed(allowed, self.words)


class AutomatonCursor:
    """A `Cursor`: a state and the tokens left."""

    idle = False

    def __init__(self, guide: AutomatonGuide, ends: Ends, state: int) -> None:
        self.guide = guide
        self.ends = ends
        self.state = state
        self.left = ends.most

    @property
    def whole(self) -> bool:
        """Whether the text may end here."""
        return self.state != ENDED and bool(self.guide.automaton.whole[self.state])

    @property
    def ended(self) -> bool:
        """Whether nothing of the text can follow."""
        return self.state == ENDED

    def advance(self, token: int) -> None:
        """Takes one emitted token."""
        self.left -= 1
        if self.state != ENDED:
            self.state = self.guide.step(self.state, token)

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token."""
        guide, state, narrowed = self.guide, self.state, False
        if state == ENDED:
            row[:] = 0
        else:
            mask = guide.mask(state)
            narrowed = guide.complete and mask.worst > self.left - 1 >= 0
            row[:] = guide.affordable(state, self.left - 1) if narrowed else mask.bits
        if state == ENDED or self.whole:
            set_bits(row, self.ends.tokens)
        return narrowed

    def copy(self) -> AutomatonCursor:
        """Another sequence at the same place."""
        twin = AutomatonCursor(self.guide, self.ends, self.state)
        twin.left = self.left
        return twin
