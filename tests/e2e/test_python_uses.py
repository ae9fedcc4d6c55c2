"""LLM and AsyncLLM in ways that are odd but legal."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reasoning_model
import torch
from in_process import GREEDY, OPTIONS
from penstock import LLM, AsyncLLM, SamplingParams, asyncllm
from penstock import llm as llm_module


def test_prompts_as_arrays_and_params_per_prompt(llm: LLM) -> None:
    ids = [75, 658, 272]
    expected = llm.generate(ids, GREEDY)[0].token_ids
    for given in (np.array(ids), torch.tensor(ids), list(np.array(ids)), tuple(ids)):
        assert llm.generate(given, GREEDY)[0].token_ids == expected  # type: ignore[arg-type]
    rows = llm.generate(np.array([ids, ids]), GREEDY)  # type: ignore[arg-type]
    assert [each.token_ids for each in rows] == [expected] * 2
    several = [GREEDY, replace(GREEDY, max_tokens=3, n=2), replace(GREEDY, max_tokens=4)]
    lengths = [len(each.token_ids) for each in llm.generate([ids] * 3, several)]
    assert lengths == [len(expected), 3, 3, 4]
    arrays = replace(GREEDY, max_tokens=np.int64(3), allowed_token_ids=np.array([5, 6]))
    assert set(llm.generate(ids, arrays)[0].token_ids) <= {5, 6}
    with pytest.raises(TypeError, match="bad_words must be a list, not 'fox'"):
        SamplingParams(bad_words="fox")
    with pytest.raises(ValueError, match="one for each of 2 prompts"):
        llm.generate(["a", "b"], several)


def test_none_means_an_empty_list() -> None:
    names = ("stop", "stop_token_ids", "bad_words", "bad_words_ids", "logit_bias")
    assert SamplingParams(**dict.fromkeys(names)) == SamplingParams()  # type: ignore[arg-type]


def test_calls_without_params_use_generation_config(tmp_path: Path) -> None:
    recommended = {"temperature": 0.0, "top_k": 5, "max_new_tokens": 7, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(recommended))
    expected = SamplingParams(temperature=0, top_k=5, max_tokens=7)

    async def alone() -> list[int]:
        async with AsyncLLM(generation_config=str(tmp_path), **OPTIONS) as other:
            assert await other.default_params() == expected
            return (await other.generate("Once")).token_ids

    with LLM(generation_config=str(tmp_path), **OPTIONS) as model:
        assert model.default_params == expected
        answer = model.generate("Once")[0]
        assert answer.token_ids == model.generate("Once", expected)[0].token_ids
        assert len(model.generate("Once", SamplingParams(max_tokens=9))[0].token_ids) == 9
        assert "".join(model.stream("Once")) == answer.text
    assert asyncio.run(alone()) == answer.token_ids


def test_calls_without_a_recommendation_use_the_defaults(llm: LLM) -> None:
    assert llm.default_params == SamplingParams()


def test_more_requests_than_the_queue_limit_succeed(llm: LLM) -> None:
    """1,500 at once would be refused; slow readers of whole answers hold nobody up."""
    short = replace(GREEDY, max_tokens=1)
    count, threads = 20, 6

    def several(_: int) -> int:
        return len(llm.generate(["A fox"] * count, short))

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(several, range(threads))) == count * threads

    async def gathered() -> int:
        async with AsyncLLM(max_slots=4, **OPTIONS) as other:
            slow = [other.stream("Once", GREEDY) for _ in range(20)]
            for stream in slow:
                await anext(stream)
            answers = await asyncio.gather(*(other.generate("Once", short) for _ in range(1500)))
            return len(answers)

    assert asyncio.run(gathered()) == 1500


@pytest.mark.parametrize(
    "prompt", [{"prompt_token_ids": [5]}, b"abc", None, [{1: 2}], [None], ["a", 5], [[0.5]]]
)
def test_invalid_prompts_are_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(TypeError):
        llm.generate(prompt, GREEDY)


def test_unstarted_stream_is_cancelled(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = llm_module.begin
    cancelled: list[None] = []

    class Request:
        def __init__(self, *arguments: Any) -> None:
            self.request = begin(*arguments)

        def cancel(self) -> None:
            cancelled.append(None)
            self.request.cancel()

    monkeypatch.setattr(llm_module, "begin", Request)
    llm.stream("Once", SamplingParams(max_tokens=None, ignore_eos=True))
    assert cancelled == [None]


def test_stream_keeps_its_llm_alive(llm: LLM) -> None:
    expected = llm.generate("Once", GREEDY)[0].text
    assert "".join(LLM(**OPTIONS).stream("Once", GREEDY)) == expected


def test_forked_process_does_not_touch_the_engine() -> None:
    code = """
import os, sys, penstock
llm = penstock.LLM(device="cpu", threads=1, progress=False)
params = penstock.SamplingParams(max_tokens=2)
for forgets in (False, True):
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        continue
    try:
        llm.generate("A", params)
    except RuntimeError as error:
        print(error, flush=True)
    if forgets:
        llm = None
    sys.exit(7)
print(llm.generate("A", params)[0].finish_reason)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    *result, reason = done.stdout.splitlines()
    assert len(result) == 2 and all("this process is a fork of it" in line for line in result)
    assert reason in ("length", "stop")


def test_failed_or_cancelled_load_is_retried(monkeypatch: Any) -> None:
    tried = []

    def load(*arguments: Any) -> Any:
        tried.append(arguments)
        raise RuntimeError("no memory")

    async def fail(llm: AsyncLLM) -> None:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no memory"):
                await llm.generate("a")

    async def give_up(llm: AsyncLLM) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(llm.generate("Once", GREEDY), 0.05)

    llm = AsyncLLM(**OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(asyncllm, "open_engine", load)
        asyncio.run(fail(llm))
    asyncio.run(give_up(llm))
    assert len(tried) == 2
    assert asyncio.run(llm.generate("Once", GREEDY)).token_ids
    asyncio.run(llm.close())
    failed = AsyncLLM("/nowhere", **OPTIONS)
    with pytest.raises(RuntimeError, match="no such directory"):
        asyncio.run(failed.generate("a"))
    asyncio.run(failed.close())


def test_reasoning_is_closed_after_its_tokens(llm: LLM, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    source = (reasoning_model.BROOK / "chat_template.jinja").read_text()
    template.write_text(source + reasoning_model.OPENED)
    story: list[dict[str, object]] = [{"role": "user", "content": "Tell me of a fox."}]
    params = replace(GREEDY, max_tokens=40, ignore_eos=True)
    with LLM(**OPTIONS, chat_template=str(template)) as thinker:
        (short,) = thinker.chat(story, replace(params, thinking_token_budget=4))
        (none,) = thinker.chat(story, replace(params, thinking_token_budget=0))
        (free,) = thinker.chat(story, params)
    assert short.text and none.text and not none.reasoning and not free.text
    assert 0 < len(short.reasoning) < len(free.reasoning)
    with pytest.raises(ValueError, match="needs a conversation"):
        llm.generate("A", replace(params, thinking_token_budget=4))
