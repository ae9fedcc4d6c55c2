"""The reference of rg_lru against its definition, one token after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from penstock_kernels import rg_lru
from penstock_kernels.case import Case, Size
from penstock_kernels.rg_lru.cases import CASES
from penstock_kernels.rg_lru.reference import rg_lru as reference
from torch.nn.functional import gelu

SMALL = [case for case in CASES if case.size is Size.SMALL and case.name.startswith("f32")]


def made(case: Case) -> dict[str, Any]:
    """Arguments in float64."""
    torch.manual_seed(3)
    return {
        name: value.double() if isinstance(value, torch.Tensor) else value
        for name, value in case.make(torch.device("cpu")).items()
    }


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_token_by_token(case: Case) -> None:
    given = made(case)
    rate, biases = (each.double() for each in given["channels"])
    states, gates = given["states"].clone(), given["gates"] + biases
    out = reference(**given)
    for rows, block, begun in given["runs"].each():
        state = states[block, 0, 0, 0] * begun
        for token in range(rows.start, rows.stop):
            opened, kept = (gates[token, :, i].flatten().sigmoid() for i in (0, 1))
            decay = torch.exp(-rate * kept)
            is_first = not begun and token == rows.start
            scale = 1.0 if is_first else torch.sqrt(1 - decay**2)
            state = decay * state + scale * opened * given["x"][token]
            expected = state * gelu(given["beside"][token], approximate="tanh")
            torch.testing.assert_close(out[token], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(given["states"][block, 0, 0, 0], state, rtol=0, atol=1e-10)


def test_arguments_are_checked() -> None:
    given = made(SMALL[0])
    rate, biases = given["channels"]
    wrong: dict[str, tuple[Any, str]] = {
        "x": (given["x"].T.contiguous().T, "x has strides"),
        "beside": (given["beside"].float(), "beside is torch.float32"),
        "gates": (given["gates"][:, :3], "3 blocks of gates do not divide 64"),
        "channels": ((rate, biases.mT), "biases has shape"),
        "states": (given["states"][..., 1:], "states has shape"),
    }
    for name, (value, text) in wrong.items():
        with pytest.raises(ValueError, match=text):
            rg_lru(**{**given, name: value})
