"""What the serving table is measured against: two peers on the same GPU, and the goals.

The peers are vLLM 0.24.0 and LMDeploy TurboMind 0.18.0 on one H200, random weights, the same
shapes and loads, by `vllm bench serve`; with two GPUs vLLM alone, with its own all-reduce kernel.
`floor` is what the measured ceilings of the device would allow.
"""

from __future__ import annotations

from dataclasses import dataclass

Peers = tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class Target:
    """One line of the table: a figure of a row, and what it is held against; None = unknown."""

    row: str
    figure: str
    title: str
    vllm: float | None
    turbomind: float | None
    floor: float | None
    must: float
    aim: float
    higher: bool = False  # whether more is better

    def verdict(self, value: float) -> str:
        for name, goal in (("aim", self.aim), ("must", self.must)):
            if value >= goal if self.higher else value <= goal:
                return name
        return "behind"


def _rate(row: str, title: str, peers: Peers, goals: tuple[float, float]) -> Target:
    figure = "input_rate" if row == "prefill" else "output_rate"
    return Target(row, figure, title, *peers, *goals, higher=True)


TARGETS: dict[tuple[str, int], list[Target]] = {
    ("8b", 1): [
        Target("c1", "tpot_mean", "1 stream, 128/256: TPOT ms", 4.86, 5.14, 3.53, 4.1, 3.8),
        Target("c1", "ttft_mean", "same: TTFT ms", 21.1, 12.5, 4, 10, 7),
        _rate("c32", "32 streams, 512/256: output tok/s", (4339, 4150, 5950), (5000, 5400)),
        _rate("c256", "256 streams, 1024/256: output tok/s", (6152, 6081, 7900), (6500, 6900)),
        _rate("prefill", "16 streams, 4096/1: prompt tok/s", (41688, 38772, 49800), (44000, 46000)),
        Target("start", "warm", "start to first token, kernels compiled: s", None, 12.7, 3, 9, 6),
        Target("start", "cold", "start to first token, nothing compiled: s", 133, None, 3, 20, 12),
        Target("long", "slowdown", "ITL p99 beside 32k prompts / median", None, None, 1, 3, 2),
        Target("long", "ttft_p99", "those prompts' TTFT p99: s", None, None, None, 4, 4),
    ],
    ("1b", 1): [
        Target("c1", "tpot_mean", "1 stream, 128/256: TPOT ms", 2.47, 1.41, 0.58, 1.1, 0.9),
        Target("c1", "ttft_mean", "same: TTFT ms", 17, 6.1, 1, 5, 3.5),
        _rate("c32", "32 streams, 512/256: output tok/s", (8957, 14626, 36000), (19000, 24000)),
        _rate("c256", "256 streams, 1024/256: output tok/s", (12284, 24050, 44000), (28000, 33000)),
    ],
    ("8b", 2): [
        Target("c1", "tpot_mean", "1 stream, 128/256: TPOT ms", 3.50, None, None, 2.9, 2.5),
        # No goal was set: the peer's figure is one, and half of it.
        Target("c1", "ttft_mean", "same: TTFT ms", 12.2, None, None, 12.2, 6.1),
        _rate("c32", "32 streams, 512/256: output tok/s", (6352, None, None), (7000, 7800)),
        _rate("c256", "256 streams, 1024/256: output tok/s", (10449, None, None), (11000, 12000)),
    ],
}
