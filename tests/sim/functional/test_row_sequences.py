"""Several rows compute what one would: a sequence in steps, position by position, and on the core without rows."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from hw.board.gpt2_map import Flags, gpt2_register_map
from hw.board.program import Program
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard
from sim.programs import CaseResult, RandomCase, random_case, run_case
from sim.programs.image_builder import write_image
from sim.programs.random_case import await_end, start_case

SEEDS = {"16x4r2": [0, 1, 2, 5], "16x4r4": [0, 1, 4, 5]}
CASES = [(core, seed) for core, seeds in SEEDS.items() for seed in seeds]


def _sequence(core: str, seed: int) -> RandomCase:
    case = random_case(seed, core_config(core))
    assert not case.run_registers["flags"] & Flags.BATCH
    return case


def _step_by_step(case: RandomCase, tokens: tuple[int, ...], folder: pathlib.Path) -> tuple[CaseResult, list[int]]:
    """A start for each position of the whole run's tokens; the result behind the last one, and what was decided."""
    board = FunctionalBoard()
    board.load(case.program, write_image(list(case.channels), case.channel_bytes, folder))
    decided = []
    for p in range(case.run_registers["position"], len(tokens) - 1):
        write = p + 1 >= case.run_registers["prompt_end"]
        run = {"position": p, "prompt_end": p + 1, "max_new_tokens": 1, "flags": int(write)}
        one = dataclasses.replace(case, tokens=tokens[: p + 1], run_registers=case.run_registers | run)
        start_case(one, board)
        result = await_end(one, board, 1)
        if write:
            decided.append(result.tokens[-1])
    board.close()
    return result, decided


def _same_by_positions(case: RandomCase, tokens: tuple[int, ...], whole: CaseResult, folder: pathlib.Path) -> bool:
    last, decided = _step_by_step(case, tokens, folder)
    new = list(whole.tokens[case.run_registers["prompt_end"] :])
    return (decided, last.logits, last.keys_values) == (new, whole.logits, whole.keys_values)


@pytest.mark.parametrize(("core", "seed"), CASES)
def test_a_run_is_its_positions_one_after_the_other(core: str, seed: int, tmp_path: pathlib.Path) -> None:
    case = _sequence(core, seed)
    whole = run_case(case, FunctionalBoard(), tmp_path)
    assert whole.error == 0
    assert _same_by_positions(case, whole.tokens, whole, tmp_path)
    first = case.run_registers["position"]
    other = (*whole.tokens[:first], whole.tokens[first] ^ 1, *whole.tokens[first + 1 :])
    assert not _same_by_positions(case, other, whole, tmp_path)  # twin: another token at the first position


def _on_one_row(case: RandomCase) -> RandomCase:
    """The case on the core of the same sizes without rows."""
    core = core_config(case.program.core.name.partition("r")[0])
    known = {register.name for register in gpt2_register_map(core)}

    def of_one(registers: dict[str, int]) -> dict[str, int]:
        return {name: value for name, value in registers.items() if name in known}

    program = dataclasses.replace(case.program, core=core, registers=of_one(dict(case.program.registers)))
    return dataclasses.replace(
        case, program=program, run_registers=of_one(case.run_registers), tokens=case.tokens, row_tokens=()
    )


def _keys_and_values(program: Program, case: RandomCase, board: FunctionalBoard, rows: int) -> np.ndarray:
    """Keys and values by layer, head and position; ``rows``: by how much a head rotates its slots."""
    c, r = program.core, {**program.registers, **case.run_registers}
    per_lane, port = c.channels // c.lanes, c.port_bytes
    memory = [np.frombuffer(board.read_memory(i, 0, case.channel_bytes), "<u2") for i in range(c.channels)]
    lanes = [
        np.concatenate([memory[n * per_lane + j].reshape(-1, port // 2) for j in range(per_lane)], axis=1)
        for n in range(c.lanes)
    ]
    found = []
    for layer in range(r["layers"]):
        for head in range(r["heads"]):
            key = r["key_base"] + layer * r["key_layer_rows"] + head * r["key_head_rows"]
            value = r["value_base"] + layer * r["value_layer_rows"] + head * r["value_head_rows"]
            for p in range(r["context_limit"]):
                slot = p - p % c.lanes + (p + rows * head) % c.lanes
                at = key + slot // c.lanes * r["key_words"]
                found += [lanes[slot % c.lanes][at + w] for w in range(r["key_words"])]
                at = value + slot // c.tile * r["value_strips"]
                strips = range(r["value_strips"])
                found.append(np.array([lanes[n][at + s][slot % c.tile] for s in strips for n in range(c.lanes)]))
    return np.concatenate(found)


@pytest.mark.parametrize(("core", "seed"), CASES)
def test_rows_change_only_where_keys_and_values_lie(core: str, seed: int, tmp_path: pathlib.Path) -> None:
    case = _sequence(core, seed)
    rows = case.program.core.rows
    start = case.run_registers["position"]
    if start:  # a past lies in rotated slots: begin at 0 on memory without one
        first = case.program.registers["key_base"] * case.program.core.port_bytes // 2
        run = case.run_registers | {"position": 0}
        case = dataclasses.replace(case, channels=case.channels[:, :first].copy(), run_registers=run)
    one = _on_one_row(case)
    several_board, one_board = FunctionalBoard(), FunctionalBoard()
    several = run_case(case, several_board, tmp_path)
    (tmp_path / "one").mkdir()  # the first board keeps its files mapped
    alone = run_case(one, one_board, tmp_path / "one")
    assert (several.tokens, several.logits) == (alone.tokens, alone.logits)
    together = case.run_registers["prompt_end"] > 1  # positions 0 and 1 make one step
    assert (several.tiles < alone.tiles) == together
    wanted = _keys_and_values(one.program, one, one_board, 1)
    assert np.array_equal(_keys_and_values(case.program, case, several_board, rows), wanted)
    if case.program.registers["heads"] > 1:  # twin: slots that are rotated by the head alone
        assert not np.array_equal(_keys_and_values(case.program, case, several_board, 1), wanted)
