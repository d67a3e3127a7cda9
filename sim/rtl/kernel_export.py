"""Program that exports one kernel: ``{"config": ...}`` on standard input, the export as JSON on standard output.

Started by ``sim.rtl.build`` through ``sim.rtl.fresh_process``.
"""

from __future__ import annotations

import json
import sys

from hw.gpt2.config import CoreConfig
from sim.rtl.build import elaborate_here

if __name__ == "__main__":
    export = elaborate_here(CoreConfig.from_json(json.load(sys.stdin)["config"]))
    json.dump({"text": export.text, "top": export.top, "name_map": export.name_map}, sys.stdout)
