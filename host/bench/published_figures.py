"""Published figures that ours stand beside, as data: DFX, StreamTensor, Allo, LoopLynx, FlightLLM, EdgeLLM, and GPUs.

What was read from another table or from notes says so in `read_from`. Figures that the sources mark as from memory are
left out, and so are those of designs whose models or conditions could not be told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from host.bench.published import Basis, Published, Quantity

__all__ = ["PUBLISHED", "best_published", "selected"]

_DFX_WORK = "Hong et al., DFX, MICRO 2022 (DOI 10.1109/MICRO56248.2022.00051)"
_STREAM_WORK = "StreamTensor, MICRO 2025 (arXiv 2509.13694)"
_ALLO_WORK = "Chen et al., spatial accelerators with Allo, TRETS 2024"
_LOOPLYNX_WORK = "LoopLynx, DATE 2025"
_FLIGHT_WORK = "FlightLLM, FPGA 2024"
_EDGE_WORK = "EdgeLLM, TCAS-I 2025"
_STREAM_TABLE = f"comparison table of {_STREAM_WORK}"
_NOTES = "a reader's notes on the work"
_SQUARES = ((32, 32), (64, 64), (128, 128), (256, 256))
_U280_PEAK, _U55C_PEAK = 460.0, 460.0

_DFX_CONDITIONS = "batch 1, kernel 200 MHz; prompt tokens are processed one after another like output tokens"
_DFX = Published(
    system="DFX",
    citation=_DFX_WORK,
    device="Alveo U280",
    model="gpt2-345m",
    precision="fp16",
    weight_bits=16,
    quantity=Quantity.STEP_MS,
    value=5.4,
    basis=Basis.DERIVED,
    conditions=f"{_DFX_CONDITIONS}; 64 / (tokens/s at [64:64]) / 127 steps; prompt and output tokens alike",
    peak_gb_s=_U280_PEAK,
)
_V100 = dataclasses.replace(
    _DFX,
    system="V100 in DFX's paper",
    device="V100",
    devices=4,
    model="gpt2-1.5b-dfx",
    conditions="the authors' own GPU baseline, fp16, batch 1, 4 GPUs; width 1536 and 24 heads as on DFX",
    peak_gb_s=None,
)
_STREAM = Published(
    system="StreamTensor",
    citation=_STREAM_WORK,
    device="Alveo U55C",
    model="gpt2-345m",
    precision="W4A8",
    weight_bits=4,
    quantity=Quantity.DECODE_RATE,
    value=229.6,
    basis=Basis.MEASURED,
    conditions="4-bit weights, 8-bit activations: a quarter of fp16's bytes a token; prompt processed as a block",
    length=(256, 256),
    peak_gb_s=_U55C_PEAK,
)
_ALLO = Published(
    system="Allo",
    citation=_ALLO_WORK,
    device="Alveo U280",
    model="gpt2-345m",
    precision="W8A8",
    weight_bits=8,
    quantity=Quantity.DECODE_RATE,
    value=204.05,
    basis=Basis.MEASURED,
    conditions="250 MHz; 8-bit weights and activations (StreamTensor's table labels it W4A8)",
    read_from=_STREAM_TABLE,
    peak_gb_s=_U280_PEAK,
)
_LOOPLYNX = Published(
    system="LoopLynx",
    citation=_LOOPLYNX_WORK,
    device="Alveo U50 node (one SLR)",
    model="gpt2-345m",
    precision="W8A8",
    weight_bits=8,
    quantity=Quantity.STEP_MS,
    value=6.59,
    basis=Basis.SIMULATED,
    conditions="285 MHz, SmoothQuant; two nodes are one board; cycle-accurate simulation, network included",
    devices_a_board=2,
    read_from=_NOTES,
)
_FLIGHT = Published(
    system="FlightLLM",
    citation=_FLIGHT_WORK,
    device="Alveo U280",
    model="LLaMA2-7B",
    precision="N:M sparse, 3-4 bit",
    weight_bits=4.1,
    quantity=Quantity.STEP_MS,
    value=17.50,
    basis=Basis.THIRD_PARTY,
    conditions="225 MHz; from embedded vector to logits; another model than GPT-2: only its use of bandwidth compares",
    read_from=_NOTES,
    attended=128,
    peak_gb_s=_U280_PEAK,
    weight_bytes=3.43e9,
)
_EDGE = Published(
    system="EdgeLLM",
    citation=_EDGE_WORK,
    device="VCU128",
    model="GLM-6B",
    precision="W4, fp16 activations",
    weight_bits=4,
    quantity=Quantity.BANDWIDTH_FRACTION,
    value=0.75,
    basis=Basis.CLAIMED,
    conditions="mean over the matrix layers alone, 70 to 80 %; matrix unit 280 MHz; another model than GPT-2",
    read_from=_NOTES,
    peak_gb_s=460.0,
)


def _dfx() -> Iterator[Published]:
    table = dataclasses.replace(_DFX, read_from=_STREAM_TABLE, basis=Basis.MEASURED, conditions=_DFX_CONDITIONS)
    totals, firsts = (350.0, 694.7, 1384.0, 2800.0), (177.2, 349.1, 692.8, 1417.6)
    for length, total, first in zip(_SQUARES, totals, firsts, strict=True):
        beyond = length[0] > 128
        basis = Basis.EXTRAPOLATED if beyond else Basis.MEASURED
        conditions = f"{_DFX_CONDITIONS}; outside DFX's own range of prompts (32 to 128)" if beyond else _DFX_CONDITIONS
        own: dict[str, Any] = {"length": length, "basis": basis, "conditions": conditions}
        yield dataclasses.replace(table, quantity=Quantity.TOTAL_MS, value=total, **own)
        yield dataclasses.replace(table, quantity=Quantity.FIRST_TOKEN_MS, value=first, **own)
    for model, devices, rate, step in (
        ("gpt2-345m", 1, 93.10, 5.4),
        ("gpt2-345m", 2, 146.25, 3.45),
        ("gpt2-345m", 4, 207.56, 2.43),
        ("gpt2-1.5b-dfx", 4, 72.68, 6.93),
    ):
        wider = "; shrunk from 25 to 24 heads, width 1536, so that it divides" if model == "gpt2-1.5b-dfx" else ""
        ring = "; ring of 100 Gb/s cables" if devices > 1 else ""
        place: dict[str, Any] = {"model": model, "devices": devices}
        yield dataclasses.replace(
            _DFX, **place, value=step, attended=96, conditions=_DFX.conditions + ring + wider
        )  # 96: the middle of a [64:64] run
        yield dataclasses.replace(
            _DFX,
            **place,
            quantity=Quantity.RATE_WITH_PROMPT,
            value=rate,
            basis=Basis.MEASURED,
            conditions=_DFX_CONDITIONS + ring + wider,
            length=(64, 64),
        )
    measured: dict[str, Any] = {"basis": Basis.MEASURED, "conditions": _DFX_CONDITIONS}
    of_ring: dict[str, Any] = {"model": "gpt2-1.5b-dfx", "devices": 4}
    yield dataclasses.replace(_DFX, **measured, **of_ring, quantity=Quantity.SYNC_FRACTION, value=0.173)
    for resource, share in (
        (Quantity.LUT_FRACTION, 0.3993),
        (Quantity.DSP_FRACTION, 0.3915),
        (Quantity.BRAM_FRACTION, 0.5913),
    ):
        yield dataclasses.replace(
            _DFX,
            quantity=resource,
            value=share,
            basis=Basis.MEASURED,
            conditions="placed and routed on one U280, 200 MHz",
        )
    yield dataclasses.replace(
        _DFX, quantity=Quantity.POWER_W, value=45.0, basis=Basis.MEASURED, conditions="xbutil, one U280 at work"
    )
    yield dataclasses.replace(
        _DFX, quantity=Quantity.PRICE_USD, value=7795.0, basis=Basis.CLAIMED, conditions="the accelerator alone, 2022"
    )


def _gpus() -> Iterator[Published]:
    measured: dict[str, Any] = {"basis": Basis.MEASURED}
    yield dataclasses.replace(_V100, **measured, quantity=Quantity.RATE_WITH_PROMPT, value=13.01, length=(64, 64))
    yield dataclasses.replace(
        _V100,
        **measured,
        value=75.45,
        conditions=f"{_V100.conditions}; the slope of latency over output tokens; a prompt token adds 0.02 ms",
    )
    yield dataclasses.replace(
        _V100, **measured, quantity=Quantity.POWER_W, value=47.5, conditions="nvidia-smi, mean of one V100"
    )
    yield dataclasses.replace(
        _V100, quantity=Quantity.PRICE_USD, value=11458.0, basis=Basis.CLAIMED, conditions="the accelerator alone, 2022"
    )


def _spatial() -> Iterator[Published]:
    rows = zip(
        _SQUARES, (195.0, 358.0, 697.0, 1388.0), (34.6, 61.3, 125.0, 273.0), (199.5, 215.5, 224.1, 229.6), strict=True
    )
    for length, total, first, rate in rows:
        yield dataclasses.replace(_STREAM, length=length, quantity=Quantity.TOTAL_MS, value=total)
        yield dataclasses.replace(_STREAM, length=length, quantity=Quantity.FIRST_TOKEN_MS, value=first)
        yield dataclasses.replace(_STREAM, length=length, value=rate)
    yield _ALLO
    for length, first in (((32, 32), 81.5), ((64, 64), 163.0)):
        yield dataclasses.replace(_ALLO, length=length, quantity=Quantity.FIRST_TOKEN_MS, value=first)
    for nodes, step in ((1, 6.59), (2, 3.85), (4, 2.55)):
        yield dataclasses.replace(_LOOPLYNX, devices=nodes, value=step)


def _other_models() -> Iterator[Published]:
    yield _FLIGHT
    yield dataclasses.replace(_FLIGHT, value=18.99, attended=512)
    yield dataclasses.replace(
        _FLIGHT,
        quantity=Quantity.BANDWIDTH_FRACTION,
        value=0.659,
        basis=Basis.CLAIMED,
        read_from="the work's own table",
        attended=None,
    )
    yield dataclasses.replace(_FLIGHT, quantity=Quantity.POWER_W, value=45.0, basis=Basis.CLAIMED, attended=None)
    yield _EDGE
    yield dataclasses.replace(
        _EDGE,
        quantity=Quantity.DECODE_RATE,
        value=90.0,
        basis=Basis.MEASURED,
        conditions="about, below 512 tokens; another model than GPT-2",
    )


PUBLISHED: tuple[Published, ...] = (*_dfx(), *_spatial(), *_other_models(), *_gpus())
"""Every figure, FPGAs first."""


def selected(
    *,
    model: str | None = None,
    quantity: Quantity | None = None,
    length: tuple[int, int] | None = None,
    devices: int | None = None,
    system: str | None = None,
) -> tuple[Published, ...]:
    """The figures that have each of the given facts."""
    wanted = {"model": model, "quantity": quantity, "length": length, "devices": devices, "system": system}
    asked = {name: value for name, value in wanted.items() if value is not None}
    return tuple(one for one in PUBLISHED if all(getattr(one, name) == value for name, value in asked.items()))


def best_published(**facts: Any) -> Published | None:
    """The best of the selected figures, which must be of one quantity: the highest rate, the lowest of anything else;
    None if there is none. Parameters as of `selected`."""
    return min(selected(**facts), key=lambda one: -one.value if one.is_rate else one.value, default=None)
