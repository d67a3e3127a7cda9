"""``ringfly sim``: run what ``ringfly compile`` wrote, on token ids, with counters and waves."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from host.cli.options import JsonOption
from host.cli.output import command_errors, quiet_stdout, write_json
from host.cli.wave_window import WaveWindow

__all__ = ["sim_command"]

DEFAULT_MEMORY = "u280"
DEFAULT_WAVE_CYCLES = 10_000


@command_errors("sim")
def sim_command(
    program_dir: Annotated[Path, typer.Argument(help="Folder that `ringfly compile` wrote.")],
    tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 8,
    prompt_ids: Annotated[
        str,
        typer.Option(help="Token ids to start from, separated by commas; they follow seeded keys and values, if any."),
    ] = "0",
    executor: Annotated[
        str, typer.Option(help="rtl: the gateware, cycle by cycle. functional: the same bits without cycles.")
    ] = "rtl",
    waves: Annotated[Path | None, typer.Option(help="Write waves (FST, for GTKWave or Surfer) to this file.")] = None,
    from_cycle: Annotated[
        int | None, typer.Option(help="With --waves: first cycle of the run in them; default: 0.")
    ] = None,
    cycles: Annotated[int | None, typer.Option(help="With --waves: cycles in them; default: 10,000.")] = None,
    timeout_s: Annotated[float, typer.Option(help="Give up when the run takes longer, in seconds.")] = 600.0,
    memory: Annotated[
        str | None,
        typer.Option(help="Behind the ports of rtl: u280 (HBM as measured; default) or ideal (fixed latency)."),
    ] = None,
    flat: Annotated[
        bool,
        typer.Option(
            "--flat",
            help="Compile the gateware of rtl as one piece (slow to build; otherwise a lane once). Waves always do.",
        ),
    ] = False,
    xclbin: Annotated[
        Path | None, typer.Option(help="xclbin of the kernel; default: the one that Ringfly keeps for the core.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Run a compiled program on one simulated board and print tokens, cycles and where they went.

    Example: ringfly sim build/gpt2-tiny --tokens 4 --waves run.fst --from-cycle 1000 --cycles 2000
    """
    from host.driver.program_memory import cached_positions
    from host.driver.session import open_kernel
    from host.runtime.board_executor import open_board
    from host.runtime.request import BOARD_EXECUTORS, check_executor, check_memory
    from hw.board.program import Program

    check_executor(executor, BOARD_EXECUTORS)
    window = _window(waves, from_cycle, cycles)
    if window is not None:
        window.check(executor)
    _check_gateware_options(executor, memory, flat=flat, with_waves=window is not None)
    memory = DEFAULT_MEMORY if memory is None else memory
    check_memory(memory)
    ids = _ids(prompt_ids)
    with quiet_stdout(as_json):
        program, image = Program.load(program_dir)
        first = cached_positions(program)
        board, verilog_sha256 = open_board(executor, program.core, trace=window is not None, flat=flat, memory=memory)
        with open_kernel(board, program.core, xclbin=xclbin) as kernel:
            kernel.load((program, image))
            started = time.monotonic()
            with contextlib.nullcontext() if window is None else window.recording(board):
                kernel.start([0] * first + ids, tokens, position=first)
                result = kernel.wait(timeout_s)
            run_seconds = time.monotonic() - started
            counters = kernel.counters()
            harness = kernel.device.harness_counters()
            kv_hash = kernel.kv_hash()
    if window is not None:
        window.require_inside(result.cycles)
    clocked = executor == "rtl"
    steps = len(ids) + len(result.tokens) - 1
    body: dict[str, object] = {
        "program_dir": program_dir,
        "executor": executor,
        "boards": 1,
        "core": program.core.name,
        "core_digest": program.core.digest,
        "model_digest": program.model_digest,
        "prompt_ids": ids,
        "tokens": list(result.tokens),
        "finish_reason": result.reason,
        "first_position": first,
        "positions": steps,
        "cycles": result.cycles if clocked else None,
        "cycles_per_position": result.cycles / steps if clocked else None,
        "counters": counters if clocked else None,
        "harness_ticks": harness.get("ticks") if clocked else None,
        "cycles_source": "rtl" if clocked else None,
        "memory": memory if clocked else None,
        "verilog_sha256": verilog_sha256,
        "kv_sha256": kv_hash,
        "run_seconds": round(run_seconds, 3),
        "waves": waves,
        "wave_names": None if window is None else window.names,
    }
    if as_json:
        write_json("sim", body)
        return 0
    sys.stdout.write(f"tokens {' '.join(map(str, result.tokens))} ({result.reason})\n")
    sys.stdout.write(f"keys and values sha256 {kv_hash}\n")
    if clocked:
        sys.stdout.write(_cycle_table(counters, result.cycles, steps, program.core.core_clock_mhz))
    if window is not None:
        sys.stdout.write(f"waves in {window.path}; Verilog names of the design's signals in {window.names}\n")
    return 0


def _window(waves: Path | None, from_cycle: int | None, cycles: int | None) -> WaveWindow | None:
    """The waves asked for. Raises BadInput for a window without a file."""
    from host.errors import BadInput

    if waves is not None:
        return WaveWindow(
            waves, 0 if from_cycle is None else from_cycle, DEFAULT_WAVE_CYCLES if cycles is None else cycles
        )
    for name, value in (("--from-cycle", from_cycle), ("--cycles", cycles)):
        if value is not None:
            raise BadInput(
                f"{name} chooses a part of the waves, and none are written",
                value=value,
                expected="--waves FILE beside it",
                hint=f"Add --waves run.fst, or leave {name} out.",
            )
    return None


def _check_gateware_options(executor: str, memory: str | None, *, flat: bool, with_waves: bool) -> None:
    """Raise BadInput for an option that would change nothing."""
    from host.errors import BadInput

    if executor != "rtl":
        for name, given in (("--flat", flat), ("--memory", memory is not None)):
            if given:
                raise BadInput(
                    f"{name} is for the gateware, executor {executor} has none",
                    value=executor,
                    expected="rtl",
                    hint=f"Leave {name} out, or use --executor rtl.",
                )
    if flat and with_waves:
        raise BadInput(
            "waves are always written by gateware that is compiled as one piece: no --flat beside --waves",
            value="--flat",
            hint="Leave --flat out.",
        )


def _ids(prompt_ids: str) -> list[int]:
    """The prompt's ids. Raises BadInput."""
    from host.errors import BadInput

    try:
        return [int(word) for word in prompt_ids.split(",")]
    except ValueError:
        raise BadInput(
            f"prompt-ids must be whole numbers separated by commas, got {prompt_ids!r}",
            value=prompt_ids,
            expected="for example 5,17,3",
        ) from None


def _cycle_table(counters: dict[str, int], cycles: int, steps: int, clock_mhz: int) -> str:
    per_step = cycles / steps
    lines = [
        f"{cycles:,} cycles for {steps} positions: {per_step:,.0f} each, {per_step / clock_mhz / 1e3:.4f} ms "
        f"at an assumed {clock_mhz} MHz",
        f"  {'tiles':<14}{counters['tiles']:>12,} {100 * counters['tiles'] / cycles:6.2f} %",
    ]
    stalls = {name: value for name, value in counters.items() if name.startswith("stall_") and value}
    for name, value in sorted(stalls.items(), key=lambda item: -item[1]):
        lines.append(f"  {name.removeprefix('stall_'):<14}{value:>12,} {100 * value / cycles:6.2f} %")
    return "\n".join(lines) + "\n"
