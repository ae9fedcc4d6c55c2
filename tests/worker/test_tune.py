"""What `penstock tune` measures: the products of a rank, whatever the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.faults import Fault
from penstock.tune import problems
from penstock_kernels.linear.plan import Problem

EIGHT = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


def write(folder: Path, **changes: object) -> Path:
    (folder / "config.json").write_text(json.dumps(EIGHT | changes))
    return folder


def test_every_matrix_product_is_listed_once(tmp_path: Path) -> None:
    assert problems(write(tmp_path), 1) == [
        Problem(6144, 4096, False),
        Problem(4096, 4096, False),
        Problem(14336, 4096, True),
        Problem(4096, 14336, False),
        Problem(128256, 4096, False),
    ]


def test_problems_of_one_rank(tmp_path: Path) -> None:
    assert problems(write(tmp_path, tie_word_embeddings=True, vocab_size=32003), 2) == [
        Problem(3072, 4096, False),
        Problem(4096, 2048, False),
        Problem(7168, 4096, True),
        Problem(4096, 7168, False),
        Problem(16002, 4096, False),
    ]


def test_biased_gate_is_a_separate_problem(tmp_path: Path) -> None:
    assert Problem(28672, 4096, False) in problems(write(tmp_path, mlp_bias=True), 1)


def test_indivisible_or_unreadable_model_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="num_attention_heads is 32, which 3 ranks"):
        problems(write(tmp_path), 3)
    with pytest.raises(Fault, match="does not exist"):
        problems(tmp_path / "nowhere", 1)


def test_tune_command_explains_its_failure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.tune", "--model", str(write(tmp_path)), "--tp", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: num_attention_heads is 32")
