"""The table of published figures: complete, plausible, and consistent with what is derived from it."""

from __future__ import annotations

import dataclasses

import pytest

from host.bench.published import Basis, Published, Quantity
from host.bench.published_figures import PUBLISHED, best_published, selected

PLAUSIBLE = {
    Quantity.TOTAL_MS: (100, 10_000),
    Quantity.FIRST_TOKEN_MS: (10, 5_000),
    Quantity.STEP_MS: (0.5, 100),
    Quantity.DECODE_RATE: (10, 1_000),
    Quantity.RATE_WITH_PROMPT: (5, 1_000),
    Quantity.BANDWIDTH_FRACTION: (0.01, 1),
    Quantity.SYNC_FRACTION: (0.001, 0.9),
    Quantity.LUT_FRACTION: (0.05, 0.9),
    Quantity.DSP_FRACTION: (0.05, 0.9),
    Quantity.BRAM_FRACTION: (0.05, 0.9),
    Quantity.POWER_W: (10, 700),
    Quantity.PRICE_USD: (1_000, 100_000),
}


@pytest.mark.parametrize("one", PUBLISHED, ids=lambda one: f"{one.system} {one.quantity} {one.devices} {one.length}")
def test_an_entry_is_complete(one: Published) -> None:
    assert len(one.citation) > 10 and any(part.isdigit() for part in one.citation)  # a work and its year
    assert one.conditions and one.device and one.precision and one.read_from
    low, high = PLAUSIBLE[one.quantity]
    assert low <= one.value <= high
    assert one.prompt_included == (one.length is not None and one.quantity != Quantity.DECODE_RATE)
    facts = one.facts()
    assert facts["source"] == f"published by {one.citation}" and facts["prompt_included"] is one.prompt_included
    if one.implied_bandwidth_fraction is not None:
        assert 0.05 < one.implied_bandwidth_fraction < 0.9


def test_no_figure_stands_twice() -> None:
    keys = [(p.system, p.model, p.devices, p.quantity, p.length, p.attended) for p in PUBLISHED]
    assert len(set(keys)) == len(keys)


def test_every_named_work_is_there() -> None:
    systems = {one.system for one in PUBLISHED}
    assert systems >= {"DFX", "StreamTensor", "Allo", "LoopLynx", "FlightLLM", "EdgeLLM"}
    assert {one.quantity for one in PUBLISHED} == set(Quantity)


def test_a_figure_with_a_prompt_needs_its_length() -> None:
    total = selected(system="DFX", quantity=Quantity.TOTAL_MS)[0]
    with pytest.raises(ValueError, match="depends on the lengths"):
        dataclasses.replace(total, length=None)


@pytest.mark.parametrize(
    ("model", "devices"), [("gpt2-345m", 1), ("gpt2-345m", 2), ("gpt2-345m", 4), ("gpt2-1.5b-dfx", 4)]
)
def test_steps_derived_from_dfx_throughput(model: str, devices: int) -> None:
    """A [64:64] run is 127 steps alike, so the step follows from the tokens a second with the prompt."""
    (step,) = selected(system="DFX", model=model, devices=devices, quantity=Quantity.STEP_MS)
    (rate,) = selected(system="DFX", model=model, devices=devices, quantity=Quantity.RATE_WITH_PROMPT)
    assert step.value == pytest.approx(1000 * 64 / rate.value / 127, rel=3e-3)
    assert step.basis == Basis.DERIVED and rate.basis == Basis.MEASURED


@pytest.mark.parametrize("system", ["DFX", "StreamTensor"])
def test_totals_are_first_token_and_decode(system: str) -> None:
    for total in selected(system=system, quantity=Quantity.TOTAL_MS):
        assert total.length is not None
        (first,) = selected(system=system, quantity=Quantity.FIRST_TOKEN_MS, length=total.length)
        rate = selected(system=system, quantity=Quantity.DECODE_RATE, length=total.length)
        decode_rate = rate[0].value if rate else 185.19  # DFX: the same for all lengths, in StreamTensor's table
        assert total.value == pytest.approx(first.value + 1000 * total.length[1] / decode_rate, rel=0.01)


def test_bandwidth_that_figures_imply() -> None:
    """The fractions that the literature's readers come to: DFX 28 %, FlightLLM's re-run 43 % of 460 GB/s."""
    dfx = best_published(system="DFX", model="gpt2-345m", devices=1, quantity=Quantity.STEP_MS)
    flight = best_published(system="FlightLLM", quantity=Quantity.STEP_MS)
    assert dfx is not None and dfx.implied_bandwidth_fraction == pytest.approx(0.285, abs=0.01)
    assert flight is not None and flight.implied_bandwidth_fraction == pytest.approx(0.43, abs=0.01)
    fewer_bits = dataclasses.replace(dfx, weight_bits=8)
    assert fewer_bits.implied_bandwidth_fraction == pytest.approx(dfx.implied_bandwidth_fraction / 2, rel=0.02)
    assert dataclasses.replace(dfx, peak_gb_s=None).implied_bandwidth_fraction is None


def test_selection() -> None:
    assert best_published(system="DFX", quantity=Quantity.STEP_MS).value == 2.43  # type: ignore[union-attr]
    assert best_published(system="nobody") is None
    assert {one.devices for one in selected(system="LoopLynx")} == {1, 2, 4}
