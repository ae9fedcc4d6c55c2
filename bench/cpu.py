"""Brook on the CPU: Penstock over HTTP against `transformers.generate`, in the same run.

Prints tokens per second at one stream and at 16, beside `generate` called one request at a time
with the same dtype and all cores.

    python bench/cpu.py --load target/release/penstock-load --launcher target/release/penstock
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import free_port, running, wait_ready

TOKENS = 128
PEER = """
import sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, tokens = sys.argv[1], int(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = tokenizer("0 river gate opens and water runs down the river gate opens and water runs down",
                return_tensors="pt")
options = dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
with torch.inference_mode():
    model.generate(**ids, **options | {"max_new_tokens": 8, "min_new_tokens": 8})
    began = time.perf_counter()
    for _ in range(4):
        model.generate(**ids, **options)
print(4 * tokens / (time.perf_counter() - began))
"""


def transformers_rate(folder: Path) -> float:
    """Tokens per second of `generate`, one request at a time."""
    command = [sys.executable, "-c", PEER, str(folder), str(TOKENS)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.split()[-1])


def penstock_rates(
    launcher: list[str], folder: Path, load: Path, streams: list[int]
) -> dict[int, float]:
    """Tokens per second over HTTP at each number of streams."""
    port = free_port()
    serve = [*launcher, "serve", "--model", str(folder)]
    serve += ["--device", "cpu", "--dtype", "float32", "--port", str(port)]
    client = [str(load), "--address", f"127.0.0.1:{port}", "--api", "completions"]
    client += ["--tokens", str(TOKENS), "--words", "14"]
    rates = {}
    with tempfile.TemporaryDirectory() as temp, running(serve, Path(temp) / "log") as server:
        wait_ready(f"http://127.0.0.1:{port}/ready", server)
        for count in [1, *streams]:  # the first is the warm-up
            requests = str(max(4, count))
            command = [*client, "--streams", str(count), "--requests", requests]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rates[count] = float(json.loads(out)["tokens_per_second"])
            time.sleep(0.2)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=Path, required=True)
    brook = Path(__file__).resolve().parents[1] / "python/penstock/brook"
    parser.add_argument("--model", type=Path, default=brook)
    parser.add_argument("--launcher", help="the native one; without it, `python -m penstock`")
    args = parser.parse_args()
    launcher = [args.launcher] if args.launcher else [sys.executable, "-m", "penstock"]
    peer = transformers_rate(args.model)
    rates = penstock_rates(launcher, args.model, args.load, [1, 16])
    print("| streams | penstock tok/s | transformers tok/s | ratio |\n|---|---|---|---|")
    for count, rate in rates.items():
        print(f"| {count} | {rate:,.0f} | {peer:,.0f} | {rate / peer:.1f} |")


if __name__ == "__main__":
    main()
