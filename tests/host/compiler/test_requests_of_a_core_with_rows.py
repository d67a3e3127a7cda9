"""A program for a core with rows: memory, registers and seeded caches of every request, its limits, and its cycles."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from host.compiler import CompileError, Shape, chosen_core, compile_model, compile_ring, explain, plan_program
from host.compiler.explain import ideal_cycles, summary
from host.compiler.limits import all_problems
from host.driver.batch_request import BatchRequest
from host.driver.session import open_kernel
from hw.board.program import Program
from hw.gpt2.config import CORE_CONFIGS, ConfigError, CoreConfig, core_config
from sim.functional import FunctionalBoard
from sw.errors import ModelError
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.key_values import SeededKeyValues, stacked
from sw.models.named_sizes import NAMED_SIZES
from sw.models.seeded_weights import SeededCheckpoint

WAIT_S = 60.0
SMALL = GPT2Config(n_layer=2, n_head=3, n_embd=48, n_positions=40, vocab_size=101)
WEIGHTS = SeededCheckpoint(SMALL, 4)
OF_A_REQUEST = ("keys", "values", "logits")
BASES = {"keys": "key_base", "values": "value_base", "logits": "logits_base"}


@pytest.mark.parametrize("name", ["16x4r2", "16x4r4", "64x16r4"])
def test_each_request_has_regions_and_registers_of_its_own(name: str, tmp_path: Path) -> None:
    core = core_config(name)
    program, image = compile_model(WEIGHTS, core, tmp_path / "p")
    alone = plan_program(Shape(SMALL, core_config(name.partition("r")[0]), 40))
    assert (program.instructions, program.descriptors) == (alone.instructions, alone.descriptors)
    by_name = {region.name: region for region in program.regions if region.channel == core.channels - 1}
    sizes = {region.name: region.bytes for region in alone.regions}
    ends = [(region.offset, region.offset + region.bytes) for region in by_name.values()]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))  # in order, none overlaps
    for row in range(core.rows):
        for kind in OF_A_REQUEST:
            region = by_name[f"{kind}_{row}" if row else kind]
            assert (region.kind, region.bytes) == (kind, sizes[kind]) and region.offset % 4096 == 0
            base = program.registers[f"{BASES[kind]}_{row}" if row else BASES[kind]]
            assert base * core.port_bytes == region.offset
    assert len(program.registers) == len(alone.registers) + 3 * (core.rows - 1)
    assert len(by_name) == 6 + 3 * (core.rows - 1)
    assert image.image_bytes == by_name["keys"].offset  # the image ends with the embeddings
    again, image_again = Program.load(tmp_path / "p")
    image_again.verify()
    assert again == dataclasses.replace(program, registers=dict(program.registers), notes=again.notes)


def _reference(positions: int, seed: int, token: int) -> np.ndarray:
    model = GPT2.from_weights(WEIGHTS)
    cache = model.new_cache()
    seeded = SeededKeyValues(SMALL, positions, seed)
    for target, rows in zip((cache.keys, cache.values), stacked(seeded), strict=True):
        target[:, 0, :, :positions] = torch.from_numpy(rows.astype(np.float32))
    with torch.inference_mode():
        logits: np.ndarray = model(torch.tensor([[token]]), cache, positions)[0, 0].numpy()
    return logits


@pytest.mark.parametrize("name", ["16x4r2", "16x4r4"])
def test_a_batch_behind_seeded_caches_is_pytorchs_request_by_request(name: str, tmp_path: Path) -> None:
    core, positions = core_config(name), 21
    program, image = compile_model(WEIGHTS, core, tmp_path / "p", seeded_positions=positions, kv_seed=6)
    assert program.notes["cached_positions"] == positions
    assert str(program.notes["cache"]).startswith("request 0: seed 6, request 1: seed 7")
    assert image.image_bytes == min(r.offset for r in program.regions if r.kind == "logits")
    tokens = [5, 70, 33, 8][: core.rows]
    with open_kernel(FunctionalBoard(core), core) as kernel:
        kernel.load((program, image))
        kernel.start_batch(
            [BatchRequest([0] * positions + [token], 1, position=positions) for token in tokens], write_logits=True
        )
        kernel.wait_batch(WAIT_S)
        logits = [kernel.read_logits(positions, row) for row in range(core.rows)]
    for row, token in enumerate(tokens):
        wanted, other = _reference(positions, 6 + row, token), _reference(positions, 6 + (row + 1) % core.rows, token)
        error = np.abs(logits[row] - wanted).max() / np.abs(wanted).max()
        print(f"row {row}: largest error {error:.1e} of the largest logit")
        assert error < 3e-3
        assert np.abs(logits[row] - other).max() > 3e-2 * np.abs(wanted).max()  # twin: another request's cache


def test_seeds_of_all_requests_must_be_seeds(tmp_path: Path) -> None:
    compile_model(WEIGHTS, core_config("16x4"), tmp_path / "p", seeded_positions=3, kv_seed=2**64 - 1)
    with pytest.raises(ModelError, match=str(2**64)):
        compile_model(WEIGHTS, core_config("16x4r2"), tmp_path / "p", seeded_positions=3, kv_seed=2**64 - 1)


def test_memory_must_hold_the_caches_of_all_requests() -> None:
    core = core_config("16x4r4")
    one, four = Shape(SMALL, core_config("16x4"), 40), Shape(SMALL, core, 40)
    assert all_problems(four, four.channel_bytes_used) == []
    cache = sum(size for name, (_, size) in one.region_rows.items() if name in OF_A_REQUEST) * core.port_bytes
    [problem] = all_problems(four, four.channel_bytes_used - 1)
    assert problem.value == four.channel_bytes_used and problem.what == "bytes per memory channel"
    assert f"keys, values and logits of 4 requests {4 * cache:,}" in problem.hint
    assert "a context of 39 would fit" in problem.hint and "a core with 2 rows would hold it" in problem.hint
    [problem] = all_problems(four, one.channel_bytes_used)
    assert "a core with 1 row would hold it" in problem.hint
    [problem] = all_problems(four, one.channel_bytes_used - 1)
    assert "fewer rows would not hold it either" in problem.hint
    [problem] = all_problems(one, one.channel_bytes_used - 1)  # twin: with one row boards help
    assert "boards would hold it" in problem.hint and "requests" not in problem.hint


@pytest.mark.parametrize("name", NAMED_SIZES)
def test_every_named_size_fits_the_large_core_with_four_rows(name: str) -> None:
    shape = Shape(NAMED_SIZES[name], core_config("64x16r4"), 1024)
    assert all_problems(shape) == []
    program = plan_program(shape)
    assert max(region.offset + region.bytes for region in program.regions) == shape.channel_bytes_used


def test_a_ring_of_cores_with_rows_is_refused(tmp_path: Path) -> None:
    for boards in (2, 3):
        with pytest.raises(CompileError, match=f"boards is {boards}, must be 1 .*16x4r2 has 2 rows") as caught:
            compile_ring(WEIGHTS, core_config("16x4r2"), tmp_path / "out", boards)
        assert caught.value.exit_code == 2 and not (tmp_path / "out").exists()
    [(program, _)] = compile_ring(WEIGHTS, core_config("16x4r2"), tmp_path / "out", 1, seeded_positions=3).boards
    assert program.registers["key_base_1"] > program.registers["value_base"]


def test_a_batch_streams_weights_once_and_caches_once_a_request() -> None:
    shape = Shape(NAMED_SIZES["gpt2-345m"], core_config("64x16r4"), 1024)
    program = plan_program(shape)
    attention = shape.model.n_layer * shape.attention_rows(128)
    embeddings = 2 * shape.x_strips
    assert ideal_cycles(program, 128) == shape.weight_rows + embeddings + attention
    assert ideal_cycles(program, 128, requests=4) == shape.weight_rows + 4 * (embeddings + attention)
    facts: dict[str, Any] = summary(program)
    assert facts["rows"] == 4 and facts["ideal_batch_step_cycles"]["128"] == ideal_cycles(program, 128, requests=4)
    text = explain(program)
    assert "core 64x16r4: 4 rows x 16 lanes x 64 products" in text and "1024 positions of each of 4 requests" in text
    assert "ideal cycles of a step of a batch of 4 requests" in text and "values_3" in text
    alone = plan_program(Shape(NAMED_SIZES["gpt2-345m"], core_config("64x16"), 1024))
    assert "batch" not in explain(alone) and "ideal_batch_step_cycles" not in summary(alone)


def test_rows_choose_the_core(tmp_path: Path) -> None:
    for name, core in CORE_CONFIGS.items():
        assert chosen_core(name) == chosen_core(name, core.rows) == core
        if core.rows > 1:
            assert chosen_core(name.replace(f"r{core.rows}", ""), core.rows) == core
    path = tmp_path / "small.json"
    path.write_text(dataclasses.replace(core_config("16x4"), name="small", act_words=64).to_json())
    described: CoreConfig = chosen_core(str(path), 2)
    assert (described.name, described.rows, described.act_words) == ("smallr2", 2, 64)
    for text, asked, words in (
        ("16x4", 3, "rows must be 1, 2 or 4, got 3"),
        ("16x4", 0, "rows must be 1, 2 or 4, got 0"),
        ("16x4r2", 4, "16x4r2 has 2 rows, asked for 4"),
        ("16x4r4", 1, "16x4r4 has 4 rows, asked for 1"),
        ("16x4r3", None, "unknown core '16x4r3'"),
    ):
        with pytest.raises(ConfigError, match=words):
            chosen_core(text, asked)
    two_lanes = dataclasses.replace(core_config("16x4"), name="narrow", lanes=2, channels=2, score_rows=512)
    path.write_text(two_lanes.to_json())
    with pytest.raises(ConfigError, match="rows must be at most lanes"):
        chosen_core(str(path), 4)
