"""Pictures of `bench gpt2` (PNG): total latency over lengths, and ours beside published figures."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")  # before pyplot: no display

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from host.bench.published import Basis, Published, Quantity
from host.bench.published_figures import PUBLISHED
from host.bench.timed_program import ASSUMED_CLOCK_MHZ

__all__ = ["Bar", "comparison_bars", "write_comparison", "write_latency"]

Report = Mapping[str, Any]
Row = Mapping[str, Any]

_DPI = 120
_OURS, _PUBLISHED_FP16, _PUBLISHED_OTHER = "tab:blue", "tab:orange", "tab:gray"
_KINDS = {
    _OURS: f"ours: simulated cycles at an assumed {ASSUMED_CLOCK_MHZ} MHz",
    _PUBLISHED_FP16: "published, fp16",
    _PUBLISHED_OTHER: "published, fewer bits",
}
_BOARD_COLOURS = {1: "tab:blue", 2: "tab:orange", 4: "tab:green", 8: "tab:red"}
_CORE_STYLES = ("-", "--", "-.")
_SMALL: dict[str, Any] = {"fontsize": "small"}
_FOOTNOTE_CHARACTERS = 15.5  # of an inch
_PANEL_COLUMNS = 3
_BARS_OF_A_TITLE = 4  # height of a panel's title and axis, in bars


class Bar(NamedTuple):
    """One bar: what it is of, how long it is, and its colour, which says whose figure it is."""

    label: str
    value: float
    colour: str


def write_latency(report: Report, path: Path) -> None:
    """Total time of prompt and output over the lengths, a panel a model, a line a number of boards and a core; batches
    are left out."""
    models = list(dict.fromkeys(row["model"] for row in report["rows"]))
    columns = min(_PANEL_COLUMNS, len(models))
    lines = -(-len(models) // columns)
    size = (max(5.2 * columns, 9.6), 4.2 * lines + 1.5)
    figure, panels = plt.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    try:
        axes = list(panels.flat)
        for panel, model in zip(axes, models, strict=False):
            _latency_panel(panel, model, [row for row in report["rows"] if row["model"] == model])
        for panel in axes[len(models) :]:
            panel.set_axis_off()
        named = {label: line for panel in axes for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
        title = "Time from start to the last token, prompt included"
        figure.legend(
            named.values(),
            named,
            title=title,
            loc="outside upper center",
            ncols=max(2, columns),
            handlelength=3.5,
            frameon=False,
        )
        _footnote(figure, report, [one for one in PUBLISHED if _is_total(one) and one.model in models])
        figure.savefig(path, format="png", dpi=_DPI)
    finally:
        plt.close(figure)


def _is_total(one: Published) -> bool:
    return one.quantity == Quantity.TOTAL_MS


def _latency_panel(axes: Axes, model: str, rows: Sequence[Row]) -> None:
    lengths = _shown_lengths(rows)
    places = {length: place for place, length in enumerate(lengths)}
    alone = [row for row in rows if row["requests"] == 1]
    cores = list(dict.fromkeys(row["core"] for row in alone))
    uses: dict[tuple[int, str], list[Row]] = {}
    for row in alone:
        uses.setdefault((row["boards"], row["core"]), []).append(row)
    for (boards, core), own in uses.items():
        times = {(row["in"], row["out"]): row["total_ms"] for row in own}
        line = [times[length] for length in lengths]
        label = f"simulated, {_board_count(boards)}"
        if core != cores[0]:
            label += f", core {core} ({_kind(own[0])})"
        style, colour = _CORE_STYLES[cores.index(core) % len(_CORE_STYLES)], _BOARD_COLOURS.get(boards)
        axes.plot(range(len(lengths)), line, style, marker="o", color=colour, label=label)
    for system, marker in (("DFX", "s"), ("StreamTensor", "^")):
        found = [
            one for one in PUBLISHED if _is_total(one) and (one.model, one.system) == (model, system) and one.length
        ]
        shown = {places[one.length]: one.value for one in found if one.length in places}
        if shown:
            label = f"published: {found[0].label}"
            axes.plot(
                list(shown), list(shown.values()), marker, color="black", markerfacecolor="none", label=label, ls=":"
            )
    axes.set_title(model)
    axes.set_xticks(range(len(lengths)), [f"{prompt}:{output}" for prompt, output in lengths], **_SMALL)
    if len(lengths) > 6:
        axes.tick_params(axis="x", rotation=90)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("tokens of prompt : output")
    axes.set_ylabel("ms")
    axes.grid(alpha=0.3, which="both")


def _shown_lengths(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Those with as many tokens of output as of prompt; all, if there are fewer than two of them."""
    lengths = list(dict.fromkeys((row["in"], row["out"]) for row in rows))
    equal = [length for length in lengths if length[0] == length[1]]
    return equal if len(equal) > 1 else lengths


