"""The extension: the launcher and the engine, in Rust."""

from collections.abc import Callable

from torch import Tensor

from penstock.request import SamplingParams

# A candidate token: id, natural log of its probability, rank if known, text.
TokenLogprob = tuple[int, float, int | None, str]

def main(argv: list[str], executable: str, package: str) -> int:
    """Runs the launcher with `argv` (the program's name first) and returns its exit code.

    Workers run in the interpreter `executable` with the package `penstock` from the directory
    `package`.
    """

def render_chat(job: str) -> str:
    """Renders a job of the router and returns the reply: see `penstock.rendering`."""

def watermark_score(ids: list[int], gamma: float, key: int) -> tuple[int, int, float, float]:
    """Returns (pairs, green, z, p) for token ids."""

def check_params(params: SamplingParams) -> None:
    """Raises ValueError or TypeError if the router would refuse the parameters for any model."""

class Event:
    """The output of one step for one choice of a request."""

    @property
    def choice(self) -> int:
        """Index of the choice."""
    @property
    def text(self) -> str:
        """New text of the choice."""
    @property
    def pieces(self) -> list[tuple[str, str]]:
        """Other new output, in order: ("reasoning", "call", "call_id" or "arguments", text).
        A call has an id here if the model wrote one."""
    @property
    def token_ids(self) -> list[int]:
        """New tokens."""
    @property
    def logprobs(self) -> list[float]:
        """Natural log of each new token's probability."""
    @property
    def top_logprobs(self) -> list[list[TokenLogprob]]:
        """For each new token, the top-k candidates of its position and the token itself; empty
        unless requested."""
    @property
    def prompt_logprobs(self) -> list[list[TokenLogprob]] | None:
        """The same for the prompt's tokens, empty for the first; on the first event, if
        requested."""
    @property
    def finish_reason(self) -> str | None:
        """Set on the last event of a choice: "length" or "stop"."""
    @property
    def error(self) -> str | None:
        """Error message, on the last event of a request that failed."""
    @property
    def invalid(self) -> bool:
        """Whether the request is invalid; False for a failure of the engine."""
    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens."""

class Request:
    """A running request. It ends by itself or when it is cancelled."""

    def cancel(self) -> None:
        """Aborts the request: its memory is freed at once, and no further event arrives."""

class Engine:
    """A running engine with a loaded model."""

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
        """Starts the completion of a prompt. Events go to `deliver`, on a thread of the engine."""
    def chat(
        self, body: str, params: SamplingParams, deliver: Callable[[Event], object]
    ) -> Request:
        """Starts a chat completion.

        `body` is a body of /v1/chat/completions with only the fields of the conversation and of
        tools.
        """
    @property
    def max_slots(self) -> int:
        """Maximum number of concurrent sequences."""
    @property
    def max_tokens(self) -> int:
        """Maximum tokens of one sequence, prompt included."""
    @property
    def generation_defaults(self) -> str:
        """The sampling parameters that the model's generation_config.json recommends, a JSON
        object."""
    def close(self) -> None:
        """Stops the engine and its workers; running requests fail. Idempotent."""

class Vocabulary:
    """A model's vocabulary and the cached masks of automata over it."""

    def __init__(self, path: str, size: int) -> None:
        """Reads a tokenizer.json for a model of `size` logits. Raises ValueError."""
    def texts(self) -> list[bytes]:
        """Returns the bytes of each token; empty for tokens without text."""
    def shortest_tokenization(self, text: bytes) -> list[int] | None:
        """Returns the fewest tokens that spell a text; None if none do."""
    def max_suffix_tokens(self, text: bytes) -> int:
        """Returns the maximum, over all suffixes of a text, of the fewest tokens that spell the
        suffix. Suffixes that no tokens spell are skipped."""
    def end_distances(self, grammar: str, most: int) -> tuple[int, int, int]:
        """Returns (shortest, farthest, unsearched) of a grammar's lexemes.

        shortest: bytes of the longest of their shortest texts. farthest: the most bytes to an end
        from any state. unsearched: lexemes skipped for having more than `most` states. Raises
        ValueError for an invalid grammar.
        """
    def tokens_leading_to(
        self, table: bytes, state: int, targets: list[int]
    ) -> list[tuple[int, int]]:
        """Returns the tokens that lead from `state` to one of `targets`, each with its target.

        table: int16 [states, 256], the state after a byte, or -1. Raises ValueError for a state
        that is not in the table.
        """
    def special_tokens(self) -> list[tuple[bytes, int]]:
        """Returns the names and ids of the tokens without text."""

