"""What `n` saves: tokens that the model runs for n answers to a prompt, and their time, against n
requests of one answer each. Counted by the server's own `penstock_computed_tokens`.

    penstock serve --no-prefix-cache &
    python bench/choices.py --prompt 1024 --output 64 --n 4 --groups 8

Run it against a server with its prefix cache too: n requests that arrive together then share most
of the prompt as well, and what is left to save is the last block of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

COUNTER = r"^penstock_computed_tokens (\d+)"


@dataclass(frozen=True)
class Figures:
    """Of all groups together."""

    computed: int  # tokens that ran
    generated: int
    seconds: float

    @property
    def prompt_work(self) -> int:
        """Tokens that ran to read prompts: the last token of an answer never runs."""
        return self.computed - self.generated


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)  # type: ignore[no-any-return]


def computed(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        found = re.search(COUNTER, reply.read().decode(), re.MULTILINE)
    if found is None:
        raise SystemExit("the server has no penstock_computed_tokens: is it Penstock?")
    return int(found[1])


async def run(url: str, bodies: list[dict[str, Any]]) -> Figures:
    """Sends all at once."""
    before, began = computed(url), time.perf_counter()
    replies = await asyncio.gather(*(asyncio.to_thread(post, url, body) for body in bodies))
    seconds = time.perf_counter() - began
    generated = sum(reply["usage"]["completion_tokens"] for reply in replies)
    # The last token of each answer is generated, but does not run.
    answers = sum(len(reply["choices"]) for reply in replies)
    return Figures(computed(url) - before, generated - answers, seconds)


def bodies(args: argparse.Namespace, seed: int, n: int) -> list[dict[str, Any]]:
    """A prompt of its own for each group: `args.n` answers to it, in requests of n."""
    source = random.Random(seed)
    common = {"max_tokens": args.output, "ignore_eos": True, "n": n}
    prompts = [[source.randrange(5, args.vocabulary) for _ in range(args.prompt)]
               for _ in range(args.groups)]  # fmt: skip
    return [
        {**common, "prompt": prompt, "seed": seed}
        for prompt in prompts
        for seed in range(args.n // n)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens")
    parser.add_argument("--output", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--groups", type=int, default=8, help="prompts at once")
    parser.add_argument("--vocabulary", type=int, default=4000, help="prompt ids are below it")
    args = parser.parse_args()
    asyncio.run(run(args.url, bodies(args, 0, args.n)))  # warm-up
    single = asyncio.run(run(args.url, bodies(args, 1, 1)))
    together = asyncio.run(run(args.url, bodies(args, 2, args.n)))
    for name, figures in ((f"{args.n} requests", single), (f"n = {args.n}", together)):
        print(
            f"{name:12}  prompt work {figures.prompt_work:8,} tokens  all {figures.computed:8,}  "
            f"{figures.seconds:6.2f} s"
        )
    print(f"prompt work saved: {1 - together.prompt_work / single.prompt_work:.1%}")


if __name__ == "__main__":
    main()
