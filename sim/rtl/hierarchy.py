"""Takes a module that stands in a kernel many times out of its Verilog, to be compiled once and joined by the harness.

A flat model of the 64x16 core has its lane's code sixteen times; together it is larger than a processor's cache.
Compiled apart, a lane is 80 KB of code that runs sixteen times a cycle on different data. The module's inputs and
outputs become variables of the kernel's model that the harness reads and writes (:func:`joining_header`). That is exact
only for a module whose outputs come from registers, so that they change at clock edges alone; :func:`take_out` is told
so by its caller.
"""

from __future__ import annotations

import dataclasses
import re

from hw.board.export import Export

__all__ = ["Block", "joining_header", "take_out"]

_DECLARATION = re.compile(r"^  (input|output) (?:\[(\d+):0\] )?(\w+);$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
    """A module that was taken out.

    ``module`` its name, ``verilog`` its text and that of everything below it, ``inputs`` and ``outputs`` the names of
    its ports but the clock, ``instances`` the Verilator paths of its instances in the kernel.
    """

    module: str
    verilog: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    instances: tuple[str, ...]


def take_out(export: Export, module: str) -> tuple[str, Block]:
    """The kernel's Verilog with an empty ``module`` whose ports the harness can reach, and the module.

    All outputs of the module must come from registers on its only clock, ``clk``. Raises ValueError if the kernel has
    no such module.
    """
    parts = re.split(r"(?m)^(?=module )", export.text)
    inside = [part for part in parts if re.match(rf"module (?:{module}|\\{module}\.\S+) ?\(", part)]
    top = next((part for part in inside if part.startswith(f"module {module}(")), None)
    if top is None:
        raise ValueError(f"the Verilog of {export.top} has no module {module!r}")
    ports = [(kind == "input", int(high or 0), name) for kind, high, name in _DECLARATION.findall(top)]
    stub = [top[: top.index(";") + 1]]
    for is_input, high, name in ports:
        kind, access = ("input", "rd") if is_input else ("output reg", "rw")
        public = "" if name == "clk" else f" /*verilator public_flat_{access}*/"
        stub.append(f"  {kind} [{high}:0] {name}{public};" if high else f"  {kind} {name}{public};")
    stub.append("endmodule\n")
    rest = "".join(part for part in parts if part not in inside) + "\n" + "\n".join(stub)
    paths = [path.replace(".", "__DOT__") for path, kind in export.instances.items() if kind == module]
    return rest, Block(
        module,
        "".join(inside),
        tuple(name for is_input, _, name in ports if is_input and name != "clk"),
        tuple(name for is_input, _, name in ports if not is_input),
        tuple(paths),
    )


def joining_header(block: Block | None) -> str:
    """Text of ``blocks.h``, which joins the block's models to the kernel's; without a block it joins nothing."""
    lines = ["#pragma once", '#include "Vboard.h"']
    if block is None:
        lines += [
            "struct Vblock { uint8_t clk; Vblock(VerilatedContext*, const char*) {} void eval() {} void final() {} };",
            "constexpr unsigned BLOCKS = 0;",
            "template <class Blocks> void to_blocks(Blocks&, Vboard&) {}",
            "template <class Blocks> void from_blocks(Blocks&, Vboard&) {}",
        ]
        return "\n".join(lines) + "\n"
    lines += [
        '#include "Vboard___024root.h"',
        '#include "Vblock.h"',
        f"constexpr unsigned BLOCKS = {len(block.instances)};",
    ]
    for name, ports, assign in (
        ("to_blocks", block.inputs, "block.{port} = top.rootp->{path}__DOT__{port};"),
        ("from_blocks", block.outputs, "top.rootp->{path}__DOT__{port} = block.{port};"),
    ):
        lines.append(f"template <class Blocks> void {name}(Blocks& blocks, Vboard& top) {{")
        for index, path in enumerate(block.instances):
            lines.append(f"    {{ Vblock& block = *blocks[{index}];")
            lines += ["      " + assign.format(port=port, path=path) for port in ports]
            lines.append("    }")
        lines.append("}")
    return "\n".join(lines) + "\n"
