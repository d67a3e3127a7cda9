"""``ringfly sim``: run what ``ringfly compile`` wrote, on token ids, with counters and waves."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from host.cli.link_text import link_lines
from host.cli.options import CardOption, FrameErrorOption, HopOption, JsonOption, LinkSeedOption, link_timing
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
    hop_ns: HopOption = None,
    link_seed: LinkSeedOption = None,
    frame_error_rate: FrameErrorOption = None,
    card: CardOption = None,
    xclbin: Annotated[
        Path | None, typer.Option(help="xclbin of the kernel; default: the one that Ringfly keeps for the core.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Run a compiled program on simulated boards and print tokens, cycles and where they went.

    A folder with a plan.json has the programs of several boards, which run together. Cycles are those of board 0.

    Example: ringfly sim build/gpt2-tiny --tokens 4 --waves run.fst --from-cycle 1000 --cycles 2000
    """
    from host.driver.program_memory import cached_positions
    from host.runtime.appliance import open_appliance
    from host.runtime.board_models import open_boards
    from host.runtime.program_folders import load_programs
    from host.runtime.report import link_conditions
    from host.runtime.request import BOARD_EXECUTORS, check_boards, check_executor, check_memory

    check_executor(executor, BOARD_EXECUTORS)
    window = _window(waves, from_cycle, cycles)
    if window is not None:
        window.check(executor)
    _check_gateware_options(executor, memory, flat=flat, with_waves=window is not None)
    memory = DEFAULT_MEMORY if memory is None else memory
    check_memory(memory)
    ids = _ids(prompt_ids)
    links = link_timing(hop_ns, link_seed, frame_error_rate)
    with quiet_stdout(as_json):
        programs = load_programs(program_dir)
        boards, program = len(programs), programs[0][0]
        check_boards(executor, boards, links, card or ())
        _check_waves_of_one_board(window, boards)
        first = cached_positions(program)
        with contextlib.ExitStack() as stack:
            models = stack.enter_context(
                open_boards(
                    executor, program.core, boards, trace=window is not None, flat=flat, memory=memory, links=links
                )
            )
            appliance = stack.enter_context(
                open_appliance(models.boards, program.core, xclbin=xclbin, cards=card or ())
            )
            appliance.load(programs)
            started = time.monotonic()
            with contextlib.nullcontext() if window is None else window.recording(models.boards[0]):
                appliance.start([0] * first + ids, tokens, position=first)
                result = appliance.wait(timeout_s)
            run_seconds = time.monotonic() - started
            counters = appliance.counters()
            link_counters = appliance.link_counters()
            ticks = [kernel.device.harness_counters().get("ticks") for kernel in appliance.kernels]
            kv_hashes = appliance.kv_hashes()
    if window is not None:
        window.require_inside(result.cycles)
    clocked = executor == "rtl"
    steps = len(ids) + len(result.tokens) - 1
    body: dict[str, object] = {
        "program_dir": program_dir,
        "executor": executor,
        "boards": boards,
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
        "counters": counters[0] if clocked else None,
        "harness_ticks": ticks[0] if clocked else None,
        "cycles_source": "rtl" if clocked else None,
        "memory": memory if clocked else None,
        "link_model": link_conditions(links) if clocked and boards > 1 else None,
        "verilog_sha256": models.verilog_sha256,
        "kv_sha256": kv_hashes[0] if boards == 1 else None,
        "by_board": _by_board(counters, ticks, link_counters, kv_hashes, clocked) if boards > 1 else None,
        "run_seconds": round(run_seconds, 3),
        "waves": waves,
        "wave_names": None if window is None else window.names,
    }
    if as_json:
        write_json("sim", body)
        return 0
    sys.stdout.write(f"tokens {' '.join(map(str, result.tokens))} ({result.reason})\n")
    for board, kv_hash in enumerate(kv_hashes):
        sys.stdout.write(f"keys and values {f'of board {board} ' if boards > 1 else ''}sha256 {kv_hash}\n")
    if clocked:
        sys.stdout.write(_cycle_table(counters[0], result.cycles, steps, program.core.core_clock_mhz))
        if boards > 1:
            sys.stdout.write("\n".join(link_lines(link_counters)) + "\n")
    if window is not None:
        sys.stdout.write(f"waves in {window.path}; Verilog names of the design's signals in {window.names}\n")
    return 0


def _by_board(
    counters: Sequence[dict[str, int]],
    ticks: Sequence[int | None],
    link_counters: Sequence[Sequence[dict[str, int]]],
    kv_hashes: Sequence[str],
    clocked: bool,
) -> list[dict[str, object]]:
    """What is known of each of several boards; ports of its links in order 0 (left), 1 (right)."""
    return [
        {
            "board": board,
            "kv_sha256": kv_hash,
            "counters": counters[board] if clocked else None,
            "harness_ticks": ticks[board] if clocked else None,
            "link_counters": link_counters[board] if clocked else None,
        }
        for board, kv_hash in enumerate(kv_hashes)
    ]


def _check_waves_of_one_board(window: WaveWindow | None, boards: int) -> None:
    from host.errors import BadInput

    if window is not None and boards > 1:
        raise BadInput(
            f"waves can be written of one board, the folder has programs of {boards}",
            value=boards,
            expected=1,
            hint="Leave --waves out, or compile the model for one board.",
        )


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
