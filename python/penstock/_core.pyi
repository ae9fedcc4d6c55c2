"""The extension: the launcher and the engine, in Rust."""

from collections.abc import Callable

from torch import Tensor

from penstock.request import SamplingParams

# A token in some place: id, natural log of its probability, rank if that is known, text.
TokenLogprob = tuple[int, float, int | None, str]

def main(argv: list[str], executable: str, package: str) -> int:
    """Runs the launcher with `argv` (the program's name first) and returns its exit code.

    Workers run in `executable`, whose package `penstock` is the directory `package`.
    """

def render_chat(job: str) -> str:
    """The reply to a job of the router: see `penstock.rendering`."""

def watermark_score(ids: list[int], gamma: float, key: int) -> tuple[int, int, float, float]:
    """(pairs, green, z, p) of token ids."""

class Event:
    """What one step brought for one answer of a request."""

    @property
    def choice(self) -> int:
        """Which of the request's answers."""
    @property
    def text(self) -> str:
        """What the answer's text grows by."""
    @property
    def pieces(self) -> list[tuple[str, str]]:
        """What else the answer grows by: ("reasoning", "call" or "arguments", text)."""
    @property
    def token_ids(self) -> list[int]:
        """New tokens."""
    @property
    def logprobs(self) -> list[float]:
        """Natural log of each new token's probability."""
    @property
    def top_logprobs(self) -> list[list[TokenLogprob]]:
        """For each new token what might have been in its place, if asked for."""
    @property
    def prompt_logprobs(self) -> list[list[TokenLogprob]] | None:
        """The same of the prompt's tokens, nothing for the first; on the first event."""
    @property
    def finish_reason(self) -> str | None:
        """Set on the last event of an answer: "length" or "stop"."""
    @property
    def error(self) -> str | None:
        """Set on the last event of a request that failed: what is wrong, for people."""
    @property
    def invalid(self) -> bool:
        """Whether the request itself is at fault."""
    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""

class Request:
    """A request on its way; it ends by itself or when it is cancelled."""

    def cancel(self) -> None:
        """Gives the answer up: its memory is free at once, and no further event comes."""

class Engine:
    """A loaded model that answers."""

    def __new__(
        cls,
        flags: list[str],
        executable: str,
        package: str,
        report: Callable[[str, int, int], object],
    ) -> Engine:
        """Loads a model. `report` is called with phase, done and total meanwhile.

        Raises ValueError for wrong flags and RuntimeError when the model cannot be loaded.
        """
    def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        deliver: Callable[[Event], object],
    ) -> Request:
        """Begins to complete a prompt; every event goes to `deliver`, on the engine's thread."""
    def chat(
        self, body: str, params: SamplingParams, deliver: Callable[[Event], object]
    ) -> Request:
        """Begins an answer in a conversation.

        `body` is that of /v1/chat/completions, as far as it tells of the conversation and of tools.
        """
    @property
    def max_slots(self) -> int:
        """Sequences that run at once."""
    @property
    def max_tokens(self) -> int:
        """Prompt and answer of one request, in tokens."""
    def close(self) -> None:
        """Ends the engine and its workers; running requests fail. May be called again."""

class Vocabulary:
    """A model's tokens, and the masks of automata over them that are kept."""

    def __init__(self, path: str, size: int) -> None:
        """Reads a tokenizer.json for a model of `size` logits. Raises ValueError."""
    def texts(self) -> list[bytes]:
        """The bytes of each token; empty for those that stand for no text."""
    def shortest_tokenization(self, text: bytes) -> list[int] | None:
        """The fewest tokens that spell a text; None if none do."""
    def max_suffix_tokens(self, text: bytes) -> int:
        """The most tokens that an ending of a text needs, at the fewest. Endings that no tokens
        spell are left out."""
    def end_distances(self, grammar: str, most: int) -> tuple[int, int, int]:
        """Bytes of the longest of the shortest texts of a grammar's lexemes, the most bytes that
        one of them needs to its end, from wherever it is, and how many were left out for having
        more than `most` states. Raises ValueError if the grammar cannot be followed."""
    def tokens_leading_to(
        self, table: bytes, state: int, targets: list[int]
    ) -> list[tuple[int, int]]:
        """The tokens that lead from `state` of a table, int16 [states, 256] (the state after a
        byte, or -1), to one of the states `targets`, and to which. Raises ValueError if there
        is no such state."""
    def special_tokens(self) -> list[tuple[bytes, int]]:
        """What the tokens without a text are called."""

class CompiledGrammar:
    """A grammar that any number of sequences may follow."""

    @staticmethod
    def from_automaton(
        vocabulary: Vocabulary, states: int, data: bytes, complete: bool
    ) -> CompiledGrammar:
        """Of an automaton's arrays. Raises ValueError if they do not fit each other."""
    @staticmethod
    def from_llguidance(
        vocabulary: Vocabulary, text: str, growth: tuple[int, int, int, int] | None
    ) -> CompiledGrammar:
        """Of a grammar in llguidance's form; `growth` (each, once, jump, choices) if documents are
        to be completed. Raises ValueError if it cannot be followed."""
    @property
    def shortest(self) -> int:
        """Tokens of a short whole text."""
    @property
    def size(self) -> int:
        """Bytes in memory, about."""
    def needed(self, prefix: bytes) -> int | None:
        """Tokens that complete a text which has begun so, 0 if it is not to be completed; None if
        none does, as far as is known."""
    def start(self, ends: list[int], most: int, prefix: bytes = b"") -> Matcher:
        """A matcher before the first token, behind `prefix` if the text has begun with it. `ends`:
        the tokens that may end the sequence; `most`: how many it may have generated in all."""

