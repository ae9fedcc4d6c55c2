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


def table(rows: dict[str, Row]) -> str:
    """Markdown: a line per format; divergences are per 1,000 tokens, and tasks that all formats
    answer alike share a column."""
    same: dict[tuple[float, ...], list[str]] = defaultdict(list)
    for kind in next(iter(rows.values()))["accuracies"]:
        same[tuple(row["accuracies"][kind] for row in rows.values())].append(kind)
    columns = list(same.items())
    titles = [", ".join(kinds) for _, kinds in columns]
    lines = [f"| weights | bits | divergence | perplexity | all tasks | {' | '.join(titles)} |"]
    lines.append("|---" * (5 + len(titles)) + "|")
    for index, (name, row) in enumerate(rows.items()):
        mean = sum(row["accuracies"].values()) / len(row["accuracies"])
        cells = [f"{column[index]:.0%}" for column, _ in columns]
        first = f"| {name} | {row['bits']:.3g} | {1e3 * row['divergence']:.3f}"
        first += f" | {row['perplexity']:.4f} | {mean:.1%}"
        lines.append(f"{first} | {' | '.join(cells)} |")
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
    axes[1].set_xlim(7.9, 8.3)
    for axis in axes:
        axis.grid(which="both", alpha=0.25)
    figure.supxlabel("bits per weight, scales included", fontsize="medium")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, metadata={"Date": None})
