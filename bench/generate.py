"""Times `generate` of transformers on a GPU: one request of random tokens at a time.

    PYTHONPATH=bench python -m harness.checkpoint 8b /dev/shm/8b
    python bench/run.py generate /dev/shm/8b --quantize nf4

The peer of `bench/run.py h200 8b --rows c1 --serve --quantize bitsandbytes-nf4`. Prints the time to
the first token and the time per token after it, in ms: medians of the requests. Needs accelerate.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

CUDA = torch.device("cuda")


def load(checkpoint: Path, quantize: str) -> Any:
    """The library's model, in bfloat16 unless `quantize` is a 4-bit type of bitsandbytes."""
    config = None
    if quantize:
        config = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type=quantize, bnb_4bit_compute_dtype=torch.bfloat16
        )
    return AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, quantization_config=config, device_map={"": 0}
    ).eval()


def seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def request(model: Any, seed: int, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds to the first token, and of each one after it."""
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(1000, 30000, (1, options.input), generator=drawn).to(CUDA)

    def generate(tokens: int) -> None:
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            pad_token_id=0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )

    first, whole = (seconds(partial(generate, tokens)) for tokens in (1, options.output))
    return first, (whole - first) / (options.output - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--quantize", choices=("nf4", "fp4"), default="")
    parser.add_argument("--input", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--requests", type=int, default=6)
    options = parser.parse_args()
    if options.output < 2:
        parser.error("--output must be at least 2: the time per token is of those after the first")
    if not torch.cuda.is_available():
        sys.exit("bench/generate.py times a GPU, and torch sees no CUDA device here.")
    model = load(options.checkpoint, options.quantize)
    with torch.inference_mode():
        times = [request(model, seed, options) for seed in range(options.requests + 1)]
    first, other = (1e3 * median(column) for column in zip(*times[1:], strict=True))  # 0 warms up
    name = torch.cuda.get_device_name()
    print(f"{name}: TTFT {first:.1f} ms, TPOT {other:.2f} ms")


if __name__ == "__main__":
    main()
