"""Reference of token_logprobs in torch."""

from __future__ import annotations

from torch import Tensor

from ..shared import wide


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """See the public function."""
    x = wide(logits)
    chosen = x.gather(1, ids[:, None]).squeeze(1)
    return (chosen - x.logsumexp(dim=-1)).float()
