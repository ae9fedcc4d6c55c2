"""LLM and AsyncLLM: the engine in this process."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import jsonschema
import penstock
import pytest
from in_process import GREEDY, OPTIONS
from penstock import LLM, AsyncLLM, Completion, SamplingParams, StructuredOutputsParams
from tokenizers import Tokenizer


def test_import_does_not_load_torch() -> None:
    code = (
        "import sys, penstock; assert 'torch' not in sys.modules; penstock.LLM; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_answers_are_in_order_and_equal_those_alone(llm: LLM) -> None:
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


def test_abandoned_stream_frees_its_slot(llm: LLM) -> None:
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


def test_stop_strings_and_special_tokens_can_be_kept(llm: LLM) -> None:
    prompt = "<|bos|><|user|>What is 12 + 30?<|end|><|assistant|>"
    params = SamplingParams(max_tokens=16, temperature=0, stop="30", ignore_eos=True)
    assert llm.generate(prompt, params)[0].text == "12 + "
    kept = replace(params, include_stop_str_in_output=True)
    assert llm.generate(prompt, kept)[0].text == "12 + 30"
    shown = replace(params, stop=(), skip_special_tokens=False)
    assert llm.generate(prompt, shown)[0].text.startswith("12 + 30 = 42<|end|>")


def test_several_choices_for_each_prompt(llm: LLM) -> None:
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


def test_logprobs(llm: LLM) -> None:
    params = replace(GREEDY, logprobs=3, prompt_logprobs=2)
    prompt = llm.generate("Once upon a time", replace(GREEDY, max_tokens=1)).pop()
    assert (prompt.top_logprobs, prompt.prompt_logprobs) == (None, None)
    (answer,) = llm.generate("Once upon a time", params)
    assert answer.top_logprobs is not None and answer.prompt_logprobs is not None
    check_places(answer, 3)
    assert answer.prompt_logprobs[0] is None
    assert len(answer.prompt_logprobs) == answer.prompt_tokens
    # Prompt logprobs equal the logprobs of the same tokens when they are generated.
    tokenizer = Tokenizer.from_file(str(Path(penstock.__file__).parent / "brook/tokenizer.json"))
    whole = [*tokenizer.encode("Once upon a time").ids, *answer.token_ids]
    (again,) = llm.generate([whole], replace(GREEDY, max_tokens=1, prompt_logprobs=3))
    assert again.prompt_logprobs is not None
    reported = [place for place in again.prompt_logprobs if place][-len(answer.token_ids) :]
    for mine, other in zip(answer.top_logprobs, reported, strict=True):
        assert list(mine) == list(other)
        for token_id, entry in mine.items():
            assert entry.logprob == pytest.approx(other[token_id].logprob, abs=2e-4)
            assert (entry.rank, entry.decoded_token) == (
                other[token_id].rank,
                other[token_id].decoded_token,
            )
    sampled = SamplingParams(max_tokens=12, seed=3, temperature=1.5, ignore_eos=True, logprobs=1)
    check_places(llm.generate("Once", sampled)[0], 1)
    check_places(llm.generate("Once", replace(GREEDY, logprobs=0))[0], 0)


def check_places(answer: Completion, count: int) -> None:
    assert answer.top_logprobs is not None
    assert answer.cumulative_logprob == sum(answer.logprobs)
    reported = zip(answer.top_logprobs, answer.token_ids, answer.logprobs, strict=True)
    for place, token_id, logprob in reported:
        assert place[token_id].logprob == logprob
        assert count <= len(place) <= count + 1
        values = [entry.logprob for entry in place.values()]
        assert values == sorted(values, reverse=True)
        ranks = [entry.rank for entry in place.values()]
        assert ranks[:count] == [*range(1, count + 1)]
        assert ranks[count:] in ([], [None])


def tool(name: str, **properties: str) -> dict[str, object]:
    typed = {name: {"type": kind} for name, kind in properties.items()}
    parameters = {"type": "object", "properties": typed, "required": list(typed)}
    function = {"name": name, "description": name, "parameters": parameters}
    return {"type": "function", "function": function}


def test_conversations_with_tools(llm: LLM) -> None:
    tools = [tool("get_weather", city="string"), tool("add", a="integer", b="integer")]
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    params = replace(GREEDY, max_tokens=48)
    (called,) = llm.chat(question, params, tools=tools)
    (call,) = called.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert (called.text, called.finish_reason) == ("", "tool_calls")
    function = {"name": call.name, "arguments": call.arguments}
    turn = {
        "role": "assistant",
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"celsius": 21}'}
    (answer,) = llm.chat([*question, turn, result], params, tools=tools)
    assert answer.text and not answer.tool_calls and answer.finish_reason == "stop"
    (forced,) = llm.chat(question, params, tools=tools, tool_choice="required")
    assert forced.tool_calls
    (none,) = llm.chat(question, params, tools=tools, tool_choice="none")
    assert none.text and not none.tool_calls
    opened = [*question, {"role": "assistant", "content": "It is"}]
    assert llm.chat(opened, params, continue_final_message=True)[0].text
    sum_only = "{{ bos_token }}<|user|>Add 12 and 30.<|end|><|assistant|>"
    assert "42" in llm.chat(question, params, chat_template=sum_only)[0].text
    with pytest.raises(ValueError, match=r"`chat_template` cannot be used"):
        llm.chat(question, chat_template="{% if %}")
    with pytest.raises(TypeError, match="temperature"):
        llm.chat(question, temperature=0)
    with pytest.raises(ValueError, match=r"tools\[0\]"):
        llm.chat(question, tools=[{"type": "function"}])

    async def alone() -> Completion:
        async with AsyncLLM(**OPTIONS) as other:
            return await other.chat(question, params, tools=tools)

    assert asyncio.run(alone()).tool_calls[0].arguments == call.arguments


def test_beam_search(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, use_beam_search=True, beam_width=4, n=2, ignore_eos=True)
    best, second = llm.generate("Once upon a time", params)
    assert best.token_ids != second.token_ids
    assert best.cumulative_logprob >= second.cumulative_logprob
    greedy = llm.generate("Once upon a time", replace(GREEDY, max_tokens=8, ignore_eos=True))[0]
    assert best.cumulative_logprob >= greedy.cumulative_logprob - 1e-4
    never = llm.generate("Once upon a time", replace(params, early_stopping="never"))[0]
    assert never.token_ids == best.token_ids
    with pytest.raises(ValueError, match="`temperature` cannot be combined"):
        llm.generate("A", replace(params, temperature=0.5))


class Pet:
    """As a class of pydantic's."""

    @staticmethod
    def model_json_schema() -> dict[str, object]:
        name = {"type": "string", "maxLength": 8}
        return {"type": "object", "properties": {"name": name}, "required": ["name"]}


