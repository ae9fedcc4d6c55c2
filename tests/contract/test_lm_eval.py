"""`lm-eval` measures brook over the OpenAI routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import penstock
import pytest
import torch
from serving import Server
from transformers import AutoModelForCausalLM, AutoTokenizer

lm_eval = pytest.importorskip("lm_eval", reason="`make client-test` installs it")

BROOK = Path(penstock.__file__).parent / "brook"
TOLERANCE = 2e-3  # float32 on both sides, of a sum over the tokens of a choice
# A text, how it may go on, and which of these is meant to be right. brook gets some of them wrong.
STORIES = [
    ("Once upon a time there was a", [" fox", " carburettor", " seven"], 0),
    ("The owl lived in an old", [" oak tree", " parliament of numbers"], 0),
    ("What is 2 + 3? It is", [" 5", " 55", " the moon"], 2),
    ("All was", [" well.", " badly adjusted."], 0),
    ("日本 is", [" far away", " ✓✓", " 日本"], 0),
    ("It was a warm day in", [" spring", " January"], 1),
]
SUMS = [(12, 30), (7, 8), (20, 21), (3, 9)]


def contains(predictions: list[str], references: list[str], **_: object) -> float:
    return float(references[0] in predictions[0])


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    lines = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in SUMS]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "stories.jsonl"
    lines = [{"text": text, "choices": choices, "right": right} for text, choices, right in STORIES]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def task(data: Path, **fields: Any) -> dict[str, Any]:
    return {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": str(data)},
        "test_split": "train",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        **fields,
    }


def evaluate(
    server: Server, model: str, route: str, task: dict[str, Any], settings: Any = None, **more: Any
) -> Any:
    arguments = {
        "model": "brook",
        "base_url": f"{server.url}/v1/{route}",
        "tokenizer": str(BROOK),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 2,
        "max_retries": 1,
        **(settings or {}),
    }
    found = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=[task], bootstrap_iters=0, **more
    )
    return found["results"][task["task"]] | {"samples": found["samples"][task["task"]]}


def test_local_chat_completions(server: Server, sums: Path) -> None:
    generates = task(
        sums,
        output_type="generate_until",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 24},
        metric_list=[{"metric": contains, "aggregation": "mean", "higher_is_better": True}],
    )
    found = evaluate(
        server,
        "local-chat-completions",
        "chat/completions",
        generates,
        apply_chat_template=True,
    )
    assert found["contains,none"] >= 0.5


def test_local_completions(server: Server, sums: Path) -> None:
    generates = task(
        sums,
        output_type="generate_until",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 8},
        metric_list=[{"metric": contains, "aggregation": "mean", "higher_is_better": True}],
    )
    found = evaluate(server, "local-completions", "completions", generates)
    assert 0 <= found["contains,none"] <= 1


class Oracle:
    """brook by transformers."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(BROOK)
        self.model = AutoModelForCausalLM.from_pretrained(BROOK, dtype=torch.float32).eval()

    def score(self, context: str, continuation: str, bos: bool) -> tuple[float, bool]:
        """The continuation's log-likelihood, and whether each of its tokens is the likeliest."""
        encode = self.tokenizer
        ids = encode(context + continuation, add_special_tokens=bos).input_ids
        start = len(encode(context, add_special_tokens=bos).input_ids)
        with torch.inference_mode():
            rows = self.model(torch.tensor([ids])).logits[0, start - 1 : -1].double()
        own = torch.tensor(ids[start:])
        logprobs = rows.log_softmax(-1).gather(1, own[:, None])
        return float(logprobs.sum()), bool((rows.argmax(-1) == own).all())


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.mark.parametrize(
    ("settings", "bos"),
    [
        ({}, False),
        ({"add_bos_token": True, "batch_size": 4, "num_concurrent": 1}, True),
    ],
    ids=["ids", "lists of ids"],
)
def test_multiple_choice(
    server: Server, stories: Path, oracle: Oracle, settings: dict[str, Any], bos: bool
) -> None:
    chooses = task(
        stories,
        task="stories",
        output_type="multiple_choice",
        doc_to_text="{{text}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{right}}",
        target_delimiter="",
        metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}],
    )
    found = evaluate(server, "local-completions", "completions", chooses, settings)
    assert len(found["samples"]) == len(STORIES)
    right = right_for_length = 0
    for sample in found["samples"]:
        text, choices, target = STORIES[sample["doc_id"]]
        expected = [oracle.score(text, choice, bos) for choice in choices]
        sums = [logprob for logprob, _ in expected]
        assert [r[0] for r in sample["filtered_resps"]] == pytest.approx(sums, abs=TOLERANCE)
        assert [r[1] for r in sample["filtered_resps"]] == [greedy for _, greedy in expected]
        best = max(range(len(sums)), key=sums.__getitem__)
        right += best == target
        each = [logprob / len(choice) for logprob, choice in zip(sums, choices, strict=True)]
        right_for_length += max(range(len(each)), key=each.__getitem__) == target
    assert 0 < right < len(STORIES)
    assert found["acc,none"] == pytest.approx(right / len(STORIES))
    assert found["acc_norm,none"] == pytest.approx(right_for_length / len(STORIES))


def test_rolling_log_likelihoods(server: Server, stories: Path, oracle: Oracle) -> None:
    """The perplexity of whole texts: the first token is scored too, after the beginning."""
    rolls = task(
        stories,
        task="texts",
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity"}],
    )
    found = evaluate(server, "local-completions", "completions", rolls)
    for sample in found["samples"]:
        text = STORIES[sample["doc_id"]][0]
        ids = oracle.tokenizer(text).input_ids
        with torch.inference_mode():
            rows = oracle.model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
        expected = float(rows.gather(1, torch.tensor(ids[1:])[:, None]).sum())
        assert sample["filtered_resps"] == [pytest.approx(expected, abs=TOLERANCE)]


def test_text_prompts_score_like_token_ids(server: Server, oracle: Oracle) -> None:
    """The offsets of an echoed text tell where its continuation begins."""
    pairs = [(context, choice) for context, choices, _ in STORIES for choice in choices]
    texts = [context + continuation for context, continuation in pairs]
    asked = {"prompt": texts, "max_tokens": 0, "echo": True, "logprobs": 1}
    choices = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).json()["choices"]
    for (context, continuation), choice in zip(pairs, choices, strict=True):
        result = choice["logprobs"]
        places = list(
            zip(result["text_offset"], result["tokens"], result["top_logprobs"], strict=True)
        )
        own = zip(result["text_offset"], result["token_logprobs"], strict=True)
        found = sum(logprob for offset, logprob in own if offset >= len(context))
        expected, greedy = oracle.score(context, continuation, bos=True)
        assert found == pytest.approx(expected, abs=TOLERANCE)
        after = [(token, top) for offset, token, top in places if offset >= len(context)]
        assert all(token == max(top, key=top.get) for token, top in after) == greedy
