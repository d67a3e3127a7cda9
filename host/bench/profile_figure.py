"""The picture of a profile: lost cycles of the step as a stacked bar, and one steady layer as a Gantt chart (PNG)."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")  # before pyplot: no display

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from host.bench.profile import StepProfile
from sim.timing.attribution import LOST
from sim.timing.trace import TRACKS, unit_slices

__all__ = ["steady_layer", "write_figure"]

_COLOURS = plt.get_cmap("tab20")
_DPI = 120
_ORDER = ("matrix_unit", *(unit for unit in TRACKS if unit != "matrix_unit"))  # of the rows, from the top
_PLAIN = {"color": "tab:gray", "edgecolor": "white", "lw": 0.2}
_LEGEND = {"fontsize": "small", "frameon": False}


def write_figure(profile: StepProfile, path: Path) -> None:
    """Write the picture to `path`, whatever its suffix, as PNG."""
    figure, (bar, gantt) = plt.subplots(2, 1, figsize=(12, 7), height_ratios=(1, 3), layout="constrained", squeeze=True)
    try:
        _lost_bar(profile, bar)
        _gantt(profile, gantt)
        figure.savefig(path, format="png", dpi=_DPI)
    finally:
        plt.close(figure)


def steady_layer(profile: StepProfile) -> int | None:
    """The layer in the middle of the model, None for a program without layers."""
    layers = [
        int(name.removeprefix("layer ")) for name, _ in profile.ledger.layers(profile.run.last) if "layer " in name
    ]
    return layers[len(layers) // 2] if layers else None


def _board(profile: StepProfile) -> str:
    boards = profile.timed.boards
    return f", board {profile.board} of {boards}" if boards > 1 else ""


def _lost_bar(profile: StepProfile, axes: Axes) -> None:
    step, left = profile.step.boards[profile.board], 0.0
    for number, name in enumerate(LOST):
        cycles = step.lost_cycles[name]
        if cycles:
            axes.barh([0], [cycles], left=left, color=_COLOURS(number), label=f"{name} {cycles:,.6g}")
            left += cycles
    axes.set_yticks([])
    axes.set_xlabel(f"lost cycles, {left:,.6g} of {step.cycles:,}")
    axes.set_title(
        f"{profile.timed.label}{_board(profile)}, core {profile.program.core.name}, "
        f"memory {profile.timed.memory_name}, "
        f"{profile.run.attended:,} positions attended: {100 * step.useful_fraction:.2f} % useful"
    )
    if left:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.45), ncols=6, **_LEGEND)


def _gantt(profile: StepProfile, axes: Axes) -> None:
    """Units over time while one layer is at issue; a steady one, or the whole step of a program without layers."""
    ledger, layer = profile.ledger, steady_layer(profile)
    at = ledger.spans["position"] == profile.run.last
    if layer is not None:
        inside = np.array([ledger.work.in_loop[index] for index in ledger.spans["index"]], bool)
        at &= inside & (ledger.spans["layer"] == layer)
    start, end = int(ledger.spans["first_issue"][at][0]), int(ledger.spans["last_issue"][at][-1]) + 1
    slices = unit_slices(profile.program, profile.result, ledger)
    units = [unit for unit in _ORDER if slices[unit]]
    for row, unit in enumerate(units):
        inside_window = [one for one in slices[unit] if one.start < end and one.end > start]
        for number, one in enumerate(inside_window):
            first, last = max(one.start, start) - start, min(one.end, end) - start
            named = {"color": _COLOURS(number % _COLOURS.N), "label": one.name} if unit == "matrix_unit" else _PLAIN
            axes.barh(row, last - first, left=first, **named)
    axes.set_yticks(range(len(units)), [TRACKS[unit] for unit in units])
    axes.invert_yaxis()
    axes.set_xlim(0, end - start)
    axes.set_xlabel(f"cycles of {'the step' if layer is None else f'layer {layer}'}")
    axes.legend(title="matrix unit", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, **_LEGEND)
