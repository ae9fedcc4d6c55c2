"""Muon for the matrices of the layers, AdamW for the embedding and the norms.

Muon (Keller Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/) takes the momentum of
a matrix's gradient to the nearest orthogonal matrix by a Newton-Schulz iteration.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearest orthogonal matrices, roughly; [count, rows, columns], any float -> bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon over matrices; those of one shape are handled together."""

    def __init__(self, matrices: list[nn.Parameter], lr: float, decay: float) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            groups[matrix.shape].append(matrix)
        super().__init__(
            [{"params": group} for group in groups.values()], {"lr": lr, "decay": decay}
        )
        self._orthogonal = torch.compile(orthogonal) if matrices[0].is_cuda else orthogonal

    @torch.no_grad()
    def step(self) -> None:
        """One update, with Nesterov momentum 0.95."""
        for group in self.param_groups:
            weights: list[Tensor] = group["params"]
            gradients = torch.stack([weight.grad for weight in weights])
            state = self.state[weights[0]]
            if not state:
                state["momentum"] = torch.zeros_like(gradients)
            momentum = state["momentum"].lerp_(gradients, 0.05)
            update = self._orthogonal(gradients.lerp(momentum, 0.95)).float()
            rows, columns = weights[0].shape
            scale = max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(weights, 1 - group["lr"] * group["decay"])
            torch._foreach_add_(weights, list(update.unbind()), alpha=-group["lr"] * scale)


def optimizers(model: nn.Module, fused: bool) -> list[torch.optim.Optimizer]:
    """The two optimizers of a model, at their full learning rates."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
    others = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed" in name]
    adam = torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)
    return [Muon(matrices, lr=0.02, decay=0.02), adam]