class Matcher:
    """Where one sequence is in its grammar: a function of the tokens that it emitted."""

    def advance(self, tokens: list[int]) -> None:
        """Takes emitted tokens. One that no mask allowed ends the grammar."""
    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here; not once it has."""
    @property
    def ended(self) -> bool:
        """Whether nothing of the text can follow: it is over, or a token came that no mask
        allowed."""
    def mask(self, words: int) -> tuple[bytes, bool]:
        """The mask of the next token, of so many words, and whether the tokens left forbid what the
        grammar alone would allow. Raises ValueError if the grammar cannot go on."""
    def copy(self) -> Matcher:
        """Another sequence at the same place."""

def advance_matchers(matchers: list[Matcher], tokens: list[int]) -> None:
    """Notes a token of each matcher; whoever asks next where it is takes it."""

def begin_masks(matchers: list[Matcher], words: int) -> None:
    """Has threads make the masks of the next tokens, of so many words, unless they are begun. Does
    not wait."""

def wait_for_masks(matchers: list[Matcher], seconds: float | None = None) -> bool:
    """Waits for masks that were begun, so many seconds at most, without the interpreter's lock.
    Returns whether none is under way."""

def fill_masks(
    matchers: list[Matcher | None], rows: Tensor
) -> tuple[list[int], list[tuple[int, str]], list[int]]:
    """Writes the masks of the next tokens that have been made, bit i % 32 of word i // 32 for token
    i, into `rows` [matchers, words] int32; rows without a matcher stay as they are. Returns the
    indices of those whose tokens left forbid what the grammar alone would allow, of those that
    cannot
    go on, with the reason, and of those that are not there: to the last two all is allowed."""

class Cpu:
    """The module `cpu`: kernels for tensors in host memory, which write into tensors of the caller.

    All raise ValueError for tensors that do not fit, IndexError for an index out of range.
    """

    @staticmethod
    def fast() -> bool:
        """Whether this CPU multiplies and adds in one instruction; if not, torch is faster."""
    @staticmethod
    def pack(matrix: Tensor, panels: Tensor) -> None:
        """A matrix [outputs, inputs] to panels [ceil(outputs / 16), inputs, 16] of its dtype."""
    @staticmethod
    def linear(x: Tensor, panels: Tensor, bias: Tensor | None, out: Tensor, threads: int) -> None:
        """out [T, outputs] = x [T, inputs] W^T + bias, by at most so many threads."""
    @staticmethod
    def rms_norm(
        x: Tensor, weight: Tensor, eps: float, residual: tuple[Tensor, Tensor] | None, out: Tensor
    ) -> None:
        """The op; `residual` is what is added to x, and where the sum goes."""
    @staticmethod
    def rope_kv_write(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        angles: tuple[Tensor, Tensor],
        places: tuple[Tensor, Tensor | None],
        cache: Tensor,
    ) -> None:
        """The op; `angles` are (cos_sin, positions), `places` are (slot_mapping, kv_len): tokens
        whose kv_len is 0 are left alone."""
    @staticmethod
    def paged_attention(
        q: Tensor,
        cache: Tensor,
        sequences: tuple[Tensor, Tensor, Tensor | None, Tensor],
        rule: tuple[float, int, int],
        out: Tensor,
    ) -> None:
        """Both attention ops; `sequences` are (block_tables, slots, query_start, kv_len), without
        query_start for one query each; `rule` is (scale, window, most threads)."""
    @staticmethod
    def silu_mul(x: Tensor, out: Tensor) -> None:
        """The op."""
    @staticmethod
    def greedy(logits: Tensor, temperature: Tensor, ids: Tensor, logprobs: Tensor) -> bool:
        """Most probable tokens; False, with nothing done, if a temperature is not 0."""
    @staticmethod
    def gather(source: Tensor, index: Tensor, out: Tensor) -> None:
        """out[i] = source[index[i]], row by row, of any dtype."""
    @staticmethod
    def scatter(source: Tensor, index: Tensor, out: Tensor) -> None:
        """out[index[i]] = source[i], row by row, of any dtype."""
    @staticmethod
    def copy(source: Tensor, out: Tensor) -> None:
        """out = source, row by row, of any dtype."""
    @staticmethod
    def less(numbers: Tensor, bound: int, out: Tensor) -> None:
        """out [T] bool = numbers [T] < bound, of integers."""
    @staticmethod
    def pick(condition: Tensor, a: Tensor, b: Tensor, out: Tensor) -> None:
        """out [T] int64 = a where condition [T], else b; both of integers."""
    class Tape:
        """Calls of these kernels, to be run again as one. While a thread records, they only count
        as done."""

        @staticmethod
        def begin() -> None:
            """From now on, this thread records. RuntimeError if it does already."""
        @staticmethod
        def end() -> Cpu.Tape:
            """What was recorded since `begin`. RuntimeError if nothing records."""
        def replay(self) -> bool:
            """Runs the kernels, without the interpreter's lock, up to one that returns False."""
        def __len__(self) -> int: ...

cpu: Cpu
