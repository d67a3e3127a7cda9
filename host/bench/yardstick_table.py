"""The yardsticks that the project's design sets for GPT-2 (its section 8): cases, bars, best published figures.

Rows and columns are the design's. The limit is no part of it: it is computed (`host.bench.streamed_work`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from host.bench.published import Quantity
from host.bench.published_figures import best_published
from host.bench.yardsticks import Case, Yardstick

__all__ = ["RTL_SECONDS_BAR", "RTL_YARDSTICKS", "YARDSTICKS"]

_DFX_STEP: dict[str, Any] = {"system": "DFX", "quantity": Quantity.STEP_MS}
_DFX_345M = best_published(model="gpt2-345m", devices=1, **_DFX_STEP)
_SHARED = Case("gpt2-1.5b-dfx", boards=4, attended=128)
_STEP_345M, _STEP_XL = Case("gpt2-345m", attended=128), Case("gpt2-xl", boards=4, attended=128)
_INT8 = dataclasses.replace(_STEP_345M, core="64x16i8")
_PROMPT = Case("gpt2-345m", prompt=64)
_DFX_PROMPT = best_published(system="DFX", model="gpt2-345m", quantity=Quantity.FIRST_TOKEN_MS, length=(64, 64))
_SYNC = best_published(model="gpt2-1.5b-dfx", devices=4, quantity=Quantity.SYNC_FRACTION)

YARDSTICKS: tuple[Yardstick, ...] = (
    Yardstick(_STEP_345M, 1.83, _DFX_345M),
    Yardstick(Case("gpt2-345m", attended=1000), 2.05),
    Yardstick(_SHARED, 1.86, best_published(model="gpt2-1.5b-dfx", devices=4, **_DFX_STEP)),
    Yardstick(_STEP_XL, 2.08),
    Yardstick(
        Case("gpt2-345m", boards=4, attended=128), 0.48, best_published(model="gpt2-345m", devices=4, **_DFX_STEP)
    ),
    Yardstick(_INT8, 0.94, best_published(system="StreamTensor", model="gpt2-345m", quantity=Quantity.DECODE_RATE)),
    *(
        Yardstick(dataclasses.replace(_PROMPT, core=core), bar, _DFX_PROMPT)
        for core, bar in (("64x16", 99.0), ("64x16r2", 50.0), ("64x16r4", 25.5))
    ),
    Yardstick(dataclasses.replace(_STEP_345M, core="64x16r4", requests=4), 1.93),
    *(
        Yardstick(Case("gpt2-1.5b-dfx", boards=4, attended=128, hop_ns=hop), bar, _SYNC, share=True)
        for hop, bar in ((200.0, None), (500.0, 0.02), (1000.0, None))
    ),
)
"""Every row of the design that concerns GPT-2's time; those of area: `host.bench.yardstick_area`."""

RTL_YARDSTICKS: tuple[Yardstick, ...] = (YARDSTICKS[0], YARDSTICKS[3])
"""Those whose step is also run through the gateware."""

RTL_SECONDS_BAR = {_STEP_345M: 30.0}
"""Most seconds of simulation of a step through the full-size gateware on 2 processors."""
