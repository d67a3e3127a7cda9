"""The partition that a ring is compiled with: brute force's by simulated cycles on a small case, the caller's, and what
cannot be split."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from host.compiler import CompileError, chosen_sizes, compile_model, compile_ring, plan_ring
from host.compiler.timed_cost import TimedCost
from host.planner import Partition
from host.planner.search import choose_partition, every_partition, preference
from hw.gpt2.config import core_config
from sw.models.gpt2_config import GPT2Config
from sw.models.seeded_weights import SeededCheckpoint

SMALL, LARGE = core_config("16x4"), core_config("64x16")
TINY = GPT2Config(2, 3, 48, 32, 60, n_inner=64)
FIVE = GPT2Config(2, 5, 60, 40, 140)


def test_choice_by_simulated_cycles_is_that_of_brute_force() -> None:
    cost = TimedCost(TINY, SMALL, 32)
    every = list(every_partition(TINY, 2))
    best = min(every, key=lambda partition: preference(cost(partition), partition))
    assert choose_partition(TINY, 2, cost, lambda partition: 0) == best
    planned = plan_ring(SeededCheckpoint(TINY), SMALL, 2, cost=cost).plan
    print(f"{len(every)} partitions, {min(map(cost, every))} to {max(map(cost, every))} cycles, best {best}")
    assert planned.estimate == cost.estimate(planned.partition)
    assert "sim.timing" in planned.estimate.source
    assert cost(planned.partition) <= 1.01 * cost(best) < cost(max(every, key=cost))  # from a shortlist, and a twin


def test_many_layers_are_timed_by_few() -> None:
    model = dataclasses.replace(TINY, n_layer=9)
    partition = Partition.even(model, 2)
    cost = TimedCost(model, SMALL, 32)
    exact = cost._timed(partition, 9)
    assert abs(cost(partition) - exact) < 0.01 * exact
    assert cost.estimate(partition).source.endswith("from steps of 2 and 4 layers")


def test_the_callers_partition_is_taken(tmp_path: Path) -> None:
    partition = Partition((1, 3, 1), (16, 16, 28), (112, 32, 96), (16, 112, 12))
    ring = compile_ring(SeededCheckpoint(FIVE), SMALL, tmp_path / "out", 3, partition=partition)
    assert ring.plan.partition == partition
    assert [program.registers["vocab"] for program, _ in ring.boards] == [16, 112, 12]
    assert [program.registers["token_offset"] for program, _ in ring.boards] == [0, 16, 128]
    assert [program.registers["heads"] for program, _ in ring.boards] == [1, 3, 1]
    with pytest.raises(ValueError, match="3 boards, asked for 2"):
        compile_ring(SeededCheckpoint(FIVE), SMALL, tmp_path / "out", 2, partition=partition)
    with pytest.raises(ValueError, match="vocabulary of the boards are 140 in all"):
        other = dataclasses.replace(FIVE, vocab_size=150)
        compile_ring(SeededCheckpoint(other), SMALL, tmp_path / "out", 3, partition=partition)


@pytest.mark.parametrize("boards,text", [(0, "boards is 0, must be 1 to 8"), (9, "boards is 9, must be 1 to 8")])
def test_boards_out_of_range(boards: int, text: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=text) as caught:
        compile_ring(SeededCheckpoint(FIVE), SMALL, tmp_path / "out", boards)
    assert caught.value.exit_code == 2 and caught.value.kind == "does_not_fit"
    assert list(tmp_path.iterdir()) == []


def test_more_boards_than_there_is_to_share(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"boards is 6, must be at most 5 .*has 5 heads to share out"):
        compile_ring(SeededCheckpoint(FIVE), SMALL, tmp_path / "out", 6)
    with pytest.raises(CompileError) as caught:
        plan_ring(SeededCheckpoint(GPT2Config(1, 8, 32, 16, 40)), SMALL, 4)
    assert "at most 2" in caught.value.message and "2 steps of 16 columns of x" in caught.value.message
    assert "3 steps of 16 columns of the logits" in caught.value.message  # all at once
    plan_ring(SeededCheckpoint(GPT2Config(1, 8, 32, 16, 40)), SMALL, 2)  # twin


def test_what_is_wrong_on_every_board_is_said_once() -> None:
    core = dataclasses.replace(SMALL, residual_strips=8, new_key_words=2)
    with pytest.raises(CompileError) as caught:
        plan_ring(SeededCheckpoint(FIVE), core, 2, partition=Partition((2, 3), (32, 28), (128, 112), (80, 60)))
    assert [problem.what for problem in caught.value.problems] == [
        "strips of the residual vector",
        "words of the new keys of board 1",
    ]


def test_a_model_that_does_not_fit_says_how_many_boards_would_hold_it(tmp_path: Path) -> None:
    xl = chosen_sizes("gpt2-xl")
    fits = plan_ring(xl, LARGE, 4).plan
    assert max(board.bytes_per_channel for board in fits.boards) <= 268_435_456
    channel_bytes = max(board.bytes_per_channel for board in fits.boards)
    for boards in (2, 3):
        with pytest.raises(CompileError) as caught:
            plan_ring(xl, LARGE, boards, channel_bytes=channel_bytes)
        assert "bytes per memory channel of board 0" in caught.value.message
        assert "4 boards would hold it" in caught.value.message or "5 boards would hold it" in caught.value.message
    with pytest.raises(CompileError, match="2 boards would hold it"):
        half = max(board.bytes_per_channel for board in plan_ring(SeededCheckpoint(FIVE), SMALL, 2).plan.boards)
        compile_model(SeededCheckpoint(FIVE), SMALL, tmp_path / "out", channel_bytes=half + 8192)
    with pytest.raises(CompileError, match="no number of boards would hold it"):
        compile_model(SeededCheckpoint(FIVE), SMALL, tmp_path / "out", channel_bytes=8192)
    assert list(tmp_path.iterdir()) == []


def test_memory_decides_where_the_even_partition_is_too_large() -> None:
    """A board with more heads holds more keys and values: with little memory it gets fewer columns."""
    model = dataclasses.replace(FIVE, n_positions=1024)
    free = plan_ring(SeededCheckpoint(model), SMALL, 2).plan
    limit = max(board.bytes_per_channel for board in free.boards) - 4096
    tight = plan_ring(SeededCheckpoint(model), SMALL, 2, channel_bytes=limit).plan
    assert max(board.bytes_per_channel for board in tight.boards) <= limit
    assert tight.partition != free.partition