def write_comparison(report: Report, path: Path) -> None:
    """Decode time per token and throughput with the prompt, and beside them use of bandwidth, with published figures.

    The report needs a row with two or more tokens of output.
    """
    *narrow, (title, widest) = comparison_bars(report).items()
    heights = [len(bars) + _BARS_OF_A_TITLE for _, bars in narrow]
    rows = max(sum(heights), len(widest) + _BARS_OF_A_TITLE)
    figure = plt.figure(figsize=(18, 0.27 * rows + 1.6), layout="constrained")
    try:
        grid = figure.add_gridspec(len(narrow), 2, height_ratios=heights)
        for number, (name, bars) in enumerate(narrow):
            _bar_panel(figure.add_subplot(grid[number, 0]), name, bars)
        _bar_panel(figure.add_subplot(grid[:, 1]), title, widest)
        handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in _KINDS]
        figure.legend(handles, _KINDS.values(), loc="outside upper center", ncols=len(_KINDS), frameon=False)
        systems = {bar.label.split(",")[0] for _, bars in [*narrow, (title, widest)] for bar in bars}
        _footnote(figure, report, [one for one in PUBLISHED if one.system in systems])
        figure.savefig(path, format="png", dpi=_DPI)
    finally:
        plt.close(figure)


def comparison_bars(report: Report) -> dict[str, list[Bar]]:
    """The bars of each panel by its title, longest times first; panels without a bar are left out."""
    rows = [row for row in report["rows"] if row["decode_ms_per_token"] is not None]
    lengths = [(row["in"], row["out"]) for row in rows]
    if not rows:
        return {}
    length = (64, 64) if (64, 64) in lengths else lengths[0]
    rows = [row for row, own in zip(rows, lengths, strict=True) if own == length]
    models = [
        model for model in dict.fromkeys(row["model"] for row in rows) if any(p.model == model for p in PUBLISHED)
    ]
    models = models or [rows[0]["model"]]
    at = f"[{length[0]}:{length[1]}]"
    panels: dict[str, list[Bar]] = {}
    alone = [row for row in rows if row["rows"] == 1] or [row for row in rows if row["requests"] == 1]
    for model in models:
        own = [row for row in rows if row["model"] == model]
        steps = [_ours(row, row["decode_ms_per_token"]) for row in alone if row["model"] == model]
        panels[f"{model}: decode, ms a token, prompt left out\n({at} where lengths matter)"] = sorted(
            [*steps, *_steps(model, length)], key=lambda bar: -bar.value
        )
        rates = [_theirs(one, one.value) for one in _of(model, Quantity.RATE_WITH_PROMPT, length)]
        panels[f"{model}: output tokens a second over a time\nthat includes the prompt, {at}"] = sorted(
            [*(_ours(row, row["tokens_per_s_with_prompt"]) for row in own), *rates], key=lambda bar: bar.value
        )
    fewest = min(one["boards"] for one in rows)
    shown = [row for row in alone if row["model"] in models or row["boards"] == fewest]
    used = [_ours(row, 100 * row["bandwidth_fraction"], row["model"]) for row in shown]
    panels[f"Memory bandwidth used in decode, % of the boards'\ntheoretical peak ({at} where lengths matter)"] = sorted(
        [*used, *_bandwidths(length)], key=lambda bar: bar.value
    )
    return {title: bars for title, bars in panels.items() if bars}


