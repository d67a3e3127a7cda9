"""The hashes of the kernels' Verilog, recorded so that naming one does not take an elaboration.

``python -m sim.rtl.verilog_record`` elaborates every named core and rewrites ``results/verilog.json``: for each core
the hash of all that its Verilog depends on, and the hash of the Verilog. An entry counts while the first is still true.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import sys

from hw.gpt2.config import CORE_CONFIGS, CoreConfig
from sim.rtl.build import export_board, gateware_recipe

__all__ = ["RECORD", "main", "recipe_sha256", "verilog_sha256"]

RECORD = pathlib.Path(__file__).resolve().parents[2] / "results" / "verilog.json"


def recipe_sha256(config: CoreConfig) -> str:
    """SHA-256 of everything that the kernel's Verilog depends on: config, gateware's sources, version of Amaranth."""
    return hashlib.sha256("\0".join(gateware_recipe(config)).encode()).hexdigest()


def verilog_sha256(config: CoreConfig, record: pathlib.Path = RECORD) -> str:
    """SHA-256 of the kernel's Verilog.

    Taken from ``record`` if that was written with this very gateware; otherwise the kernel is elaborated, once for each
    state of the sources, and a line on standard error says so.
    """
    entry = _entries(record).get(config.name)
    if isinstance(entry, dict) and entry.get("recipe_sha256") == recipe_sha256(config):
        return str(entry["verilog_sha256"])
    sys.stderr.write(f"{record.name} does not hold this gateware of core {config.name}: its Verilog is made or found\n")
    sys.stderr.flush()
    return export_board(config).sha256


def write_record(record: pathlib.Path = RECORD) -> None:
    """Elaborate every named core and write the record."""
    entries = {
        name: {"recipe_sha256": recipe_sha256(config), "verilog_sha256": export_board(config).sha256}
        for name, config in CORE_CONFIGS.items()
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def _entries(record: pathlib.Path) -> dict[str, object]:
    """What the record holds; nothing if it is missing or damaged."""
    try:
        entries = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sim.rtl.verilog_record", description=__doc__)
    parser.parse_args(arguments)
    write_record()
    print(RECORD.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
