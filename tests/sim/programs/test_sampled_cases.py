"""Random programs that sample: on the functional executor as on the slow core, and what they cover."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from hw.board.gpt2_map import Flags, row_register
from hw.gpt2.config import core_config
from hw.gpt2.sampled_token import BoardSampling
from sim.functional import FunctionalBoard
from sim.programs import RandomCase, random_case, run_case
from sim.programs.sampled_case import mixed_case, sampled_case, samples
from sim.programs.slow_core import SlowCore
from sim.programs.slow_rows import SlowRows

SEEDS = range(60)
SLOW_SEEDS = {"16x4": [0, 1, 3], "16x4r4": [1, 2, 3]}


def _sampling(case: RandomCase, row: int = 0) -> BoardSampling | None:
    names = (row_register(name, row) for name in ("seed", "sampling"))
    return BoardSampling.of_registers(*(case.run_registers[name] for name in names))


def test_a_seed_is_one_case_and_only_registers_change() -> None:
    case = random_case(4, core_config("16x4r4"))
    sampled = sampled_case(case)
    assert sampled.run_registers == sampled_case(case).run_registers != sampled_case(case, 5).run_registers
    assert sampled.program is case.program and case.run_registers.items() <= sampled.run_registers.items()


def test_odd_seeds_of_mixed_cases_sample() -> None:
    core = core_config("16x4")
    for seed in (4, 5):
        mixed, plain = mixed_case(seed, core), random_case(seed, core)
        assert samples(seed) == bool(seed % 2) == ("sampling" in mixed.run_registers)
        assert mixed.run_registers == (sampled_case(plain) if samples(seed) else plain).run_registers


def test_every_kind_of_sampling_is_used() -> None:
    cases = [sampled_case(random_case(seed, core_config("16x4"))) for seed in SEEDS]
    drawn = [sampling for case in cases if (sampling := _sampling(case))]
    assert len(drawn) == len(cases)
    assert {0, 1, 64} < {sampling.top_k for sampling in drawn}
    assert any(s.top_k > c.program.registers["vocab"] for s, c in zip(drawn, cases, strict=True))
    assert {-16, 16} < {sampling.inverse_exponent for sampling in drawn}
    assert {0, 2**64 - 1} < {sampling.seed for sampling in drawn}
    batches = [sampled_case(random_case(seed, core_config("16x4r4"))) for seed in SEEDS]
    mixed = [{_sampling(case, row) is None for row in range(4)} for case in batches]
    assert {True, False} in mixed and {False} in mixed
    assert {bool(case.run_registers["flags"] & Flags.BATCH) for case in batches} == {True, False}


def _same(case: RandomCase, folder: pathlib.Path, kind: type[SlowCore] = SlowCore) -> bool:
    """At most three tokens a request: the slow core takes its time."""
    most = {name: min(n, 3) for name, n in case.run_registers.items() if name.startswith("max_new_tokens")}
    case = dataclasses.replace(case, run_registers=case.run_registers | most)
    result = run_case(case, FunctionalBoard(), folder)
    if case.program.core.rows == 1:
        return kind(case).run() == (result.tokens, result.logits, result.keys_values)
    slow = SlowRows(case, kind)
    same = slow.run() == ((result.tokens, *result.row_tokens), result.logits, result.keys_values)
    return same and (slow.failure is not None) == bool(result.error)


@pytest.mark.parametrize(("core", "seed"), [(core, seed) for core, seeds in SLOW_SEEDS.items() for seed in seeds])
def test_the_slow_core_samples_alike(core: str, seed: int, tmp_path: pathlib.Path) -> None:
    assert _same(sampled_case(random_case(seed, core_config(core))), tmp_path)


class OnePositionBack(SlowCore):
    """Fault: the token of a position is drawn with the random numbers of the one before."""

    def begin(self) -> None:
        super().begin()
        self.sampling_position = self.p


class SamplesByRowZero(SlowCore):
    """Fault: every row samples as row 0 does."""

    def __init__(self, case: RandomCase, row: int = 0, memory: object = None) -> None:
        super().__init__(case, row, memory)  # type: ignore[arg-type]
        self.r |= {name: case.run_registers[name] for name in ("seed", "sampling")}


@pytest.mark.parametrize(("fault", "core"), [(OnePositionBack, "16x4"), (SamplesByRowZero, "16x4r4")])
def test_twin_a_fault_is_seen(fault: type[SlowCore], core: str, tmp_path: pathlib.Path) -> None:
    cases = [sampled_case(random_case(seed, core_config(core))) for seed in SLOW_SEEDS[core]]
    assert not all(_same(case, tmp_path, fault) for case in cases)
