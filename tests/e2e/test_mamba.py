"""A model without attention behind the server: tokens equal those of `transformers`.

Its sequences have states alone, beside blocks without memory by which the router finds prefixes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from random_models import BROOK, Variant, check_tokens, write_random
from transformers import AutoTokenizer, FalconMambaConfig

STATE_KIB = 4 * 256 * (16 + 3) * 8 // 1024  # in float64, as these tests run
VARIANTS: dict[str, Variant] = {
    "plain": ([], "penstock_prefix_hit_tokens"),
    "16-token chunks": (["--max-step-tokens", "16"], "penstock_prefix_hit_tokens"),
    "three states": (["--kv-memory", f"{3 * STATE_KIB}KiB"], None),
    "two workers": (["--tp", "2"], "penstock_prefix_hit_tokens"),
    "no prefix cache": (["--no-prefix-cache"], None),
    "longer sequences than the default": (["--max-len", "20000"], None),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Falcon Mamba with brook's tokenizer."""
    path = tmp_path_factory.mktemp("mamba")
    config = FalconMambaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(BROOK)),
        hidden_size=128,
        num_hidden_layers=4,
        tie_word_embeddings=False,
    )
    return write_random(path, config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_equal_transformers(
    tmp_path: Path,
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    variant: str,
) -> None:
    check_tokens(tmp_path / "serve.log", model, prompts, expected, VARIANTS[variant])
