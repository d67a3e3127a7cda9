"""Generations over lengths: composed of steps, equal to whole simulations, beside figures of the same definition."""

from __future__ import annotations

from pathlib import Path

import pytest

import host.bench.gpt2_report as gpt2_report
from host.bench.gpt2_lengths import Length, time_lengths
from host.bench.gpt2_report import HBM_PEAK_GB_S, compared, length_row
from host.bench.streamed_work import key_value_bytes, token_bytes
from host.bench.timed_program import TimedProgram
from host.compiler import CompileError
from host.errors import BadInput
from hw.gpt2.config import ConfigError
from sim.timing.interpolation import TOLERANCE, prefill
from sw.models.gpt2_config import load_config

TINY = str(Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny")
LENGTHS = [Length(1, 1), Length(1, 5), Length(2, 1), Length(2, 3), Length(3, 2), Length(20, 30), Length(40, 9)]


@pytest.mark.parametrize(
    ("memory", "boards", "tolerance"),
    [("ideal", 1, TOLERANCE), ("ideal", 2, 2e-3), ("u280", 1, 5e-3), ("u280", 2, 5e-3)],
)
def test_lengths_equal_whole_runs(memory: str, boards: int, tolerance: float) -> None:
    """In steps of a few thousand cycles it matters where refreshes and words of cables fall; less so in real models."""
    timed = TimedProgram.of_model(TINY, "16x4", None, memory, 0, boards=boards)
    times = time_lengths(timed, LENGTHS)
    assert [one.length for one in times.lengths] == LENGTHS
    for one in times.lengths:
        length = one.length
        run = timed.machine.run(0, length.prompt, length.output)[0]
        assert one.total == pytest.approx(run.token_cycles[-1], rel=tolerance)
        assert one.first_token == pytest.approx(run.token_cycles[0], rel=tolerance)
        longer = timed.machine.run(0, length.prompt, length.output + 1)[0].token_cycles[-1]
        assert one.total != pytest.approx(longer, rel=tolerance)  # twin
        assert one.decode == one.total - one.first_token and one.decode_steps == length.output - 1
    assert times.lengths[0].decode == 0


@pytest.mark.parametrize(("core", "requests"), [("16x4r4", 1), ("16x4r4", 4), ("16x4i8", 1)])
def test_rows_batches_and_int8_equal_whole_runs(core: str, requests: int) -> None:
    """Of a prompt four positions a step, the last step of which has fewer; and of four requests in one."""
    timed = TimedProgram.of_model(TINY, core, None, "ideal", 0)
    lengths = [Length(1, 1), Length(4, 3), Length(5, 2), Length(7, 1), Length(30, 12)]

    def tokens(length: Length) -> tuple[int, ...]:
        start = (0, length.prompt, length.output)
        run = timed.machine.run(*start) if requests == 1 else timed.machine.run_batch(requests, *start)
        return run[0].token_cycles

    for one in time_lengths(timed, lengths, requests=requests).lengths:
        whole = tokens(one.length)
        assert len(whole) == requests * one.length.output
        assert one.first_token == pytest.approx(whole[requests - 1], rel=TOLERANCE)
        assert one.total == pytest.approx(whole[-1], rel=TOLERANCE)
        longer = tokens(Length(one.length.prompt + 1, one.length.output + 1))[-1]
        assert one.total != pytest.approx(longer, rel=TOLERANCE)  # twin


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "boards", "requests"),
    [("64x16", 1, 1), ("64x16", 4, 1), ("64x16i8", 1, 1), ("64x16r4", 1, 1), ("64x16r4", 1, 4)],
)
def test_a_real_size_equals_a_whole_run(core: str, boards: int, requests: int) -> None:
    timed = TimedProgram.of_model("gpt2-345m", core, None, "u280", 0, boards=boards)
    times = time_lengths(timed, [Length(24, 12)], requests=requests)
    run = timed.machine.run(0, 24, 12) if requests == 1 else timed.machine.run_batch(requests, 0, 24, 12)
    (one,), tokens = times.lengths, run[0].token_cycles
    print(f"figure: {core} x {boards}, requests {requests}: {one.total:,} cycles, whole {tokens[-1]:,}")
    assert int(str(times.method["simulated_contexts"])) < 24
    assert one.first_token == pytest.approx(tokens[requests - 1], rel=TOLERANCE)
    assert one.total == pytest.approx(tokens[-1], rel=TOLERANCE)


