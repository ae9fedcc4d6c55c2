"""The table and the plot of what `quality.py` measured."""

from collections import defaultdict
from pathlib import Path
from typing import TypedDict


class Row(TypedDict):
    """What was measured of a format."""

    bits: float
    perplexity: float
    divergence: float
    accuracies: dict[str, float]


class Results(TypedDict):
    """What a file of results has."""

    count: int
    """Instances of each kind; questions with a distance are half as many."""
    rows: dict[str, Row]


def table(rows: dict[str, Row]) -> str:
    """Markdown: a line per format, ordered by divergence, which is per 1,000 tokens. The last
    column has the accuracy of each task with wrong answers."""
    titles = (
        "weights",
        "bits per weight",
        "divergence from bf16",
        "perplexity",
        "13 tasks",
        "below 100%",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, row in sorted(rows.items(), key=lambda one: one[1]["divergence"]):
        accuracies = row["accuracies"]
        mean = sum(accuracies.values()) / len(accuracies)
        below = [f"{kind} {share:.0%}" for kind, share in accuracies.items() if share < 1]
        cells = [name, f"{row['bits']:.4g}", f"{1e3 * row['divergence']:.3f}"]
        cells += [f"{row['perplexity']:.4f}", f"{mean:.1%}", ", ".join(below)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: dict[str, Row], path: Path) -> None:
    """The divergences from bf16 over bits per weight; formats that differ in their groups alone are
    a line."""
    from matplotlib.figure import Figure

    families: dict[str, list[Row]] = defaultdict(list)
    for name, row in rows.items():
        if row["divergence"]:
            families[name.partition(",")[0]].append(row)
    figure = Figure(figsize=(8.5, 5.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    for index, (family, found) in enumerate(families.items()):
        narrow = found[0]["bits"] < 6
        found.sort(key=lambda row: row["bits"])
        axes[0 if narrow else 1].plot(
            [row["bits"] for row in found],
            [1e3 * row["divergence"] for row in found],
            marker="os^Dv<>P*"[index % 9],
            color=f"C{index % 10}",
            linestyle="-" if index < 10 else "--",
            label=family,
        )
    axes[0].set_yscale("log")
    axes[0].set_ylabel("divergence from bf16, nats per 1,000 tokens")
    axes[0].set_xlim(3.9, 5.1)
    axes[1].set_xlim(7.9, 8.6)
    for axis in axes:
        axis.grid(which="both", alpha=0.25)
    figure.supxlabel("bits per weight, scales included", fontsize="medium")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, metadata={"Date": None})
