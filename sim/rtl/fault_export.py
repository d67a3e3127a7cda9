"""Program that exports one faulty kernel: JSON request on standard input, ``kernel.v`` and ``names.json`` in a folder.

Started by ``sim.rtl.faults``; the fault must be in place before any gateware is imported, so imports come in two steps.
"""

from __future__ import annotations

import json
import pathlib
import sys

from sim.rtl.fault_patch import Fault, install


def run(request: dict) -> None:
    """Install the fault, then import, elaborate and write the kernel."""
    install(Fault(**request["fault"]))
    from hw.gpt2.config import CoreConfig
    from sim.rtl.build import elaborate_here, write_kernel

    write_kernel(elaborate_here(CoreConfig.from_json(request["config"])), pathlib.Path(request["folder"]))


if __name__ == "__main__":
    run(json.load(sys.stdin))