def test_first_tokens_are_those_of_prefill() -> None:
    timed = TimedProgram.of_model(TINY, "16x4", None, "u280", 0)
    for length in (Length(2, 1), Length(30, 1)):
        (one,) = time_lengths(timed, [length]).lengths
        interpolated = prefill(timed.machine, length.prompt, exact_rows=0)
        assert abs(one.first_token - interpolated.cycles) <= 1  # the same parts, added in another order


def test_the_method_says_what_was_simulated() -> None:
    timed = TimedProgram.of_model(TINY, "16x4", None, "ideal", 0)
    told: list[str] = []
    method = time_lengths(timed, [Length(60, 60)], progress=lambda what, done, total: told.append(what)).method
    assert 0 < int(str(method["simulated_contexts"])) < 60 and "interpolated" in str(method["method"])
    assert method["interpolated_decode_steps"] and method["interpolated_prompt_steps"]
    assert any("prompt steps" in line for line in told) and any("decode steps" in line for line in told)


def test_lengths_in_words() -> None:
    assert Length.parse("64:128") == Length(64, 128) and str(Length(64, 128)) == "64:128"
    assert Length(64, 128).positions == 191
    for wrong in ("64", "64:", "0:3", "3:0", "a:b", "1:2:3", "-1:4", "1.5:2", "²:2"):
        with pytest.raises(BadInput, match="IN:OUT"):
            Length.parse(wrong)


def test_a_length_beyond_the_context() -> None:
    timed = TimedProgram.of_model(TINY, "16x4", 32, "ideal", 0)
    assert time_lengths(timed, [Length(16, 17)]).lengths  # 32 positions: the last token is not processed
    with pytest.raises(BadInput, match=r"length 16:18 must be 1 to 32, got 33"):
        time_lengths(timed, [Length(16, 18)])


def test_a_row() -> None:
    lengths = [Length(8, 9), Length(8, 1)]
    times = time_lengths(TimedProgram.of_model(TINY, "16x4", None, "ideal", 0, boards=2), lengths)
    row, only_first = (length_row(times, cycles, lengths) for cycles in times.lengths)
    decode_ms = row["total_ms"] - row["first_token_ms"]
    assert row["decode_ms_per_token"] == pytest.approx(decode_ms / 8)
    assert row["decode_tokens_per_s"] == pytest.approx(8000 / decode_ms)
    assert row["tokens_per_s_with_prompt"] == pytest.approx(9000 / row["total_ms"])
    assert row["tokens_per_s_with_prompt"] < row["decode_tokens_per_s"]
    attended = sum(range(9, 17)) / 8  # of the eight decode steps
    assert row["bytes_per_token"] == token_bytes(load_config(TINY), attended)
    gb_s = row["bytes_per_token"] / row["decode_ms_per_token"] / 1e6
    assert row["bandwidth_gb_s"] == pytest.approx(gb_s)
    assert row["bandwidth_fraction"] == pytest.approx(gb_s / (2 * HBM_PEAK_GB_S))
    assert row["cycles_source"] == "timing" and row["published"] == []
    assert (row["core"], row["rows"], row["requests"]) == ("16x4", 1, 1)
    absent = {"decode_ms_per_token", "decode_tokens_per_s", "bytes_per_token", "bandwidth_gb_s", "bandwidth_fraction"}
    assert {name for name, value in only_first.items() if value is None} == absent


def test_a_row_of_a_batch() -> None:
    lengths = [Length(8, 9)]
    timed = TimedProgram.of_model(TINY, "16x4r4", None, "ideal", 0)
    times = [time_lengths(timed, lengths, requests=requests) for requests in (1, 4)]
    alone, batch = (length_row(one, one.lengths[0], lengths) for one in times)
    assert (alone["requests"], batch["requests"], batch["rows"]) == (1, 4, 4)
    step_ms = batch["decode_ms_per_token"]
    assert batch["decode_tokens_per_s"] == pytest.approx(4000 / step_ms)
    assert batch["tokens_per_s_with_prompt"] == pytest.approx(36_000 / batch["total_ms"])
    assert alone["decode_tokens_per_s"] < batch["decode_tokens_per_s"] < 4 * alone["decode_tokens_per_s"]
    config = load_config(TINY)
    weights, caches = token_bytes(config, 0), 4 * key_value_bytes(config, 12.5)
    assert batch["bytes_per_token"] == pytest.approx((weights + caches) / 4)
    assert batch["bandwidth_gb_s"] == pytest.approx((weights + caches) / step_ms / 1e6)


