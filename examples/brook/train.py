"""Train brook: one pass over generated batches, bfloat16 arithmetic over float32 weights."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from .data import batches
from .model import Brook, Shape
from .optimizer import optimizers


@dataclass(frozen=True)
class Plan:
    """How to train."""

    # Updates of the weights.
    steps: int
    # Rows of 2,048 tokens in a batch.
    rows: int
    # Processes that make batches.
    processes: int
    # Seed of weights and data.
    seed: int = 1
    # Steps over which the rate rises, and the share of the steps over which it falls.
    warmup: int = 100
    cooldown: float = 0.45


def rate(plan: Plan, step: int) -> float:
    """Factor on the learning rates: rise, stay, fall to nothing."""
    rise = (step + 1) / plan.warmup
    fall = (plan.steps - step) / (plan.steps * plan.cooldown)
    return min(1.0, rise, fall)


def fresh(shape: Shape, seed: int) -> Brook:
    """A model with random weights."""
    torch.manual_seed(seed)
    return Brook(shape)


def train(model: Brook, plan: Plan, tokenizer: Path, device: str) -> Brook:
    """The model, trained on `device`; prints the loss as it goes."""
    torch.set_float32_matmul_precision("high")
    model = model.to(device)
    on_gpu = device == "cuda"
    tuned = optimizers(model, fused=on_gpu)
    full_rates = [[group["lr"] for group in one.param_groups] for one in tuned]
    loss_of = torch.compile(model) if on_gpu else model
    start = time.monotonic()
    reported, before = -1, 0.0
    stream = batches(tokenizer, plan.seed, plan.rows, plan.steps, plan.processes)
    for step, (ids, labels) in enumerate(stream):
        inputs = torch.from_numpy(ids).to(device, non_blocking=True).long()
        targets = torch.from_numpy(labels).to(device, non_blocking=True).long()
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one, rates in zip(tuned, full_rates, strict=True):
            for group, full in zip(one.param_groups, rates, strict=True):
                group["lr"] = full * rate(plan, step)
            one.step()
            one.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == plan.steps - 1:
            seconds = time.monotonic() - start
            speed = (step - reported) * ids.size / (seconds - before)
            reported, before = step, seconds
            report = f"step {step:5d}  loss {loss.item():.4f}  {seconds:6.1f} s"
            print(f"{report}  {speed:,.0f} tokens/s", flush=True)
    return model
