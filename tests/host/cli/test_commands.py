"""What the commands print when all is well: JSON schemas, text, exit codes, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

import host.cli.doctor_command as doctor
import host.runtime.board_executor as board_executor
import host.runtime.generate as generation
from host.cli.main import main
from host.cli.output import report_error
from host.cli.progress import Progress
from host.driver.sim_device import SimU280Device
from host.runtime.board_models import BoardModels
from hw.board.program import MemoryImage, Program
from hw.bus.registers import RegisterMapError
from sim.functional import FunctionalBoard

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "checkpoints" / "gpt2-tiny"
GENERATE = ["generate", "--model", str(TINY), "--prompt", "And it came to pass", "--max-new-tokens", "6"]
REQUIRED = (
    "schema", "ringfly_version", "command", "text", "tokens", "executor", "boards", "decode_cycles_per_token",
    "prefill_cycles", "ms_per_token_at_200mhz", "cycles_source", "verilog_sha256", "matches_reference", "near_ties",
    "conditions",
)  # fmt: skip


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("executor", ["torch", "functional"])
def test_generate_json(executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = _json([*GENERATE, "--executor", executor], capsys)
    assert all(key in answer for key in REQUIRED)
    assert answer["schema"] == "ringfly-generate/1" and answer["command"] == "generate"
    assert answer["executor"] == executor and answer["boards"] == (0 if executor == "torch" else 1)
    assert len(answer["tokens"]) == 6 and answer["text"]
    assert answer["matches_reference"] == "equal" or answer["matches_reference"].startswith("near_tie")
    assert answer["decode_cycles_per_token"] is None and answer["verilog_sha256"] is None
    assert answer["conditions"]["check"]["rms_error"] < 0.01


def test_text_goes_to_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = _json([*GENERATE, "--executor", "torch"], capsys)["text"]
    assert main([*GENERATE, "--executor", "torch"]) == 0
    printed = capsys.readouterr()
    assert printed.out == text + "\n"
    assert "compared with PyTorch fp32: equal" in printed.err


def test_without_check_there_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    answer = _json([*GENERATE, "--executor", "torch", "--no-check"], capsys)
    assert answer["matches_reference"] is None and answer["conditions"]["check"] == {"done": False, "why": "--no-check"}


def _put_board(monkeypatch: pytest.MonkeyPatch, board: type[FunctionalBoard]) -> None:
    """Let the commands open this board."""
    monkeypatch.setattr(board_executor, "open_boards", lambda *_, **__: nullcontext(BoardModels((board(),), None)))


class FlippedBoard(FunctionalBoard):
    """A board whose memory has one weight word changed."""

    def load(self, program: Program, image: MemoryImage) -> None:
        super().load(program, image)
        if program.regions:
            head = next(region for region in program.regions if region.kind == "weights" and region.channel == 0)
            place = head.offset + head.bytes - 32 * 64
            self.write_memory(0, place, b"\x00\x78")  # 32768 in fp16, in the head


def test_twin_a_changed_weight_word_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _put_board(monkeypatch, FlippedBoard)
    monkeypatch.setattr(generation, "stored_rms_error", lambda model, core, boards: (1e-3, "given by the test"))
    arguments = [*GENERATE, "--executor", "functional"]
    answer = _json(arguments, capsys, code=4)
    assert answer["matches_reference"] == "wrong" and answer["wrong_tokens"]
    assert main(arguments) == 4
    assert "wrong" in capsys.readouterr().err


class ScaledBoard(FunctionalBoard):
    """A board with one weight of the first layer times 65,536: all six tokens stay the arg-max."""

    def load(self, program: Program, image: MemoryImage) -> None:
        super().load(program, image)
        if program.regions:
            weights = next(region for region in program.regions if region.kind == "weights" and region.channel == 0)
            place = weights.offset + 32 * 300
            word = bytearray(self.read_memory(0, place, 2))
            word[1] ^= 0x40  # the exponent's highest bit
            self.write_memory(0, place, bytes(word))


@pytest.mark.parametrize("board,code", [(FunctionalBoard, 0), (FlippedBoard, 4), (ScaledBoard, 4)])
def test_without_an_accuracy_record_a_changed_weight_is_still_wrong(
    board: type[FunctionalBoard], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _put_board(monkeypatch, board)
    monkeypatch.setattr(generation, "stored_rms_error", lambda model, core, boards: None)
    arguments = [*GENERATE, "--executor", "functional"]
    answer = _json(arguments, capsys, code=code)
    check = answer["conditions"]["check"]
    assert (answer["matches_reference"] == "wrong") == (code == 4)
    assert check["near_tie_threshold"] < 0.05 and "PyTorch fp16" in check["rms_error_source"]
    assert (check["suspicion"] is not None) == (code == 4)
    if code:
        assert main(arguments) == 4
        assert "4 times that of fp16" in capsys.readouterr().err


def test_compile_and_sim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = _json(["compile", "--model", str(TINY), "--out", str(tmp_path / "p"), "--explain"], capsys)
    assert compiled["schema"] == "ringfly-compile/1" and len(compiled["image_sha256"]) == 4
    assert "scores, softmax" in compiled["explanation"]
    arguments = ["sim", str(tmp_path / "p"), "--executor", "functional", "--prompt-ids", "3,1,4", "--tokens", "5"]
    ran = _json(arguments, capsys)
    assert ran["schema"] == "ringfly-sim/1" and len(ran["tokens"]) == 5 and len(ran["kv_sha256"]) == 64
    assert _json(arguments, capsys)["kv_sha256"] == ran["kv_sha256"]
    other = ["sim", str(tmp_path / "p"), "--executor", "functional", "--prompt-ids", "3,1,5", "--tokens", "5"]
    assert _json(other, capsys)["kv_sha256"] != ran["kv_sha256"]
    assert main(["compile", "--model", str(TINY), "--out", str(tmp_path / "p"), "--explain"]) == 0
    assert "positions attended" in capsys.readouterr().out


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    answer = _json(["doctor"], capsys)
    assert answer["ok"] and {"torch", "pynq", "verilator", "C++ compiler"} <= {f["name"] for f in answer["findings"]}
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "ready to run" in text
    assert "the pinned version; a CPU build is all that is used" in text


def test_doctor_without_a_folder_for_locks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RINGFLY_LOCKS", "/nowhere")
    answer = _json(["doctor"], capsys)
    found = {finding["name"]: finding for finding in answer["findings"]}["card locks"]
    assert answer["ok"] and not found["ok"] and not found["required"]
    assert "/nowhere" in found["found"] and "RINGFLY_LOCKS" in found["how"]


def test_doctor_without_make_and_with_another_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    which, version = doctor.shutil.which, doctor.importlib.metadata.version
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None if name == "make" else which(name))
    monkeypatch.setattr(
        doctor.importlib.metadata, "version", lambda name: "2.0.1+cu118" if name == "torch" else version(name)
    )
    answer = _json(["doctor"], capsys)
    found = {finding["name"]: finding for finding in answer["findings"]}
    assert answer["ok"] and not found["make"]["ok"] and found["make"]["needed_for"] == "`make demo`"
    build = found["torch build"]
    assert not build["ok"] and not build["required"]
    assert "2.0.1+cu118, not the pinned version 2.13.0" in build["found"] and "torch==2.13.0" in build["how"]


@pytest.mark.parametrize("command", ["", "generate", "compile", "sim", "faults", "doctor"])
def test_help_says_what_each_option_is_for(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*([command] if command else []), "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: ringfly" in text
    if command in ("generate", "compile", "sim"):
        assert "Example: ringfly" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ringfly 0.")


def test_an_interrupt_releases_the_board(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(self: FunctionalBoard, max_cycles: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(FunctionalBoard, "advance", interrupted)
    arguments = [*GENERATE, "--executor", "functional"]
    assert main(arguments) == 130
    assert SimU280Device._open == []
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "interrupted"


def test_control_c_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "host.cli.main", *GENERATE[:-1], "250", "--executor", "functional", "--no-check"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    ) as process:
        assert process.stdout is not None and process.stdout.read(1)  # the first token has appeared
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in errors and b"Traceback" not in errors


def test_bytes_that_are_no_utf8_on_the_command_line() -> None:
    command = [
        sys.executable,
        "-m",
        "host.cli.main",
        *GENERATE[:3],
        *GENERATE[5:],
        "--executor",
        "torch",
        "--json",
        "--prompt",
        b"a\xff\xfe",
    ]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "bad_text"


def test_help_is_quick() -> None:
    """No heavy package is imported for it."""
    code = "import sys; from host.cli.main import main; main(['--help']); print([m for m in sys.modules if m in HEAVY])"
    code = f"HEAVY = ('torch', 'pynq', 'numba', 'amaranth'); {code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


def test_a_register_map_without_room_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(RegisterMapError("gpt2_x: hbm40 and stall_token overlap"), "compile", True) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "bad_core"


def test_defects_are_told_apart_from_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(ZeroDivisionError("division by zero"), "generate", True) == 3
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "internal"


class _Terminal:
    """A stream that says whether it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        self.terminal, self.text = terminal, ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_appears_after_two_seconds(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = _Terminal(terminal)
    progress = Progress(stream)  # type: ignore[arg-type]
    progress("weights", 1, 10)
    assert stream.text == ""
    now[0] += 6
    progress("weights", 5, 10)
    assert "weights: 50 %" in stream.text and ("\r" in stream.text) == terminal
    assert ("\n" in stream.text) != terminal
