"""Plots of training and of acceptance, from logs and results; needs matplotlib.

In:  `log.jsonl` of a run, or acceptance by depth. Out: PNG files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")  # files only: there may be no screen

import matplotlib.pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg

from headlong.train.progress import read_log


def list_kinds() -> list[str]:
    """Return the suffixes of the pictures that can be drawn."""
    return sorted(FigureCanvasAgg.get_supported_filetypes())


def draw_training(log: Path, folder: Path) -> Path:
    """Draw loss and expected acceptance per depth over the steps of a run."""
    records = read_log(log, "train")
    steps = [record["step"] for record in records]
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(8, 7))
    upper.plot(steps, [record["loss"] for record in records], color="black")
    upper.set_ylabel("loss")
    num_depths = max((len(record["overlap"]) for record in records), default=0)
    for depth in range(num_depths):
        values = [record["overlap"][depth] for record in records]
        lower.plot(steps, values, label=f"depth {depth + 1}")
    lower.set_ylabel("probability that a sampled draft is accepted")
    lower.set_xlabel("step")
    if num_depths:
        lower.legend(ncols=4, fontsize="small")
    return _save(figure, folder / "training.png")


def draw_acceptance(
    lengths: Mapping[str, Sequence[float]], depths: Sequence[int], path: Path
) -> Path:
    """Draw acceptance length over K, one line per task."""
    figure, axes = plt.subplots(figsize=(8, 5))
    for name, values in lengths.items():
        axes.plot(depths, values, marker="o", label=name)
    axes.set_xlabel("draft tokens per round (K)")
    axes.set_ylabel("acceptance length (next token included)")
    axes.legend(fontsize="small")
    return _save(figure, path)


def _save(figure: "plt.Figure", path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
