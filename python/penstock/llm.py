"""LLM: an engine in this process, for scripts and notebooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from queue import SimpleQueue

from penstock import _core
from penstock.engine import (
    Conversation,
    Message,
    Option,
    Prompt,
    PromptCompletions,
    begin,
    checked,
    closes_at_exit,
    each_params,
    is_single,
    open_engine,
    single,
)
from penstock.progress import Bar
from penstock.request import Completion, SamplingParams


@dataclass
class _RunningRequest:
    """A submitted prompt."""

    answers: PromptCompletions
    room: bool  # whether it holds the semaphore shared by all calls
    request: _core.Request | None = None


class LLM:
    """A loaded model and its engine; no HTTP. Workers are child processes.

    model: directory or hub id; None is brook, which ships with Penstock. progress: whether to show
    progress bars. options: the engine options of `penstock serve`, with underscores, such as tp=2,
    device="cpu", max_len=4096, kv_memory="2GiB".

    Raises ValueError for wrong options and RuntimeError when the model cannot be loaded.
    Thread-safe. Use it in a `with` block, or call `close`.
    """

    def __init__(
        self, model: str | PathLike[str] | None = None, *, progress: bool = True, **options: Option
    ) -> None:
        self._progress = progress
        self._open = open_engine(model, options, progress)
        self._close = closes_at_exit(self, self._open)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Completes prompts (texts or lists of token ids) concurrently.

        Returns `params.n` completions per prompt, in the order of the prompts.

        params: for all prompts, or a list with one per prompt; None is `default_params`.

        Raises ValueError for a prompt or parameter that cannot be served, RuntimeError when the
        engine fails; the other requests of the call are then aborted.
        """
        batch: list[Prompt] = [prompts] if is_single(prompts) else list(prompts)  # type: ignore[arg-type,list-item]
        return self._run(batch, params)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **fields: object,
    ) -> list[Completion]:
        """Completes one conversation, or several: messages are dicts with `role` and `content`.

        fields: other fields of a /v1/chat/completions request: tools, tool_choice,
        parallel_tool_calls, chat_template (text that replaces the model's template),
        chat_template_kwargs, add_generation_prompt, continue_final_message.

        Raises as `generate`, and TypeError for unknown fields.
        """
        single = bool(messages) and isinstance(messages[0], dict)
        batch = [messages] if single else messages
        conversations = [Conversation(list(each), fields) for each in batch]  # type: ignore[arg-type]
        return self._run(conversations, params)

    def stream(
        self, prompt: Prompt | list[Message], params: SamplingParams | None = None
    ) -> Iterator[str]:
        """Yields the text as it is generated. Leaving the loop aborts the request.

        Raises as `generate`, and ValueError if `params` request several choices.
        """
        events: SimpleQueue[_core.Event] = SimpleQueue()
        chosen = single(self._open.default_params if params is None else params)
        request = begin(self._open.engine, prompt, chosen, events.put)
        pieces = self._pieces(events, request)
        next(pieces)  # starts the generator: its `finally` runs even if no text is ever read
        return pieces

    @property
    def default_params(self) -> SamplingParams:
        """The parameters of a call without params: what the model's generation_config.json
        recommends, else the defaults of SamplingParams. The option generation_config="none" ignores
        the file."""
        return self._open.default_params

    def close(self) -> None:
        """Stops the engine and its workers. Idempotent."""
        self._close()

    def _run(
        self,
        prompts: Sequence[Prompt | Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Completion]:
        engine = self._open.engine
        params = self._open.default_params if params is None else params
        params_of = each_params(params, len(prompts))
        done: list[list[Completion]] = [[] for _ in prompts]
        events: SimpleQueue[tuple[int, _core.Event]] = SimpleQueue()
        running: dict[int, _RunningRequest] = {}
        waiting = deque(range(len(prompts)))
        finished = tokens = 0

        def begin_some() -> None:
            while waiting:
                room = bool(running) and self._open.room.acquire(blocking=False)
                if running and not room:
                    return
                index = waiting.popleft()
                put = partial(_put, events, index)
                entry = running[index] = _RunningRequest(PromptCompletions(params_of[index]), room)
                entry.request = begin(engine, prompts[index], params_of[index], put)

        def end(entry: _RunningRequest) -> None:
            if entry.request is not None:
                entry.request.cancel()
            if entry.room:
                self._open.room.release()

        try:
            with Bar("generating", len(prompts), "prompts", self._progress) as bar:
                while finished < len(prompts):
                    begin_some()
                    index, event = events.get()
                    tokens += len(event.token_ids)
                    answers = running[index].answers.add(event)
                    if answers is not None:
                        finished += 1
                        done[index] = answers
                        end(running.pop(index))
                    bar.at(finished, f", {tokens} tokens")
        finally:
            for entry in running.values():
                end(entry)
        return [completion for answers in done for completion in answers]

    def _pieces(self, events: SimpleQueue[_core.Event], request: _core.Request) -> Iterator[str]:
        """Yields "" first, so that the generator can be started, then the text. Keeps this LLM
        alive."""
        try:
            yield ""
            while True:
                event = checked(events.get())
                if event.text:
                    yield event.text
                if event.finish_reason is not None:
                    return
        finally:
            request.cancel()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _put(events: SimpleQueue[tuple[int, _core.Event]], index: int, event: _core.Event) -> None:
    events.put((index, event))
