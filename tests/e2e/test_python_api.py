"""LLM and AsyncLLM: the engine in this process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from penstock import LLM, AsyncLLM, SamplingParams

GREEDY = SamplingParams(max_tokens=12, temperature=0)
OPTIONS = {"device": "cpu", "threads": 1, "dtype": "float32", "progress": False}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_slots=4, **OPTIONS) as llm:
        yield llm


def test_importing_is_light() -> None:
    code = (
        "import sys, penstock; assert 'torch' not in sys.modules; penstock.LLM; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_answers_come_in_order_and_equal_those_alone(llm: LLM) -> None:
    prompts = [f"Once upon a time there were {n} foxes" for n in range(12)]
    together = llm.generate(prompts, GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts[:3]]
    assert [each.token_ids for each in together[:3]] == [each.token_ids for each in alone]
    assert all(0 < len(each.token_ids) <= 12 for each in together)
    assert all(len(each.logprobs) == len(each.token_ids) for each in together)


def test_streams_add_up_to_the_answer(llm: LLM) -> None:
    pieces = list(llm.stream("Once upon a time", GREEDY))
    assert "".join(pieces) == llm.generate("Once upon a time", GREEDY)[0].text
    assert len(pieces) > 1


def test_a_stream_that_is_left_frees_its_place(llm: LLM) -> None:
    for _ in range(20):
        for _piece in llm.stream("Once", SamplingParams(max_tokens=1500, ignore_eos=True)):
            break
    assert llm.generate("Once", GREEDY)[0].text


def test_conversations_token_ids_seeds_and_stops(llm: LLM) -> None:
    turns: list[dict[str, object]] = [{"role": "user", "content": "What is 2 + 3?"}]
    assert llm.chat(turns, GREEDY)[0].text == llm.chat([turns, turns], GREEDY)[1].text
    assert llm.generate([[5, 6, 7], [5, 6, 7]], GREEDY)[1].prompt_tokens == 3
    seeded = SamplingParams(max_tokens=8, seed=7)
    assert llm.generate("A", seeded)[0].token_ids == llm.generate("A", seeded)[0].token_ids
    whole = llm.generate("Once upon a time", GREEDY)[0].text
    stop = whole[3:6]
    cut = llm.generate("Once upon a time", SamplingParams(max_tokens=12, temperature=0, stop=stop))
    assert cut[0].text == whole[: whole.index(stop)]
    assert cut[0].finish_reason == "stop"


def test_several_answers_to_each_prompt(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, seed=7, n=3, ignore_eos=True)
    answers = llm.generate(["A fox", "Two owls"], params)
    assert len(answers) == 6
    first = llm.generate("A fox", replace(params, n=1))[0]
    assert answers[0].token_ids == first.token_ids
    assert len({tuple(each.token_ids) for each in answers}) == 6
    best = llm.generate("A fox", replace(params, n=1, best_of=3))
    assert best == [max(answers[:3], key=lambda each: sum(each.logprobs))]
    with pytest.raises(ValueError, match="must be 1"):
        list(llm.stream("A fox", params))
    with pytest.raises(ValueError, match="`n` must be > 0 and <= 32"):
        llm.generate("A fox", SamplingParams(n=33))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -1}, "temperature must be at least 0, not -1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, not 0"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"seed": 2**64}, "seed"),
        ({"n": 0}, "n must be at least 1"),
        ({"n": 3, "best_of": 2}, "best_of must be at least 3"),
        ({"stop": ["a", ""]}, "stop"),
    ],
    ids=str,
)
def test_parameters_are_checked_when_made(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SamplingParams(**fields)  # type: ignore[arg-type]


def test_requests_that_cannot_be_served(llm: LLM) -> None:
    with pytest.raises(ValueError, match="prompt"):
        llm.generate("")
    with pytest.raises(ValueError, match="max_tokens"):
        llm.generate("a", SamplingParams(max_tokens=100_000))
    with pytest.raises(ValueError, match=r"messages\[0\]: `role`"):
        llm.chat([{"content": "x"}])
    with pytest.raises(ValueError, match="99999"):
        llm.generate([99999])
    assert llm.generate("still here", GREEDY)[0].token_ids


def test_options_are_those_of_the_command() -> None:
    with pytest.raises(ValueError, match="--max-len"):
        LLM(max_lne=5)
    with pytest.raises(RuntimeError, match="kv-memory"):
        LLM(kv_memory="4KiB", **OPTIONS)
    with pytest.raises(RuntimeError, match="no such directory"):
        LLM("/nowhere/at/all")


def test_two_at_once_in_a_loop_and_off_the_main_thread(llm: LLM) -> None:
    expected = llm.generate("Once", GREEDY)[0].token_ids
    answers = []

    async def other() -> list[list[int]]:
        async with AsyncLLM(**OPTIONS) as second:
            several = await asyncio.gather(*(second.generate("Once", GREEDY) for _ in range(6)))
            pieces = [piece async for piece in second.stream("Once", GREEDY)]
            twice = await second.several("Once", replace(GREEDY, n=2))
            assert [each.token_ids for each in twice] == [expected] * 2
            assert "".join(pieces) == several[0].text
            # The synchronous one inside a running loop, as in a notebook.
            assert llm.generate("Once", GREEDY)[0].token_ids == expected
            return [each.token_ids for each in several]

    thread = threading.Thread(target=lambda: answers.extend(asyncio.run(other())))
    thread.start()
    assert llm.generate("Once", GREEDY)[0].token_ids == expected
    thread.join(120)
    assert answers == [expected] * 6


def test_closing_twice_and_using_it_afterwards() -> None:
    watched = [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD]
    handlers = [signal.getsignal(number) for number in watched]
    llm = LLM(**OPTIONS)
    assert [signal.getsignal(number) for number in watched] == handlers
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("a")


def test_the_end_of_the_interpreter_ends_the_engine() -> None:
    code = (
        "import penstock; llm = penstock.LLM(device='cpu', threads=1); "
        "print(llm.generate('A', penstock.SamplingParams(max_tokens=2))[0].finish_reason)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.strip() in ("length", "stop")