@pytest.mark.parametrize(
    "schema", [Pet, Pet.model_json_schema(), json.dumps(Pet.model_json_schema())]
)
def test_answers_conform_to_a_schema(llm: LLM, schema: object) -> None:
    asked = StructuredOutputsParams(json=schema)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=24, seed=5, n=2, structured_outputs=asked)
    for answer in llm.generate("A pet:", params):
        jsonschema.validate(json.loads(answer.text), Pet.model_json_schema())


@pytest.mark.parametrize(
    ("asked", "expression"),
    [
        (StructuredOutputsParams(regex="[ab]{3}"), "[ab]{3}"),
        (StructuredOutputsParams(regex="^[ab]{3}$"), "[ab]{3}"),
        (StructuredOutputsParams(regex=r"^[ab]{3}\$"), r"[ab]{3}\$"),
        (StructuredOutputsParams(regex=r"[ab]{3}\\$"), r"[ab]{3}\\"),
        (StructuredOutputsParams(choice=("a.c", "x|y")), r"a\.c|x\|y"),
        (StructuredOutputsParams(grammar='start: "yes" | "no"'), "yes|no"),
        (StructuredOutputsParams(json_object=True), r"\{[^\x00]*\}"),
    ],
    ids=["regex", "anchors", "dollar", "backslash", "choice", "grammar", "json_object"],
)
def test_answers_conform_to_other_grammars(
    llm: LLM, asked: StructuredOutputsParams, expression: str
) -> None:
    params = SamplingParams(max_tokens=24, seed=5, structured_outputs=asked)
    turns: list[dict[str, object]] = [{"role": "user", "content": "What is 2 + 3?"}]
    for answer in [*llm.generate("A", params), *llm.chat(turns, params)]:
        assert re.fullmatch(expression, answer.text), answer.text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"json": {"type": "string", "not": {"pattern": "a.b"}}}, "`not`"),
        ({"json": {"type": "object", "not": {}}}, "no document satisfies"),
        ({"json": "{"}, "JSON"),
        ({"regex": "("}, "regular expression"),
        ({"grammar": "start: nothing"}, "nothing"),
    ],
    ids=str,
)
def test_impossible_grammars_are_refused(llm: LLM, asked: dict[str, object], words: str) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**asked))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        llm.generate("A", params)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "one of json, regex, choice, grammar, json_object, not none"),
        ({"json": {}, "regex": "a"}, "not json, regex"),
        ({"regex": ""}, "regex must hold strings that are not empty"),
        ({"choice": ["a", ""]}, "choice must hold strings that are not empty"),
        ({"choice": []}, "choice must not be empty"),
        ({"choice": "yes"}, "choice must be a list of strings"),
        ({"json": {"x": b"bytes"}}, "json must be a JSON schema"),
        ({"json_object": False}, "json_object must be True or None"),
        ({"grammar": "x", "complete": True}, "complete must not be True for a grammar"),
    ],
    ids=str,
)
def test_structured_outputs_params_are_validated_on_construction(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        StructuredOutputsParams(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -1}, "`temperature` must be >= 0.0 .* Given: -1.0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "`top_p` must be > 0.0 and <= 1.0. Given: 0.0"),
        ({"top_k": -2}, "`top_k` must be >= -1"),
        ({"min_p": 1.5}, "`min_p` must be >= 0.0 and <= 1.0"),
        ({"logit_bias": {3: 101}}, "`logit_bias` values must be >= -100.0"),
        ({"bad_words_ids": [[1] * 17]}, "at most 16 entries"),
        ({"bad_words_ids": [[]]}, "lists of at least one token id"),
        ({"use_beam_search": True, "length_penalty": 101}, "`length_penalty` must be"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"seed": 2**64}, "seed"),
        ({"n": 0}, "n must be at least 1"),
        ({"n": 3, "best_of": 2}, "best_of must be at least 3"),
        ({"stop": ["a", ""]}, "stop"),
        ({"beam_width": 2}, "beam_width is only allowed when use_beam_search"),
        ({"use_beam_search": True, "n": 3, "beam_width": 2}, "beam_width must be at least 3"),
        ({"use_beam_search": True, "early_stopping": "now"}, "early_stopping must be True"),
        ({"logprobs": 21}, "`logprobs` must be >= 0 and <= 20. Given: 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be at least 0"),
    ],
    ids=str,
)
def test_sampling_params_are_validated_on_construction(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        SamplingParams(**fields)  # type: ignore[arg-type]


def test_invalid_requests_raise_value_error(llm: LLM) -> None:
    with pytest.raises(ValueError, match="prompt"):
        llm.generate("")
    with pytest.raises(ValueError, match="max_tokens"):
        llm.generate("a", SamplingParams(max_tokens=100_000))
    with pytest.raises(ValueError, match=r"messages\[0\].*`role`"):
        llm.chat([{"content": "x"}])
    with pytest.raises(ValueError, match="99999"):
        llm.generate([99999])
    with pytest.raises(ValueError, match="from 0 to"):
        llm.generate([-1])
    with pytest.raises(ValueError, match="surrogates"):
        llm.generate("\ud800")
    with pytest.raises(ValueError, match="`n` must be"):
        llm.generate("a", SamplingParams(n=4_000_000_000))
    with pytest.raises(TypeError, match="params must be"):
        llm.generate("a", "greedy")  # type: ignore[arg-type]
    assert llm.generate("still here", GREEDY)[0].token_ids


def test_llm_options_are_those_of_the_command_line() -> None:
    with pytest.raises(ValueError, match="--max-len"):
        LLM(max_lne=5)
    with pytest.raises(RuntimeError, match="kv-memory"):
        LLM(kv_memory="4KiB", **OPTIONS)
    with pytest.raises(RuntimeError, match="no such directory"):
        LLM("/nowhere/at/all")


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "int4"])
def test_kv_dtype_reaches_the_workers(llm: LLM, kv_dtype: str) -> None:
    """brook answers as it should, with other logprobs than from a cache of its own dtype."""
    with LLM(kv_dtype=kv_dtype, **OPTIONS) as stored:
        answer = stored.chat([{"role": "user", "content": "What is 12 + 30?"}], GREEDY)[0]
        story = stored.generate("Once upon a time", GREEDY)[0]
    assert "42" in answer.text
    assert story.logprobs != llm.generate("Once upon a time", GREEDY)[0].logprobs
    with pytest.raises(ValueError, match="int3"):
        LLM(kv_dtype="int3")


