"""Tables of `ringfly bench` for people. Measured, simulated and published figures stand in columns or tables apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["gpt2_lines", "gpu_lines", "yardstick_lines"]

Facts = Mapping[str, Any]
_VERDICTS = {True: "met", False: "MISSED", None: "-"}


def yardstick_lines(rows: Sequence[Facts]) -> list[str]:
    """A line a yardstick, then where the columns come from."""
    table = [["work", "figure", "bar", "limit", "", "over limit", "", "from", "best published (cited)"]]
    for row in rows:
        best = row["best_published"]
        table.append(
            [
                row["work"],
                _number(row["value"]),
                _number(row["bar"]),
                _number(row["limit"]),
                row["unit"],
                f"{100 * (row['value'] / row['limit'] - 1):+.1f} %" if row["limit"] else "-",
                _VERDICTS[row["met"]],
                row["cycles_source"] or "synthesis",
                "-" if best is None else f"{best['system']} {_amount(best)}",
            ]
        )
    lines = _aligned(table, left=(0, 4, 7, 8))
    for row in rows:
        if row.get("fraction_of_step") is not None:
            lines.append(f"{row['work']}: {100 * row['fraction_of_step']:.2f} % of the step")
    source = rows[0]["conditions"]
    missed = sum(row["met"] is False for row in rows)
    return [
        *lines,
        f"bars: {source['bar_source']}; ms at an assumed {source['assumed_clock_mhz']} MHz, {source['clocks']}",
        f"limit: {source['limit_meaning']}",
        *dict.fromkeys(_area_source(row) for row in rows if row["cycles_source"] is None),
        *dict.fromkeys(_cited(row["best_published"]) for row in rows if row["best_published"]),
        *_verilog(rows),
        f"{len(rows)} rows, {missed} missed",
    ]


def _area_source(row: Facts) -> str:
    kept = row["conditions"]
    if row["value"] is None:
        return f"area: no figure: {kept['missing']}"
    of = "this" if kept["of_this_gateware"] else "an earlier state of the"
    return f"area: {row['area_source']}, kept in {kept['file']}, of {of} gateware"


def _verilog(rows: Sequence[Facts]) -> list[str]:
    """A line for each core that was simulated."""
    named = {row["conditions"]["core"]: row["verilog_sha256"] for row in rows if row["cycles_source"] is not None}
    return [f"Verilog of core {core}: {digest[:16]}" for core, digest in named.items()]


def _cited(best: Facts) -> str:
    length = "" if best["length"] is None else " [{}:{}]".format(*best["length"])
    return f"{best['system']}{length}: {best['citation']}; {best['basis']}; {best['conditions']}"


def gpt2_lines(report: Facts) -> list[str]:
    """A table for each model, core and number of boards, what was published about it below, at the end the sources."""
    lines: list[str] = []
    notes: dict[str, int] = {}
    for (model, boards, core, requests), group in itertools.groupby(report["rows"], _use):
        rows = list(group)
        batch = f", a batch of {requests} requests" if requests > 1 else ""
        title = f"{model}, {boards} board{'s' if boards > 1 else ''}, core {core}{batch}: simulated"
        lines += [f"{title}, {rows[0]['precision']}", *_length_table(rows)]
        published = [(row, one) for row in rows for one in row["published"]]
        if published:
            lines += ["  published, beside ours of the same definition:", *_published_table(published, notes)]
        lines.append("")
    lines += _bandwidth_lines(report["published"], notes)
    lines += _power_lines(report["published"], notes)
    lines += ["", *(f"[{number}] {text}" for text, number in notes.items()), *_own_sources(report)]
    return lines


def _use(row: Facts) -> tuple[str, int, str, int]:
    return row["model"], row["boards"], row["core"], row["requests"]


def _length_table(rows: Sequence[Facts]) -> list[str]:
    head = ["in:out", "first token ms", "total ms", "ms a token", "decode tok/s", "tok/s with prompt"]
    table = [[*head, "MB a token", "GB/s", "of peak"]]
    for row in rows:
        share, read = row["bandwidth_fraction"], row["bytes_per_token"]
        table.append(
            [
                f"{row['in']}:{row['out']}",
                f"{row['first_token_ms']:.2f}",
                f"{row['total_ms']:.2f}",
                _number(row["decode_ms_per_token"]),
                "-" if row["decode_tokens_per_s"] is None else f"{row['decode_tokens_per_s']:.1f}",
                f"{row['tokens_per_s_with_prompt']:.1f}",
                "-" if read is None else f"{read / 1e6:.0f}",
                "-" if share is None else f"{row['bandwidth_gb_s']:.0f}",
                "-" if share is None else f"{100 * share:.1f} %",
            ]
        )
    return _aligned(table)


def _published_table(published: Sequence[tuple[Facts, Facts]], notes: dict[str, int]) -> list[str]:
    table = [["who", "in:out", "what", "published", "ours (simulated)", "ours faster by", "how", "source"]]
    for row, one in published:
        precision = "" if one["same_precision"] else f" ({one['precision']} against {row['precision']})"
        what = _NAMES[one["quantity"]]
        ratio = f"{one['speedup']:.2f} x{precision}"
        where = f"{row['in']}:{row['out']}"
        figures = [f"{one['published']:g}", f"{one['ours']:.4g}", ratio]
        table.append([one["label"], where, what, *figures, _how(one), _note(one, notes)])
    return ["  " + line for line in _aligned(table, left=(0, 2, 5, 6, 7))]


_NAMES = {
    "total_ms": "total ms",
    "first_token_ms": "first token ms",
    "ms_per_step": "decode ms a token",
    "decode_tokens_per_s": "decode tok/s",
    "tokens_per_s_with_prompt": "tok/s with prompt",
}


def _bandwidth_lines(published: Sequence[Facts], notes: dict[str, int]) -> list[str]:
    """Use of the peak bandwidth that others claim, or that their figures imply."""
    table = [["published use of peak bandwidth", "model", "of peak", "", "source"]]
    for one in published:
        if one["quantity"] == "bandwidth_fraction":
            share, mark = one["value"], "claimed"
        elif one["implied_bandwidth_fraction"] is not None:
            share, mark = one["implied_bandwidth_fraction"], "implied"
        else:
            continue
        who = f"{one['system']}, {one['device']} x {one['devices']}, {one['precision']}"
        model = one["model"] + ("" if one["length"] is None else " {}:{}".format(*one["length"]))
        model += "" if one["attended"] is None else f" KV {one['attended']}"
        table.append([who, model, f"{100 * share:.1f} %", mark, _note(one, notes)])
    return _aligned(table, left=(0, 1, 3, 4))


def _power_lines(published: Sequence[Facts], notes: dict[str, int]) -> list[str]:
    lines = ["power and price, published only (ours: none, nothing was run on a card):"]
    for one in published:
        if one["quantity"] in ("power_w_per_device", "price_usd_per_device"):
            lines.append(f"  {one['system']}, {one['device']}: {_amount(one)} {_note(one, notes)}")
    return lines


def _own_sources(report: Facts) -> list[str]:
    machine = report["machines"][0]["conditions"]
    hashes = dict.fromkeys(one["verilog_sha256"][:16] for one in report["machines"])
    lines = [f"{name}: {meaning}" for name, meaning in report["definitions"].items()]
    clock = machine["assumed_clock_mhz"]
    contexts = sorted({one["conditions"]["simulated_contexts"] for one in report["machines"]})
    cores = ", ".join(dict.fromkeys(one["conditions"]["core"] for one in report["machines"]))
    return [
        *lines,
        f"ours: core {cores}, memory {machine['memory']}, cycles by timing at an assumed {clock} MHz, "
        f"{machine['clocks']}; {machine['method']} (from {contexts[0]} to {contexts[-1]} of a model and its boards)",
        f"Verilog {', '.join(hashes)}",
    ]


def gpu_lines(report: Facts) -> list[str]:
    """Measured rows, the machine, and published GPU figures in a list of their own."""
    head = ["measured here", "dtype", "mode", "in:out", "first token ms", "total ms", "ms a token", "decode tok/s"]
    table = [[*head, "tok/s with prompt", "decode GB/s", "prompt GB/s"]]
    for row in report["rows"]:
        table.append(
            [
                row["model"],
                row["dtype"],
                row["mode"],
                f"{row['in']}:{row['out']}",
                f"{row['first_token_ms']:.2f}",
                f"{row['total_ms']:.2f}",
                _number(row["decode_ms_per_token"]),
                "-" if row["decode_tokens_per_s"] is None else f"{row['decode_tokens_per_s']:.1f}",
                f"{row['tokens_per_s_with_prompt']:.1f}",
                "-" if row["decode_gb_s"] is None else f"{row['decode_gb_s']:.1f}",
                f"{row['prefill_gb_s']:.1f}",
            ]
        )
    lines = _aligned(table, left=(0, 1, 2))
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in report["conditions"].items() if value is not None]
    notes: dict[str, int] = {}
    lines.append("published GPU figures (cited, not measured here):")
    for one in report["published"]:
        length = "" if one["length"] is None else " [{}:{}]".format(*one["length"])
        lines.append(
            f"  {one['system']}, {one['device']} x {one['devices']}, {one['model']}{length}: {_amount(one)} "
            f"{_note(one, notes)}"
        )
    return [*lines, *(f"[{number}] {text}" for text, number in notes.items())]


def _note(one: Facts, notes: dict[str, int]) -> str:
    """The number of the note with citation and conditions, which it gets when it is first used."""
    read_from = "" if one["read_from"] == "the work itself" else f", read from {one['read_from']}"
    text = f"{one['citation']}{read_from}: {one['basis']}; {one['conditions']}"
    return f"[{notes.setdefault(text, len(notes) + 1)}]"


def _how(one: Facts) -> str:
    """How the figure came about, in a word."""
    return str(one["basis"]).split()[0]


_UNITS = {
    "tokens_per_s_with_prompt": "tokens/s, prompt's time included",
    "decode_tokens_per_s": "tokens/s in decode",
    "power_w_per_device": "W a device",
    "price_usd_per_device": "US$ a device",
    "bandwidth_fraction": "% of the peak bandwidth",
    "exposed_sync_fraction": "% of the step",
    "lut_fraction": "% of the LUTs",
    "dsp_fraction": "% of the DSPs",
    "bram_fraction": "% of the block RAMs",
}


def _amount(one: Facts) -> str:
    """A published figure with its unit."""
    quantity = one["quantity"]
    value = 100 * one["value"] if quantity.endswith("fraction") else one["value"]
    return f"{value:,.6g} {_UNITS.get(quantity, 'ms')}"


def _number(value: float | None) -> str:
    """Four significant digits, more of large numbers."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _aligned(table: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """The rows with columns of one width; those in `left` begin at their left edge, the others end at their right."""
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
