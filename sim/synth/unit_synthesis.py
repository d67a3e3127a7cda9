"""Program that synthesises one unit: a request as JSON on standard input, its netlist in a file.

The request: ``{"verilog": text, "module": name, "folder": where netlist.json.gz is written}``. Started by
``sim.synth.estimate`` through ``sim.rtl.fresh_process``, so that yosys's memory is given back unit by unit.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import sys
from typing import Any

from sim.synth.netlist import REGISTER

__all__ = ["PREPARATION", "SYNTHESIS", "read_netlist", "synthesise"]

PREPARATION = (
    # Amaranth calls element 0 of array `x` `x[0]`; yosys 0.70 gives bit 0 of register `x` the same name and stops.
    "rename -hide w:*[[]*",
    # SHREG_EXTRACT keeps flip-flops from becoming shift registers (AMD UG912); yosys looks at `keep` alone.
    "setattr -set keep 1 a:SHREG_EXTRACT=NO %ci1:+$dff[Q] t:$dff %i",
)

# Out of context: no buffers at the ports. Large memories may become UltraRAM.
SYNTHESIS = "synth_xilinx -family xcup -flatten -noiopad -noclkbuf -uram"
_NETLIST = "netlist.json.gz"


def synthesise(verilog: str, module: str, folder: pathlib.Path) -> None:
    """Synthesise ``module`` for UltraScale+, all below it flattened, and write its netlist into ``folder``.

    A module that yosys does not accept ends the process; the message on standard error is yosys's.
    """
    from pyosys import libyosys

    source, netlist, log = folder / "unit.v", folder / "netlist.json", folder / "yosys.log"
    source.write_text(verilog)
    design = libyosys.Design()
    for command in (
        f"read_verilog {source}",
        "proc",
        f"setattr -set {REGISTER} 1 a:init",
        *PREPARATION,
        f"{SYNTHESIS} -top {module}",
        f"select {module}",
        f"write_json -selected -noscopeinfo {netlist}",
    ):
        libyosys.run_pass(f"tee -q -a {log} {command}", design)
    (folder / _NETLIST).write_bytes(gzip.compress(netlist.read_bytes(), 5))
    for path in (source, netlist, log):
        path.unlink()


def read_netlist(folder: pathlib.Path, module: str) -> dict[str, Any]:
    """The module's entry in the JSON that ``write_json`` made."""
    netlist: dict[str, Any] = json.loads(gzip.decompress((folder / _NETLIST).read_bytes()))["modules"][module]
    return netlist


def _main() -> None:
    request = json.load(sys.stdin)
    os.dup2(2, 1)  # yosys writes to standard output
    synthesise(request["verilog"], request["module"], pathlib.Path(request["folder"]))


if __name__ == "__main__":
    _main()
