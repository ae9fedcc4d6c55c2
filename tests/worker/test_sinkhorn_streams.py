"""Residual streams that are mixed, by themselves: as transformers computes them."""

from __future__ import annotations

import pytest
import torch
from penstock.config import NormSpec, ResidualSpec, SinkhornSpec
from penstock.layers import Build, MixingConnection
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextHyperConnection

HIDDEN, COUNT, ROUNDS, LEAST, EPS, TOKENS = 24, 3, 4, 0.02, 1e-3, 7
CPU = torch.device("cpu")
FAMILIES = [
    (Glm5NextTextConfig, Glm5NextTextHyperConnection),
    (DeepseekV4Config, DeepseekV4HyperConnection),
]


@pytest.mark.parametrize(("config", "module"), FAMILIES)
@torch.inference_mode()
def test_a_layer_between_mixed_streams(config: type, module: type) -> None:
    """Both families compute the same: the layer's input, and the streams behind it."""
    torch.manual_seed(5)
    sizes = {"hidden_size": HIDDEN, "hc_mult": COUNT, "rms_norm_eps": EPS}
    theirs = module(config(**sizes, hc_sinkhorn_iters=ROUNDS, hc_eps=LEAST)).float()
    for parameter in theirs.parameters():
        parameter.normal_()
    methods = Methods(Unquantized(torch.float32, CPU))
    spec = SinkhornSpec(COUNT, ROUNDS, LEAST, averaged=True)
    residual = ResidualSpec(HIDDEN, NormSpec(EPS), streams=spec)
    ours = MixingConnection(Build(torch.float32, CPU, Group(), methods), residual)
    for name, tensor in (("matrix", theirs.fn), ("base", theirs.base), ("scale", theirs.scale)):
        getattr(ours.logits, name).copy_(tensor)
    ours.logits.finish()
    streams, output = torch.randn(TOKENS, COUNT, HIDDEN), torch.randn(TOKENS, HIDDEN)
    post, comb, collapsed = (each[0] for each in theirs(streams[None]))
    expected = post[..., None] * output[:, None] + comb.mT @ streams
    x, pending = ours(streams)
    torch.testing.assert_close(x, collapsed, rtol=0, atol=1e-5)
    torch.testing.assert_close(pending.plus(output), expected, rtol=0, atol=1e-5)
    some = torch.tensor([4, 1])
    kept = pending.rows(some).plus(output[some])
    torch.testing.assert_close(kept, expected[some], rtol=0, atol=1e-5)