class CompiledGrammar:
    """A compiled grammar, shared by any number of sequences."""

    @staticmethod
    def from_automaton(
        vocabulary: Vocabulary, states: int, data: bytes, complete: bool
    ) -> CompiledGrammar:
        """Builds a grammar from an automaton's arrays. Raises ValueError if they do not fit each
        other."""
    @staticmethod
    def from_llguidance(
        vocabulary: Vocabulary, text: str, growth: tuple[int, int, int, int] | None
    ) -> CompiledGrammar:
        """Compiles a grammar in llguidance's form; `growth` (each, once, jump, choices) if
        documents are to be completed. Raises ValueError for a grammar that cannot be compiled."""
    @property
    def shortest(self) -> int:
        """Tokens of a short complete text."""
    @property
    def size(self) -> int:
        """Approximate size in bytes."""
    def needed(self, prefix: bytes) -> int | None:
        """Returns the tokens that complete a text that begins with `prefix`, 0 if texts are not
        completed; None if no completion is known."""
    def start(self, ends: list[int], most: int, prefix: bytes = b"") -> Matcher:
        """Returns a matcher behind `prefix`, before the first token.

        ends: the end tokens of the sequence. most: its maximum number of generated tokens.
        """

class Matcher:
    """The matcher of one sequence. Its state is a function of the tokens that the sequence
    emitted."""

    def advance(self, tokens: list[int]) -> None:
        """Advances by emitted tokens. A token that no mask allowed ends the grammar."""
    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here; False once it has ended."""
    @property
    def ended(self) -> bool:
        """Whether the text is over: it has ended, or a token came that no mask allowed."""
    def mask(self, words: int) -> tuple[bytes, bool]:
        """Returns the mask of the next token, of `words` 32-bit words, and whether the token
        budget forbids tokens that the grammar allows. Raises ValueError if the grammar cannot go
        on."""
    def copy(self) -> Matcher:
        """Returns a copy for another sequence."""

def advance_matchers(matchers: list[Matcher], tokens: list[int]) -> None:
    """Records one token for each matcher; it is applied at the next access to the matcher's
    state."""

def begin_masks(matchers: list[Matcher], words: int) -> None:
    """Starts computing the masks of the next tokens, of `words` 32-bit words, unless started
    already. Does not wait."""

def wait_for_masks(matchers: list[Matcher], seconds: float | None = None) -> bool:
    """Waits up to `seconds` for started masks, with the GIL released. Returns whether none is
    still running."""

def fill_masks(
    matchers: list[Matcher | None], rows: Tensor
) -> tuple[list[int], list[tuple[int, str]], list[int]]:
    """Writes the ready masks of the next tokens into `rows` [matchers, words] int32, bit i % 32 of
    word i // 32 for token i; rows without a matcher are unchanged.

    Returns the indices of the rows narrowed by the token budget, of those whose grammar cannot go
    on, with the reason, and of those whose mask is late. The last two kinds of rows allow every
    token.
    """

class Cpu:
    """The module `cpu`: kernels for tensors in host memory. They write into tensors of the caller.

    All raise ValueError for tensors that do not fit and IndexError for an index out of range.
    """

    @staticmethod
    def fast() -> bool:
        """Returns whether this CPU has fused multiply-add; if not, torch is faster."""
    @staticmethod
    def pack(matrix: Tensor, panels: Tensor) -> None:
        """Packs a matrix [outputs, inputs] into panels [ceil(outputs / 16), inputs, 16] of its
        dtype."""
    @staticmethod
    def linear(x: Tensor, panels: Tensor, bias: Tensor | None, out: Tensor, threads: int) -> None:
        """out [T, outputs] = x [T, inputs] W^T + bias, on at most `threads` threads."""
    @staticmethod
    def rms_norm(
        x: Tensor, weight: Tensor, eps: float, residual: tuple[Tensor, Tensor] | None, out: Tensor
    ) -> None:
        """The op `rms_norm`; `residual` is (the tensor added to x, the destination of the sum)."""
    @staticmethod
    def rope_kv_write(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        angles: tuple[Tensor, Tensor],
        places: tuple[Tensor, Tensor | None],
        cache: Tensor,
    ) -> None:
        """The op `rope_kv_write`; `angles` are (cos_sin, positions), `places` are (slot_mapping,
        kv_len). Tokens whose kv_len is 0 are skipped."""
    @staticmethod
    def paged_attention(
        q: Tensor,
        cache: Tensor,
        sequences: tuple[Tensor, Tensor, Tensor | None, Tensor],
        rule: tuple[float, int, int],
        out: Tensor,
    ) -> None:
        """Both attention ops; `sequences` are (block_tables, slots, query_start, kv_len),
        without query_start for one query each; `rule` is (scale, window, max threads)."""
    @staticmethod
    def silu_mul(x: Tensor, out: Tensor) -> None:
        """The op `silu_mul`."""
    @staticmethod
    def greedy(logits: Tensor, temperature: Tensor, ids: Tensor, logprobs: Tensor) -> bool:
        """Greedy sampling; False, and writes nothing, if a temperature is not 0."""
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
        """A recording of calls of these kernels, replayed as one call. While a thread records,
        its calls are stored instead of run."""

        @staticmethod
        def begin() -> None:
            """Starts recording on this thread. Raises RuntimeError if it already records."""
        @staticmethod
        def end() -> Cpu.Tape:
            """Ends the recording and returns it. Raises RuntimeError if nothing records."""
        def replay(self) -> bool:
            """Runs the kernels in order, with the GIL released, up to one that returns False."""
        def __len__(self) -> int: ...

cpu: Cpu