OURS = {
    "model": "gpt2-345m",
    "boards": 1,
    "in": 64,
    "out": 64,
    "precision": "fp16",
    "total_ms": 200.0,
    "first_token_ms": 100.0,
    "decode_ms_per_token": 2.0,
    "decode_tokens_per_s": 500.0,
    "tokens_per_s_with_prompt": 320.0,
}


def test_published_figures_stand_beside_the_same_definition() -> None:
    beside = compared(OURS, with_lengthless=True)
    found = {(one["label"].split(",")[0], one["quantity"]): one for one in beside}
    assert set(found) == {
        ("DFX", "total_ms"),
        ("DFX", "first_token_ms"),
        ("DFX", "ms_per_step"),
        ("DFX", "tokens_per_s_with_prompt"),
        ("StreamTensor", "total_ms"),
        ("StreamTensor", "first_token_ms"),
        ("StreamTensor", "decode_tokens_per_s"),
        ("Allo", "first_token_ms"),
        ("Allo", "decode_tokens_per_s"),
        ("LoopLynx", "ms_per_step"),
    }
    assert found["DFX", "total_ms"]["speedup"] == pytest.approx(694.7 / 200)
    assert found["DFX", "tokens_per_s_with_prompt"]["speedup"] == pytest.approx(320 / 93.1)
    assert found["DFX", "ms_per_step"]["speedup"] == pytest.approx(5.4 / 2)
    assert found["DFX", "total_ms"]["same_precision"] and not found["StreamTensor", "total_ms"]["same_precision"]
    assert all(one["citation"] and one["conditions"] and one["basis"] for one in found.values())
    int8 = compared({**OURS, "precision": "int8 weights, fp16 activations"}, with_lengthless=True)
    assert len(int8) == len(beside) and not any(one["same_precision"] for one in int8)


def test_other_lengths_boards_and_models_have_other_figures() -> None:
    def systems(**facts: object) -> set[str]:
        return {one["label"].split(",")[0] for one in compared({**OURS, **facts}, with_lengthless=False)}

    assert systems() == {"DFX", "StreamTensor", "Allo"}
    assert systems(out=65) == systems(model="gpt2-124m") == systems(boards=8) == set()
    assert systems(boards=2) == {"DFX"}

    def nodes(boards: int) -> list[str]:
        found = compared({**OURS, "boards": boards}, with_lengthless=True)
        return [one["label"].split(", ")[1] for one in found if "LoopLynx" in one["label"]]

    node = "Alveo U50 node (one SLR)"  # two of them are one board
    assert [nodes(boards) for boards in (1, 2, 4)] == [[node, f"{node} x 2"], [f"{node} x 4"], []]


def test_no_published_figure_stands_beside_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2_report, "compared", lambda row, with_lengthless: ["a published figure"])
    report = gpt2_report.gpt2_report([TINY], [1], [Length(4, 2)], cores=["16x4r2"], memory="ideal")
    assert [(row["requests"], row["published"]) for row in report["rows"]] == [(1, ["a published figure"]), (2, [])]


def test_the_default_boards_are_those_that_heads_and_core_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(boards: list[int] | None, cores: list[str] | None) -> list[tuple[str, int, int]]:
        report = gpt2_report.gpt2_report([TINY], boards, [Length(4, 2)], cores=cores, memory="ideal")
        uses = [(row["core"], row["boards"], row["requests"]) for row in report["rows"]]
        machines = [(one["conditions"]["core"], one["boards"], one["requests"]) for one in report["machines"]]
        assert uses == machines
        return uses

    monkeypatch.setattr(gpt2_report, "BOARDS", (1, 2, 9))
    monkeypatch.setattr(gpt2_report, "CORES", ("16x4", "16x4i8", "16x4r2"))
    alone = [("16x4i8", 1, 1), ("16x4r2", 1, 1), ("16x4r2", 1, 2)]
    assert used(None, None) == [("16x4", 1, 1), ("16x4", 2, 1), *alone]  # it has 8 heads
    assert used([2], None) == [("16x4", 2, 1)]
    assert used(None, ["16x4i8", "16x4r2"]) == [("16x4i8", 1, 1), ("16x4i8", 2, 1), *alone[1:]]
    with pytest.raises((BadInput, ConfigError, CompileError), match="row"):
        used([2], ["16x4r2"])
