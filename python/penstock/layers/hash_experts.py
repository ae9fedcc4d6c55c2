"""Experts that follow from the token's id (hash layers, arXiv:2106.04426; DeepSeek-V4).

The router's logits weigh the experts, and do not choose them.
"""

from __future__ import annotations

import torch
from penstock_kernels import linear, route_experts
from penstock_kernels.route_experts import Routed
from torch import Tensor

from penstock.config import MoeSpec, ResidualSpec
from penstock.faults import BadModel
from penstock.layers.base import Build
from penstock.layers.experts import MoeMlp, Router
from penstock.weights import Target


class HashRouter(Router):
    """Looks up the experts of each token, and weighs them; replicated on every rank."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        super().__init__(build, residual, spec)
        self.total = spec.experts
        shape = (spec.router.tokens, spec.routing.top_k)
        self.table = torch.empty(shape, dtype=torch.int64, device=build.device)

    def targets(self) -> dict[str, Target]:
        """Also returns the target of the table."""
        return {**super().targets(), "tid2eid": Target.whole(self.table)}

    def finish(self) -> None:
        """Raises BadModel for experts that there are not."""
        super().finish()
        least, most = self.table.aminmax()
        if least < 0 or most >= self.total:
            raise BadModel(
                f"tid2eid names the experts {int(least)} to {int(most)}, of {self.total}; the file "
                "is damaged"
            )

    def of_tokens(self, x: Tensor, ids: Tensor) -> Routed:
        """Returns the experts of each row of a normalised x [T, hidden], by the token ids [T], and
        their weights."""
        chosen = self.table.index_select(0, ids.long())
        logits = linear(x.to(self.weight.dtype), self.weight, self.bias).gather(1, chosen)
        order, weights = route_experts(logits, None, self.routing)  # of as many as it chooses
        # While kernels are only compiled, the order may hold anything.
        order = order.long().clamp(0, chosen.shape[1] - 1)
        return Routed(chosen.gather(1, order).int(), weights)


class HashMoeMlp(MoeMlp):
    """As MoeMlp, with a HashRouter."""

    router: HashRouter
    router_type = HashRouter

    def product_of(self, x: Tensor, ids: Tensor) -> Tensor:
        """As `MoeMlp.product`, for the token ids [T]."""
        return self._product(x, self.router.of_tokens(x, ids))