def test_two_engines_run_in_an_event_loop_and_in_a_thread(llm: LLM) -> None:
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


def test_close_is_idempotent_and_use_after_close_raises() -> None:
    watched = [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD]
    handlers = [signal.getsignal(number) for number in watched]
    llm = LLM(**OPTIONS)
    assert [signal.getsignal(number) for number in watched] == handlers
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("a")


def test_interpreter_exit_ends_the_engine() -> None:
    code = (
        "import penstock; llm = penstock.LLM(device='cpu', threads=1); "
        "print(llm.generate('A', penstock.SamplingParams(max_tokens=2))[0].finish_reason)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.strip() in ("length", "stop")


def test_documentation_examples_run() -> None:
    text = (Path(__file__).parents[2] / "docs/python.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 5
    # In one process: importing is most of the time.
    code = "\n".join(examples).replace("LLM()", "LLM(device='cpu', threads=1, progress=False)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "get_weather Paris" in done.stdout
    assert re.search(r'\{ ?"age" ?: ?-?\d+ ?\}', done.stdout), done.stdout


def test_weights_are_quantized_while_loading() -> None:
    prompt = "Once upon a time there was a fox"
    with LLM(quantize="eetq", **OPTIONS) as quantized:
        answer = quantized.generate(prompt, GREEDY)[0]
    assert answer.token_ids and math.isfinite(answer.cumulative_logprob)
    with pytest.raises(RuntimeError, match="--quantize gptq needs a checkpoint in that format"):
        LLM(quantize="gptq", **OPTIONS)
    with pytest.raises(ValueError, match="quantize"):
        LLM(quantize="int3", **OPTIONS)
