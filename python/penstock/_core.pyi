"""The extension: the launcher and the engine, in Rust."""

from collections.abc import Callable

from penstock.request import SamplingParams

def main(argv: list[str], executable: str, package: str) -> int:
    """Runs the launcher with `argv` (the program's name first) and returns its exit code.

    Workers run in `executable`, whose package `penstock` is the directory `package`.
    """

class Event:
    """What one step brought for one request."""

    @property
    def text(self) -> str:
        """What the answer's text grows by."""
    @property
    def token_ids(self) -> list[int]:
        """New tokens."""
    @property
    def logprobs(self) -> list[float]:
        """Natural log of each new token's probability."""
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
        self, messages: str, params: SamplingParams, deliver: Callable[[Event], object]
    ) -> Request:
        """Begins an answer in a conversation; `messages` is a JSON list of objects."""
    @property
    def max_slots(self) -> int:
        """Sequences that run at once."""
    @property
    def max_tokens(self) -> int:
        """Prompt and answer of one request, in tokens."""
    def close(self) -> None:
        """Ends the engine and its workers; running requests fail. May be called again."""
