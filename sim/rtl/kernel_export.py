"""Program that elaborates one kernel: core description on standard input, the export as JSON on standard output.

``sim.rtl.build`` starts it with a fixed PYTHONHASHSEED: Amaranth keeps clock domains in sets, and the order of ports,
with it the hash of the Verilog, would differ from process to process.
"""

from __future__ import annotations

import json
import sys

from hw.gpt2.config import CoreConfig
from sim.rtl.build import elaborate_here

if __name__ == "__main__":
    export = elaborate_here(CoreConfig.from_json(sys.stdin.read()))
    json.dump({"text": export.text, "top": export.top, "name_map": export.name_map}, sys.stdout)
