"""Takes a kernel's Verilog apart into the units that are synthesised on their own."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping, Sequence

from hw.board.export import Export

__all__ = ["OPENED", "Unit", "split"]

# modules of the kernel whose parts are units of their own
OPENED = ("", "core", "core.issue", "core.others", "core.row_*")
KERNEL = "kernel"  # name of the unit that holds the kernel's own logic

_NAME = r"(\\\S+ ?|\w+)"
_MODULE = re.compile(rf"module {_NAME} ?\(")
_INSTANCE = re.compile(rf"^  {_NAME} {_NAME} ?\($", re.MULTILINE)
_PORT = re.compile(rf"^  (?:input|output) (?:\[\d+:0\] )?{_NAME} ?;$", re.MULTILINE)
_NUMBER = re.compile(r"\$\d+")


@dataclasses.dataclass(frozen=True)
class Unit:
    """A module that is synthesised with all that is inside, but for other units, which are left out as black boxes.

    ``name`` : path from the kernel on, or the name of a shared module, without the numbers by which Amaranth keeps
    equal names apart. ``module`` : name in the Verilog. ``verilog`` : text of the module, of what is inside, and of the
    ports of the black boxes. ``instances`` : how often it stands in the kernel.
    """

    name: str
    module: str
    verilog: str
    instances: int


def split(export: Export, opened: Sequence[str] = OPENED) -> list[Unit]:
    """The units of a kernel: its own logic, the parts of the ``opened`` modules, every shared module.

    All of the Verilog is in one of them, once. Raises ValueError if two units would have the same name.
    """
    texts = {_plain(_MODULE.match(part)): part for part in re.split(r"(?m)^(?=module )", export.text)[1:]}
    inside = {module: _instances(text, texts) for module, text in texts.items()}
    roots = {export.top, *export.instances.values()}
    for path in opened:
        for module in fnmatch.filter(inside, f"{export.top}.{path}".removesuffix(".")):
            if module.count(".") == (path.count(".") + 1 if path else 0):
                roots.update(inside[module])
    counts = _counts(export.top, inside)
    units = [
        Unit(_unit_name(module, export.top), module, _text(module, texts, inside, roots), counts[module])
        for module in texts
        if module in roots
    ]
    names = [unit.name for unit in units]
    if len(set(names)) < len(names):
        raise ValueError(f"units of {export.top} with the same name: {sorted(n for n in names if names.count(n) > 1)}")
    return units


def _plain(match: re.Match[str] | None, group: int = 1) -> str:
    assert match is not None
    return match[group].strip().removeprefix("\\")


def _instances(text: str, modules: Mapping[str, str]) -> list[str]:
    found = (_plain(match) for match in _INSTANCE.finditer(text))
    return [module for module in found if module in modules]


def _counts(top: str, inside: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How often each module stands in the top."""
    counts = dict.fromkeys(inside, 0)

    def add(module: str) -> None:
        counts[module] += 1
        for part in inside[module]:
            add(part)

    add(top)
    return counts


def _text(root: str, texts: Mapping[str, str], inside: Mapping[str, Sequence[str]], roots: set[str]) -> str:
    """The root, all below it that is no root itself, and the ports of the roots that stand there."""
    whole, boxes = [root], set()
    for module in whole:
        for part in inside[module]:
            if part in roots:
                boxes.add(part)
            elif part not in whole:
                whole.append(part)
    return "\n".join([*(texts[module] for module in whole), *(_black_box(texts[module]) for module in sorted(boxes))])


def _black_box(text: str) -> str:
    head = text[: text.index(";") + 1]
    ports = [match[0] for match in _PORT.finditer(text)]
    return "\n".join(["(* blackbox *)", head, *ports, "endmodule", ""])


def _unit_name(module: str, top: str) -> str:
    return KERNEL if module == top else _NUMBER.sub("", module.removeprefix(f"{top}."))
