"""--quantize beside a quantized checkpoint: it names the checkpoint's format, or is refused.

The launcher's tests read the same cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from local import LocalWorker, Refused
from penstock.faults import BadModel, BadSetting
from penstock.quant import read_methods
from penstock.quant.formats import AGREEING
from quantized import HOST
from quantized import quantized as rewritten
from test_gptq import settings

CASES = json.loads((Path(__file__).parent / "agreement.json").read_text())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["config"]["quant_method"])
def test_a_flag_agrees_with_the_checkpoint_or_is_refused(case: dict[str, Any]) -> None:
    raw = {"quantization_config": case["config"]}

    def agrees(quantize: str) -> bool:
        try:
            read_methods(raw, torch.float32, HOST, quantize)
        except BadSetting as error:
            assert f"--quantize {quantize} contradicts the checkpoint" in str(error)
            return False
        return True

    assert [name for name in sorted(AGREEING) if agrees(name)] == case["agrees"]


def test_what_is_wrong_in_the_checkpoint_comes_first() -> None:
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": "lm_head"}
    with pytest.raises(BadModel, match="ignore must be a list of modules"):
        read_methods({"quantization_config": config}, torch.float32, HOST, "gptq")


@pytest.mark.parametrize(
    ("asked", "config", "found"),
    [
        ("int4", settings(), "quant_method 'gptq'"),
        (
            "bitsandbytes-nf4",
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            r"quant_method 'bitsandbytes' \(bitsandbytes\)",
        ),
    ],
)
def test_a_contradiction_names_both(
    checkpoint: Callable[[str], Path],
    asked: str,
    config: dict[str, Any],
    found: str,
    tmp_path: Path,
) -> None:
    stored, _ = rewritten(checkpoint("llama31"), tmp_path, lambda m: ({"weight": m}, m), config)
    with pytest.raises(Refused, match=f"--quantize {asked} contradicts .* has {found}") as refused:
        LocalWorker().load(stored, quantize=asked)
    assert "INVALID_ARGUMENT" in str(refused.value)
