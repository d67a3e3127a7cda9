"""The pictures of `bench gpt2`: what stands in them, and files of the size that they should have."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from host.bench.gpt2_figure import comparison_bars, write_comparison, write_latency

MACHINE = {"verilog_sha256": "ab" * 32, "conditions": {"core": "64x16", "memory": "u280"}}


def _row(model: str, boards: int, length: tuple[int, int], ms: float) -> dict[str, Any]:
    one = length[1] == 1
    return {
        "model": model,
        "boards": boards,
        "core": "64x16",
        "rows": 1,
        "requests": 1,
        "in": length[0],
        "out": length[1],
        "precision": "fp16",
        "total_ms": ms * sum(length),
        "decode_ms_per_token": None if one else ms,
        "tokens_per_s_with_prompt": 1000 * length[1] / (ms * sum(length)),
        "bandwidth_fraction": None if one else 0.8,
    }


def _report(models: tuple[str, ...], lengths: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    rows = [
        _row(model, boards, length, 2.0 * (number + 1) / boards)
        for number, model in enumerate(models)
        for boards in (1, 2, 4)
        for length in lengths
    ]
    return {"rows": rows, "machines": [MACHINE]}


def _png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 20_000
    width, height = struct.unpack(">II", data[16:24])
    return int(width), int(height)


SQUARES = ((32, 32), (64, 64), (128, 128))


def test_the_bars_of_a_model_with_published_figures() -> None:
    bars = comparison_bars(_report(("gpt2-345m",), SQUARES))
    decode, rates, bandwidth = bars.values()
    assert [title.split()[0] for title in bars] == ["gpt2-345m:", "gpt2-345m:", "Memory"]
    ours = {bar.label: bar.value for bar in decode if bar.label.startswith("ours")}
    assert ours == {"ours, 1 board, fp16": 2.0, "ours, 2 boards, fp16": 1.0, "ours, 4 boards, fp16": 0.5}
    theirs = {bar.label: bar.value for bar in decode if not bar.label.startswith("ours")}
    assert theirs["DFX, Alveo U280, fp16"] == 5.4 and theirs["DFX, Alveo U280 x 4, fp16"] == 2.43
    assert theirs["StreamTensor, Alveo U55C, W4A8"] == pytest.approx(1000 / 215.5)
    assert [bar.value for bar in decode] == sorted((bar.value for bar in decode), reverse=True)
    assert {bar.colour for bar in decode if "W4A8" in bar.label} != {bar.colour for bar in decode if "DFX" in bar.label}
    assert [bar.value for bar in rates if bar.label.startswith("DFX")] == [93.10, 146.25, 207.56]
    used = {bar.label: bar.value for bar in bandwidth}
    assert (
        used["ours, gpt2-345m, 1 board, fp16"] == 80
        and used["EdgeLLM, VCU128, W4, fp16 activations, GLM-6B, claimed"] == 75
    )


def test_batches_and_rows_are_bars_of_throughput_alone() -> None:
    report = _report(("gpt2-345m",), SQUARES)
    like: dict[str, Any] = {"core": "64x16r4", "rows": 4}
    for requests in (1, 4):
        own = _row("gpt2-345m", 1, (64, 64), 1.9) | like
        rate = requests * own["tokens_per_s_with_prompt"]
        report["rows"].append(own | {"requests": requests, "tokens_per_s_with_prompt": rate})
    decode, rates, bandwidth = comparison_bars(report).values()
    more = ["ours, 1 board, fp16, 4 rows", "ours, 1 board, fp16, batch of 4 requests"]
    assert [bar.label for bar in rates if bar.label.count(",") == 3 and bar.label.startswith("ours")] == more
    assert not any("rows" in bar.label or "batch" in bar.label for bar in [*decode, *bandwidth])


def test_models_and_lengths_without_published_figures() -> None:
    bars = comparison_bars(_report(("gpt2-tiny",), ((8, 4),)))
    decode = next(iter(bars.values()))
    assert [bar.label for bar in decode] == ["ours, 1 board, fp16", "ours, 2 boards, fp16", "ours, 4 boards, fp16"]
    assert comparison_bars(_report(("gpt2-tiny",), ((8, 1),))) == {}


@pytest.mark.parametrize(
    ("models", "lengths", "size"),
    [
        (("gpt2-345m",), SQUARES, (1152, 684)),
        (("gpt2-124m", "gpt2-345m", "gpt2-774m", "gpt2-xl", "gpt2-1.5b-dfx"), SQUARES, (1872, 1188)),
        (("gpt2-345m", "gpt2-xl"), ((32, 1), (32, 4), (32, 64), (64, 1), (64, 4), (64, 64), (128, 1)), (1248, 684)),
    ],
)
def test_latency_over_lengths(
    models: tuple[str, ...], lengths: tuple[tuple[int, int], ...], size: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "latency.png"
    write_latency(_report(models, lengths), path)
    assert _png_size(path) == size and not plt.get_fignums()


def test_the_comparison_grows_with_its_bars(tmp_path: Path) -> None:
    sizes = []
    for number, models in enumerate((("gpt2-345m",), ("gpt2-345m", "gpt2-1.5b-dfx"))):
        path = tmp_path / f"{number}.png"
        write_comparison(_report(models, SQUARES), path)
        sizes.append(_png_size(path))
    assert sizes[0][0] == sizes[1][0] == 2160 and sizes[1][1] > sizes[0][1] > 300
    assert not plt.get_fignums()
