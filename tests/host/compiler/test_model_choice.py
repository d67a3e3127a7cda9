"""A model by name or directory, and whether it fits: everything that does not is listed at once, with by how much."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from host.compiler import CompileError, chosen_model, compile_model, fitting_shape, plan_program
from hw.board.board_model import BANK_BYTES
from hw.gpt2.config import core_config
from sw.errors import ModelError
from sw.models.checkpoint import Checkpoint, state_dict
from sw.models.gpt2 import GPT2
from sw.models.gpt2_config import GPT2Config
from sw.models.named_sizes import NAMED_SIZES
from sw.models.seeded_weights import SeededCheckpoint
from sw.train.save import save_model

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"
SMALL = GPT2Config(n_layer=2, n_head=3, n_embd=48, n_positions=40, vocab_size=101)


def test_a_name_is_a_seeded_model_unless_a_directory_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, config in NAMED_SIZES.items():
        weights = chosen_model(name)
        assert isinstance(weights, SeededCheckpoint) and weights.config == config and weights.seed == 0
        assert name in weights.label
    assert chosen_model("gpt2-xl", 3).digest() == SeededCheckpoint(NAMED_SIZES["gpt2-xl"], 3).digest()
    Path("gpt2-xl").write_text("a file is no directory")
    assert isinstance(chosen_model("gpt2-xl"), SeededCheckpoint)
    Path("gpt2-xl").unlink()
    shutil.copytree(TINY, "gpt2-xl")
    assert isinstance(chosen_model("gpt2-xl"), Checkpoint)


@pytest.mark.parametrize(
    "model,seed,kind,words",
    [
        ("gpt2-huge", None, "missing_path", ["gpt2-huge", "gpt2-124m", "gpt2-1.5b-dfx"]),
        ("some/where", None, "missing_path", ["some/where"]),
        (TINY, 1, "bad_seed", ["gpt2-tiny", "1"]),
        ("gpt2-xl", -1, "bad_seed", ["-1"]),
        (__file__, None, "not_a_directory", ["is a file"]),
    ],
)
def test_what_is_no_model(model: str | Path, seed: int | None, kind: str, words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        chosen_model(model, seed)
    assert caught.value.kind == kind
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", NAMED_SIZES)
def test_every_named_size_fits_the_large_core(name: str) -> None:
    shape = fitting_shape(chosen_model(name), core_config("64x16"))
    used = max(region.offset + region.bytes for region in plan_program(shape).regions)
    print(f"figure: {name} takes {used:,} bytes of each of 32 channels, {used / BANK_BYTES:.1%}")
    assert used == shape.channel_bytes_used <= BANK_BYTES
    assert shape.context == 1024


def test_a_model_beyond_8_gb_says_by_how_much_and_what_would_help(tmp_path: Path) -> None:
    core = core_config("64x16")
    huge = dataclasses.replace(NAMED_SIZES["gpt2-xl"], n_layer=120)
    weights = SeededCheckpoint(huge)
    for ask in (
        lambda: fitting_shape(weights, core),
        lambda: compile_model(weights, core, tmp_path / "out"),
    ):
        with pytest.raises(CompileError) as caught:
            ask()
        (problem,) = caught.value.problems
        over = problem.value - BANK_BYTES  # type: ignore[operator]
        text = caught.value.message
        assert over > 0 and f"{over:,} too many in each of 32 channels" in text and "of 8.59 in all" in text
        assert caught.value.exit_code == 2 and caught.value.kind == "does_not_fit"
    # what is said would fit does, and one position more does not
    fitting = int(text.rpartition("a context of ")[2].split()[0])
    assert fitting_shape(weights, core, fitting).context == fitting
    with pytest.raises(CompileError):
        fitting_shape(weights, core, fitting + 1)
    with pytest.raises(CompileError, match="no context is short enough"):
        fitting_shape(SeededCheckpoint(dataclasses.replace(huge, n_layer=140)), core)
    assert not (tmp_path / "out").exists()


def test_all_that_is_wrong_comes_at_once() -> None:
    with pytest.raises(CompileError) as caught:
        fitting_shape(chosen_model("gpt2-xl"), core_config("16x4"), 2000)
    what = [problem.what for problem in caught.value.problems]
    assert {"context", "strips of the residual vector", "activation words", "bytes per memory channel"} <= set(what)


def test_seeded_weights_compile_to_what_a_checkpoint_of_them_does(tmp_path: Path) -> None:
    weights, core = SeededCheckpoint(SMALL, 11), core_config("16x4")
    save_model(GPT2.from_weights(weights), tmp_path)  # writes config.json; its fp16 weights are replaced
    save_file(state_dict(weights), tmp_path / "model.safetensors")
    program, image = compile_model(weights, core, tmp_path / "seeded")
    from_disk, same = compile_model(tmp_path, core, tmp_path / "saved")
    assert image.sha256 == same.sha256
    assert program.model_digest == weights.digest() != from_disk.model_digest
    _, other = compile_model(SeededCheckpoint(SMALL, 12), core, tmp_path / "other")  # twin
    assert not set(other.sha256) & set(image.sha256)


class _Wild(SeededCheckpoint):
    """One weight is too large for fp16."""

    def tensor(self, name: str):  # type: ignore[no-untyped-def]
        values = super().tensor(name)
        if name == "h.1.mlp.c_fc.weight":
            values[5, 7] = 1e6
        return values


def test_values_are_checked_unless_the_model_bounds_them(tmp_path: Path) -> None:
    wild = _Wild(SMALL, 1)
    wild.largest_magnitude = None
    with pytest.raises(CompileError, match=r"h\.1\.mlp\.c_fc\.weight \[feed_in\]") as caught:
        compile_model(wild, core_config("16x4"), tmp_path / "out")
    assert caught.value.kind == "fp16_range"
    wild.largest_magnitude = 300.0  # a bound whose square fp16 cannot hold says nothing
    with pytest.raises(CompileError):
        compile_model(wild, core_config("16x4"), tmp_path / "out")
    steps: list[str] = []
    compile_model(
        SeededCheckpoint(SMALL, 1), core_config("16x4"), tmp_path / "out", progress=lambda what, *_: steps.append(what)
    )
    assert "checking values" not in steps and "token embedding" in steps


def test_compiling_seeded_weights_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from host.compiler import compile_model; from hw.gpt2.config import core_config;"
        "from sw.models.seeded_weights import SeededCheckpoint; from sw.models.gpt2_config import GPT2Config;"
        f"w = SeededCheckpoint(GPT2Config(**{dataclasses.asdict(SMALL)!r}));"
        f"compile_model(MODEL, core_config('16x4'), {str(tmp_path / 'out')!r}); sys.exit('torch' in sys.modules)"
    )
    for model, loaded in (("w", 0), (repr(str(TINY)), 1)):  # the second is the twin
        command = [sys.executable, "-c", code.replace("MODEL", model)]
        assert subprocess.run(command, timeout=120).returncode == loaded


def test_the_reference_reads_the_same_weights() -> None:
    weights = SeededCheckpoint(SMALL, 11)
    model = GPT2.from_weights(weights)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state_dict(weights).items())