def _of(model: str, quantity: Quantity, length: tuple[int, int]) -> list[Published]:
    alike = [one for one in PUBLISHED if (one.model, one.quantity) == (model, quantity)]
    return [one for one in alike if one.length in (None, length)]


def _steps(model: str, length: tuple[int, int]) -> list[Bar]:
    found = [*_of(model, Quantity.STEP_MS, length), *_of(model, Quantity.DECODE_RATE, length)]
    return [_theirs(one, one.step_ms or 0.0) for one in found]


def _bandwidths(length: tuple[int, int]) -> list[Bar]:
    bars = []
    for one in PUBLISHED:
        if one.quantity == Quantity.BANDWIDTH_FRACTION:
            bars.append(_theirs(one, 100 * one.value, f"{one.model}, claimed"))
        elif one.implied_bandwidth_fraction is not None and one.length in (None, length):
            at = f", KV {one.attended}" if one.model == "LLaMA2-7B" else ""
            bars.append(_theirs(one, 100 * one.implied_bandwidth_fraction, f"{one.model}{at}, implied"))
    return bars


def _ours(row: Row, value: float, model: str = "") -> Bar:
    notes = ["ours", model, _board_count(row["boards"]), row["precision"]]
    if row["rows"] > 1:
        notes.append(f"{row['rows']} rows" if row["requests"] == 1 else f"batch of {row['requests']} requests")
    return Bar(", ".join(filter(None, notes)), value, _OURS)


def _kind(row: Row) -> str:
    """What tells a core from others, in words."""
    return f"{row['rows']} rows" if row["rows"] > 1 else str(row["precision"]).split(",")[0]


def _board_count(boards: int) -> str:
    return f"{boards} board{'s' if boards > 1 else ''}"


def _theirs(one: Published, value: float, note: str = "") -> Bar:
    colour = _PUBLISHED_FP16 if one.precision == "fp16" else _PUBLISHED_OTHER
    notes = [note] if note else []
    if one.basis == Basis.SIMULATED:
        notes.append("simulated")
    return Bar(", ".join([one.label, *notes]), value, colour)


def _bar_panel(axes: Axes, title: str, bars: Sequence[Bar]) -> None:
    axes.barh(range(len(bars)), [bar.value for bar in bars], color=[bar.colour for bar in bars])
    for place, bar in enumerate(bars):
        shown = f"{bar.value:,.0f}" if bar.value >= 100 else f"{bar.value:.3g}"
        axes.text(bar.value, place, f" {shown}", va="center", **_SMALL)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], **_SMALL)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.margins(x=0.1)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.grid(axis="x", alpha=0.3)


def _footnote(figure: Figure, report: Report, published: Sequence[Published]) -> None:
    """Sources under the picture: of our figures, and the citation of every published one that is in it."""
    hashes = dict.fromkeys(machine["verilog_sha256"][:12] for machine in report["machines"])
    conditions = report["machines"][0]["conditions"]
    cores = ", ".join(dict.fromkeys(machine["conditions"]["core"] for machine in report["machines"]))
    ours = (
        f"Simulated: cycles by the timing model, core {cores}, memory {conditions['memory']}, Verilog "
        f"{', '.join(hashes)}, at an assumed {ASSUMED_CLOCK_MHZ} MHz; nothing has been placed, routed or run on a card."
    )
    works: dict[str, list[str]] = {}
    for one in published:
        read_from = works.setdefault(one.citation, [])
        if one.read_from != "the work itself" and one.read_from not in read_from:
            read_from.append(one.read_from)
    sources = "; ".join(
        work + (f" (some read in: {', '.join(places)})" if places else "") for work, places in works.items()
    )
    columns = round(figure.get_figwidth() * _FOOTNOTE_CHARACTERS)
    theirs = f"Published: {sources}." if sources else ""
    text = [*textwrap.wrap(ours, columns), *textwrap.wrap(theirs, columns)]
    figure.supxlabel("\n".join(text), fontsize="x-small", x=0.01, ha="left")
