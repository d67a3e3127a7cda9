"""What a step towards an always busy matrix unit is worth: taken back, it costs what decision 0011 says it removes."""

import pathlib

from host.bench.decode_steps import decode_steps, steps
from host.compiler import chosen_core

TINY = str(pathlib.Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny")


def test_each_step_taken_back_costs_no_less():
    (_, now, useful), *back = decode_steps(TINY, 33, "16x4")
    assert [name for name, _, _ in back] == [step.name for step in steps(chosen_core("16x4"))]
    assert all(cycles >= now for _, cycles, _ in back)
    cost = {name.split(" (back")[0]: cycles - now for name, cycles, _ in back}
    assert cost["read FIFOs of 512 rows"] > 0 and cost["tiles on one accumulator 4 cycles apart"] > 0
    assert all(abs(share - useful) < useful * 1e-9 for _, _, share in back), "the useful products are the same"
