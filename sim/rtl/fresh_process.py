"""Elaboration in a process of its own: always the same Verilog, and nothing imported before a fault is in place."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

__all__ = ["run_fresh"]

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_fresh(module: str, request: Mapping[str, object], what: str, limit_s: float, error: type[Exception]) -> str:
    """Start ``python -m module`` with ``request`` as JSON on its standard input; returns its standard output.

    The process has a fixed hash seed: Amaranth keeps clock domains in sets, so the order of ports in the Verilog, and
    with it the hash, would differ from process to process. ``what`` begins the message of ``error``, which is raised if
    the process fails or does not end within ``limit_s`` seconds.
    """
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", module],
            input=json.dumps(request),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise error(f"{what} is not exported after {limit_s:.0f} s") from None
    if done.returncode:
        raise error(f"{what} cannot be exported:\n{done.stderr[-3000:]}")
    return done.stdout
