"""Pages of documentation that are made from the objects which the gateware is made from.

``python -m hw.board.documentation`` writes docs/registers.md and docs/isa.md; a test compares them.
"""

from __future__ import annotations

import pathlib

from hw.board.gpt2_map import STALL_CAUSES, ErrorCode, gpt2_register_map
from hw.bus.registers import RegisterMap
from hw.gpt2.config import core_config
from hw.gpt2.isa import ACCESS_FIELDS, FIELDS, AccessKind, Commit, Op, Operand, Params, Path

__all__ = ["isa_page", "pages", "registers_page"]

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CORE = "16x4"
_ROWS = 4
_MEANING = {
    "op": "operation",
    "decode_only": "skipped while prompt tokens remain",
    "first": "this run starts the accumulation",
    "last": "this run ends it: results go to the drain unit",
    "params": "parameter rows of the product",
    "path": "where results go",
    "norm": "set of LayerNorm scalars that NORM applies",
    "stats": "results feed the statistics unit",
    "stats_set": "set that its scalars are written to",
    "commit": "what the end of the product starts",
    "operand": "EMB: source of the one-hot word",
    "src": "first activation word (EMB: first strip in the table; GATHER: first own strip, from `dst`)",
    "words": "k words of the run (LOOP: instructions of the body; GATHER: own strips)",
    "tail": "valid elements of the run's last word, 1 to T",
    "acc": "first accumulator",
    "strips": "output strips (LOOP: repetitions; GATHER: strips of the vector)",
    "group": "strips that are open together",
    "dst": "strip address, or strip index of LOGITS (GATHER: first strip of the vector)",
    "prob": "first probability word",
    "prob_stride": "probability words per head",
    "head0": "first head",
    "heads": "number of heads",
    "send": "results go to the other boards as well ([ring.md](ring.md))",
    "kind": "kind of access",
    "count": "rows (WEIGHTS, EMBED) or repetitions (LOOP)",
    "offset": "first strip in the table (EMBED)",
    "length": "descriptors of the body (LOOP)",
}


def _fields(fields: dict[str, int]) -> str:
    rows, bit = ["| bits | field | meaning |", "|---|---|---|"], 0
    for name, width in fields.items():
        span = f"{bit + width - 1}:{bit}" if width > 1 else f"{bit}"
        rows.append(f"| {span} | `{name}` | {_MEANING[name]} |")
        bit += width
    return "\n".join(rows) + "\n"


def _values(*kinds: type) -> str:
    return "\n".join(
        f"* `{kind.__name__}`: " + ", ".join(f"{member.value} {member.name}" for member in kind) for kind in kinds
    )


def isa_page() -> str:
    """Encodings of instructions and access descriptors."""
    return (
        "# Instruction and descriptor encodings\n\n"
        "Made by `python -m hw.board.documentation` from `hw/gpt2/isa.py`. What the operations do is in "
        "[core.md](core.md).\nA word has 128 bits; bits above the last field are zero.\n\n"
        f"## Instructions\n\n{_fields(FIELDS)}\n{_values(Op, Params, Path, Commit, Operand)}\n\n"
        "Assembly is one instruction a line, `OP field=value ...`; fields that are zero are left out:\n\n"
        "```\nMM first=1 last=1 params=norm path=gelu norm=1 words=8 tail=16 strips=128 group=8 dst=96\n```\n\n"
        f"## Access descriptors\n\n{_fields(ACCESS_FIELDS)}\n{_values(AccessKind)}\n"
    )


def _of_rows() -> RegisterMap:
    """What a core with several rows has on top."""
    one, many = gpt2_register_map(core_config(_CORE)), gpt2_register_map(core_config(_CORE, _ROWS))
    registers, windows = {register.name for register in one}, {window.name for window in one.windows}
    return RegisterMap(
        many.name,
        many.size,
        tuple(register for register in many if register.name not in registers),
        tuple(window for window in many.windows if window.name not in windows),
    )


def registers_page() -> str:
    """Memory map of the kernel, error codes and stall causes."""
    table, of_rows = gpt2_register_map(core_config(_CORE)), _of_rows()
    codes = "\n".join(f"* {code.value} {code.name}" for code in ErrorCode)
    causes = ", ".join(f"{index} {cause}" for index, cause in enumerate(STALL_CAUSES))
    return (
        "# Registers of the GPT-2 kernel\n\n"
        f"Made by `python -m hw.board.documentation` from `hw/board/gpt2_map.py`, for core {_CORE} "
        "(other cores differ in the number of `hbm` registers and the sizes of windows).\n"
        "Registers of more than 32 bits are words, low word first; reading a counter's low word keeps its high word.\n"
        f"\n{table.markdown()}\nError codes:\n\n{codes}\n\nStall causes, by priority: {causes}.\n"
        f"\n## Several rows\n\nA core with R rows ([rows.md](rows.md)) has these on top, for rows 1 to R-1 "
        f"(here R = {_ROWS}), and a map of {of_rows.size >> 10} KiB.\n\n{of_rows.markdown()}"
    )


def pages() -> dict[pathlib.Path, str]:
    """Path and text of each page."""
    return {_ROOT / "docs" / "registers.md": registers_page(), _ROOT / "docs" / "isa.md": isa_page()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
