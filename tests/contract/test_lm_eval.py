"""`lm-eval` measures brook over the OpenAI routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import penstock
import pytest
from serving import Server

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra `clients`")

BROOK = Path(penstock.__file__).parent / "brook"
SUMS = [(12, 30), (7, 8), (20, 21), (3, 9)]


def contains(predictions: list[str], references: list[str], **_: object) -> float:
    return float(references[0] in predictions[0])


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    lines = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in SUMS]
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


def evaluate(server: Server, model: str, route: str, task: dict[str, Any], **more: Any) -> Any:
    arguments = {
        "model": "brook",
        "base_url": f"{server.url}/v1/{route}",
        "tokenizer": str(BROOK),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 2,
        "max_retries": 1,
    }
    found = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=[task], bootstrap_iters=0, **more
    )
    return found["results"]["sums"]


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
