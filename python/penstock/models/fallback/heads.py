"""A rank's heads of a layer that transformers' module computes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock.parallel import Group


@dataclass(frozen=True)
class Heads:
    """The heads that a rank attends with.

    If ranks share the linear layers around attention, the module makes this rank's heads alone.
    Otherwise it makes those of all ranks (`whole`): the rank takes its part of them, so that the KV
    cache is shared nevertheless, and the outputs of all ranks are gathered.
    """

    query: int
    """Of all ranks."""
    kv: int
    """Of all ranks. There may be fewer than ranks if `whole`; see `Group.kv_share`."""
    group: Group
    whole: bool

    @property
    def given(self) -> tuple[int, int]:
        """Query heads and KV heads that the module makes."""
        ranks = 1 if self.whole else self.group.size
        return self.query // ranks, self.kv // ranks

    def own(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [1, heads, T, D], k and v [1, kv_heads, T, D] as given -> those of this rank."""
        if not self.whole:
            return q, k, v
        share = self.group.kv_share(self.kv)
        count = self.kv // share.count
        first = share.index * count
        return self.own_queries(q, 1), k.narrow(1, first, count), v.narrow(1, first, count)

    def own_queries(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of a dimension of all query heads."""
        count = self.query // self.group.size
        return x.narrow(dim, self.group.rank * count, count)

    def joined(self, mixed: Tensor) -> Tensor:
        """Outputs [T, this rank's heads, E] -> those that the module expects, [T, heads, E]."""
        if not self.whole:
            return mixed
        rows = self.group.join_columns(mixed.flatten(1))
        return rows.view(len(mixed), self.query, mixed.shape[-1])
