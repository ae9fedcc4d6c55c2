"""The reference of channel_scan against its definition, one token after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from penstock_kernels import channel_scan
from penstock_kernels.case import Case, Size
from penstock_kernels.channel_scan.cases import CASES
from penstock_kernels.channel_scan.reference import channel_scan as reference
from torch.nn.functional import silu

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
    x, b, c = given["x"], given["b"], given["c"]
    decay_log, bias, skip = (each.double() for each in given["channels"])
    states, size = given["states"].clone(), x.shape[1] // b.shape[1]
    out = reference(**given)
    for rows, block, begun in given["runs"].each():
        state = states[block, 0, 0].T * begun
        for token in range(rows.start, rows.stop):
            dt = torch.log1p((given["step"][token] + bias).exp())[:, None]
            added, asked = (each[token].repeat_interleave(size, 0) for each in (b, c))  # [D, N]
            state = torch.exp(-decay_log.exp() * dt) * state + dt * x[token, :, None] * added
            read = (state * asked).sum(1) + skip * x[token]
            expected = read * silu(given["gate"][token])
            torch.testing.assert_close(out[token], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(given["states"][block, 0, 0].T, state, rtol=0, atol=1e-10)


def test_arguments_are_checked() -> None:
    given = made(SMALL[0])
    decay_log, bias, skip = given["channels"]
    wrong: dict[str, tuple[Any, str]] = {
        "b": (given["b"][:, :, :4], "c has shape"),
        "x": (given["x"][:, 1:], "step has shape"),
        "c": (given["c"].float(), "c is torch.float32"),
        "gate": (given["gate"][:, 1:], "gate has shape"),
        "step": (given["step"].T.contiguous().T, "step has strides"),
        "channels": ((decay_log.T, bias, skip), "decay_log has shape"),
        "states": (given["states"].mT, "states has"),
    }
    for name, (value, text) in wrong.items():
        with pytest.raises(ValueError, match=text):
            channel_scan(**{**given, name: value})
