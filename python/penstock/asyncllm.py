"""AsyncLLM: LLM for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, suppress
from os import PathLike

from penstock import _core
from penstock.engine import (
    Conversation,
    Message,
    OpenEngine,
    Option,
    Prompt,
    PromptCompletions,
    begin,
    checked,
    closes_at_exit,
    open_engine,
    single,
)
from penstock.request import Completion, SamplingParams


class AsyncLLM:
    """A model and its engine, for asyncio. Arguments as for `LLM`.

    The model loads in `async with`, or at the first request, without blocking the event loop. After
    a load that failed or was cancelled with its loop, the next request tries again.
    """

    def __init__(
        self, model: str | PathLike[str] | None = None, *, progress: bool = True, **options: Option
    ) -> None:
        self._arguments = (model, options, progress)
        self._loading: asyncio.Task[OpenEngine] | None = None
        self._closed = False
        self._rooms: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Completes one prompt, a text or token ids. Many calls may run concurrently.

        Raises ValueError for a prompt or parameter that cannot be served, RuntimeError when the
        engine fails. Cancelling the task aborts the request.
        """
        return (await self.several(prompt, await self._single(params)))[0]

    async def several(
        self, prompt: Prompt | list[Message] | Conversation, params: SamplingParams
    ) -> list[Completion]:
        """Returns the `params.n` choices of one prompt or conversation. Raises as `generate`."""
        answers = PromptCompletions(params)
        async with aclosing(self._events(prompt, params)) as events:
            async for event in events:
                completions = answers.add(event)
                if completions is not None:
                    return completions
        raise RuntimeError("the event stream ended before the request finished")

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        **fields: object,
    ) -> Completion:
        """Completes a conversation: messages and fields as for `LLM.chat`."""
        conversation = Conversation(list(messages), fields)
        return (await self.several(conversation, await self._single(params)))[0]

    async def stream(
        self, prompt: Prompt | list[Message], params: SamplingParams | None = None
    ) -> AsyncIterator[str]:
        """Yields the text as it is generated. Leaving the loop aborts the request."""
        chosen = await self._single(params)
        async with aclosing(self._events(prompt, chosen)) as events:
            async for event in events:
                if event.text:
                    yield event.text

    async def default_params(self) -> SamplingParams:
        """The parameters of a call without params, as `LLM.default_params`; loads the model."""
        return (await self._loaded()).default_params

    async def close(self) -> None:
        """Stops the engine and its workers. Idempotent."""
        self._closed = True
        if self._loading is not None:
            if not self._loading.done():
                await asyncio.wait([self._loading])
            if not _failed(self._loading):
                await asyncio.to_thread(self._loading.result().close)

    async def _single(self, params: SamplingParams | None) -> SamplingParams:
        return single(await self.default_params() if params is None else params)

    async def _events(
        self, prompt: Prompt | list[Message] | Conversation, params: SamplingParams
    ) -> AsyncGenerator[_core.Event]:
        loaded, loop = await self._loaded(), asyncio.get_running_loop()
        events: asyncio.Queue[_core.Event] = asyncio.Queue()
        left = going = params.choice_count
        room = self._room(loaded)
        await room.acquire()
        with ExitStack() as place:
            place.callback(room.release)

            def arrive(event: _core.Event) -> None:
                nonlocal left
                left -= event.finish_reason is not None
                if not left or event.error is not None:
                    place.close()  # even if the caller reads the events slowly
                events.put_nowait(event)

            def deliver(event: _core.Event) -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(arrive, event)

            request = begin(loaded.engine, prompt, params, deliver)
            try:
                while going:
                    event = checked(await events.get())
                    going -= event.finish_reason is not None
                    yield event
            finally:
                request.cancel()

    def _room(self, loaded: OpenEngine) -> asyncio.Semaphore:
        """Returns the semaphore of this loop's submitted requests; the others wait here."""
        loop = asyncio.get_running_loop()
        if self._rooms is None or self._rooms[0] is not loop:
            self._rooms = loop, asyncio.Semaphore(loaded.most)
        return self._rooms[1]

    async def _loaded(self) -> OpenEngine:
        if self._closed:
            raise RuntimeError("the engine is closed")
        if self._loading is None or _failed(self._loading):
            self._loading = asyncio.create_task(self._load())
        # A cancelled caller must not cancel the load for the others.
        return await asyncio.shield(self._loading)

    async def _load(self) -> OpenEngine:
        engine = await asyncio.to_thread(open_engine, *self._arguments)
        closes_at_exit(self, engine)
        return engine

    async def __aenter__(self) -> AsyncLLM:
        await self._loaded()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _failed(task: asyncio.Task[OpenEngine]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
