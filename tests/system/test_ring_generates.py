"""The shipped checkpoint on rings of 1 to 8 boards: the gateware leaves functional's bits, whatever its links do.

Compared are tokens, the fp32 logits of every decode step, and every board's hash of all keys and values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from host.bench.ring_agreement import (
    CHECKPOINT,
    PROMPT,
    Ran,
    conditions,
    difference,
    functional_run,
    gateware_run,
    main,
)
from host.compiler import compile_ring
from host.planner.search import neighbours
from host.runtime.program_folders import Programs, compile_programs
from hw.gpt2.config import core_config
from sim.rtl.build import BuiltBoard, build_board
from sw.models.tokenizer import Tokenizer

CORE = core_config("16x4")
IDS, TOKENS = Tokenizer(CHECKPOINT).encode(PROMPT), 8
SEEDS = range(5)
QUICK = {
    (2, "delays of seed 1"),
    (3, "delays of seed 2"),
    (2, "1 % of frames corrupted"),
    (3, "1 % of frames corrupted"),
}
CASES = {
    (boards, under.name): pytest.param(
        boards,
        under,
        id=f"{boards} boards, {under.name}",
        marks=() if (boards, under.name) in QUICK else pytest.mark.slow,
    )
    for boards in (1, 2, 3, 4, 8)
    for under in conditions(boards, SEEDS)
}
Wanted = Callable[[int], tuple[Programs, Ran]]


@pytest.fixture(scope="module")
def built() -> BuiltBoard:
    return build_board(CORE)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Wanted:
    """Programs of so many boards, and what the functional boards make of them."""

    @functools.cache
    def of(boards: int) -> tuple[Programs, Ran]:
        programs = compile_programs(CHECKPOINT, CORE, tmp_path_factory.mktemp("ring") / "program", boards)
        return programs, functional_run(programs, IDS, TOKENS)

    return of


@pytest.mark.parametrize(("boards", "under"), CASES.values())
def test_gateware_equals_functional(boards, under, built: BuiltBoard, wanted: Wanted) -> None:
    programs, want = wanted(boards)
    got, traffic = gateware_run(built, programs, IDS, TOKENS, under)
    print(f"{boards} boards, {under.name}: {traffic}")
    assert difference(got, want) == ""
    assert len(got.tokens) == TOKENS and len(set(got.kv_hashes)) == boards
    assert (traffic.resends > 0) == under.must_resend


def test_twin_another_partition_has_other_bits(wanted: Wanted, tmp_path: Path) -> None:
    programs, want = wanted(3)
    plan = compile_ring(CHECKPOINT, CORE, tmp_path / "same", 3).plan
    other = next(found for found in neighbours(plan.partition) if found.x != plan.partition.x)
    compiled = list(compile_ring(CHECKPOINT, CORE, tmp_path / "other", 3, partition=other).boards)
    assert "logits differ" in difference(functional_run(compiled, IDS, TOKENS), want)
    assert difference(functional_run(programs, IDS, TOKENS), want) == ""


def test_twin_other_numbers_of_boards_have_other_bits(wanted: Wanted) -> None:
    logits = [wanted(boards)[1].logits.tobytes() for boards in (1, 2, 3)]
    assert len(set(logits)) == 3


def test_twin_a_flipped_weight_bit_shows(built: BuiltBoard, wanted: Wanted, tmp_path: Path) -> None:
    programs, want = wanted(2)
    program, image = programs[1]
    data = bytearray(image.files[1].read_bytes())
    data[CORE.port_bytes * 40 + 1] ^= 0x80  # the sign of one weight of board 1's first layer
    broken = tmp_path / image.files[1].name
    broken.write_bytes(data)
    changed = dataclasses.replace(image, files=(image.files[0], broken, *image.files[2:]))
    got, _ = gateware_run(built, [programs[0], (program, changed)], IDS, 2, conditions(2, ())[0])
    first = dataclasses.replace(want, tokens=want.tokens[:2], logits=want.logits[:2])
    assert "differ" in difference(got, first) or got.tokens != first.tokens


def test_the_command_counts_runs_that_differ(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The command on a stand-in for the gateware: functional boards, which have no cables, and one bit wrong."""
    from host.bench import ring_agreement

    def stand_in(built, programs, prompt, tokens, under, threads):
        ran = functional_run(programs, prompt, tokens)
        if under.name == "delays of seed 0":
            ran.logits[1, 7] ^= 1
        return ran, ring_agreement.Traffic(1000, 10, 0, 0)

    monkeypatch.setattr(ring_agreement, "gateware_run", stand_in)
    monkeypatch.setattr(ring_agreement, "build_board", lambda core: None)
    assert main(["--boards", "2", "--seeds", "2", "--tokens", "2"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("figure: 2 boards, ") for line in lines] == [True] * 4
    assert "2 tokens, 2,048 logits" in lines[0] and "1 logits differ, first at (step, id) (1, 7)" in lines[1]
    assert "all keys and values equal" in lines[2] and "proves nothing" in lines[3]
