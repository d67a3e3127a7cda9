"""``ringfly bench``: yardsticks, GPT-2 over lengths beside published figures, and PyTorch on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from host.cli.bench_text import gpt2_lines, gpu_lines, yardstick_lines
from host.cli.options import SIZES_HELP, JsonOption, MemoryOption, RefreshSeedOption, TimedHopOption
from host.cli.output import command_errors, quiet_stdout, write_json
from host.cli.output_file import check_output_file
from host.cli.progress import Progress

__all__ = ["bench_app"]

EXIT_MISSED = 1

bench_app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Compare: with the design's own bars, with published accelerators, with PyTorch on this machine.

    `yardsticks`: every bar that the design sets for GPT-2, and whether it is met. `gpt2`: latency and throughput over
    lengths, beside published figures. `gpu`: the same lengths through PyTorch here. docs/benchmarks.md says what is
    compared with what.
    """,
)

LengthsOption = Annotated[
    list[str] | None, typer.Option("--length", metavar="IN:OUT", help="Tokens of prompt and output; repeatable.")
]
ModelsOption = Annotated[list[str] | None, typer.Option("--model", help=f"{SIZES_HELP} Repeatable.")]
WeightsOption = Annotated[
    list[str] | None,
    typer.Option("--model", help="A known size, with seeded weights, or a checkpoint folder; repeatable."),
]


@bench_app.command("yardsticks")
@command_errors("bench yardsticks")
def yardsticks_command(
    rtl: Annotated[
        bool,
        typer.Option(
            "--rtl",
            help="Also run the steps of gpt2-345m and of gpt2-xl on 4 boards through the gateware: some minutes more, "
            "two of them for the first build, and 3.5 GB of disk.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Time every case that the design sets a bar for, and say whether it is met.

    Cycles are simulated, with the board's memory as measured, and are times at an assumed 200 MHz. The limit is what no
    core of this width could beat: weights and keys and values at full rate, nothing else. Area is that of the committed
    estimate of `ringfly synth`. Takes two to four minutes.

    Exit code 1: a bar was missed; all rows are printed all the same.

    Example: ringfly bench yardsticks --json
    """
    from host.bench.yardstick_area import area_rows
    from host.bench.yardstick_table import RTL_SECONDS_BAR, RTL_YARDSTICKS, YARDSTICKS
    from host.bench.yardsticks import yardstick_rows

    progress = Progress()
    with quiet_stdout(as_json):
        area = area_rows()
        rows = yardstick_rows(YARDSTICKS, progress)
        if rtl:
            from host.bench.yardstick_gateware import gateware_rows

            rows += gateware_rows(RTL_YARDSTICKS, RTL_SECONDS_BAR, progress)
        rows += area
    progress.clear()
    met = all(row["met"] is not False for row in rows)
    if as_json:
        write_json("bench yardsticks", {"met": met, "rows": rows}, schema="ringfly-bench-yardsticks/1")
    else:
        sys.stdout.write("\n".join(yardstick_lines(rows)) + "\n")
    return 0 if met else EXIT_MISSED


@bench_app.command("gpt2")
@command_errors("bench gpt2")
def gpt2_command(
    model: ModelsOption = None,
    boards: Annotated[
        list[int] | None,
        typer.Option(help="Boards that share the model, 1 to 8; repeatable. Default: 1, 2, 4 and 8."),
    ] = None,
    length: LengthsOption = None,
    core: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a core, such as 64x16, 64x16i8 (int8 weights), 64x16r4 (4 rows), or a JSON file; repeatable. "
            "Default: these three, the second and the third on one board."
        ),
    ] = None,
    memory: MemoryOption = "u280",
    seed: RefreshSeedOption = 0,
    hop_ns: TimedHopOption = None,
    png: Annotated[
        Path | None, typer.Option(help="Write a picture of ours beside published figures to this file.")
    ] = None,
    latency_png: Annotated[
        Path | None, typer.Option(help="Write a picture of the total time over lengths, a panel a model, to this file.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Latency and throughput of every model and number of boards, beside published accelerators.

    Ours are simulated cycles at an assumed 200 MHz. A published figure stands only beside ours of the same definition,
    with its precision and its source. On a core with rows each length is that of one request and of a batch of as many
    as it has rows. Without options: all models on 1, 2, 4 and 8 boards, and on one board with int8 weights and with 4
    rows, at 32:32 to 256:256 and over DFX's range, prompts of 32 to 128 with 1 to 256 tokens of output; this takes
    half an hour.

    Example: ringfly bench gpt2 --model gpt2-345m --boards 1 --length 64:64

    Example: ringfly bench gpt2 --model gpt2-345m --png beside.png --latency-png latency.png --json
    """
    from host.bench.gpt2_lengths import Length
    from host.bench.gpt2_report import DFX_LENGTHS, LENGTHS, MODELS, gpt2_report
    from host.errors import BadInput

    lengths = tuple(dict.fromkeys([Length.parse(text) for text in length] if length else [*LENGTHS, *DFX_LENGTHS]))
    for path in (png, latency_png):
        if path is not None:
            check_output_file(path, "pictures", "bench.png")
    if png is not None and all(one.output == 1 for one in lengths):
        raise BadInput(
            "the picture of --png is of decode steps, and one token of output has none",
            value=[str(one) for one in lengths],
            expected="a --length with 2 or more tokens of output",
        )
    progress = Progress()
    with quiet_stdout(as_json):
        report = gpt2_report(
            tuple(dict.fromkeys(model or MODELS)),
            tuple(dict.fromkeys(boards)) if boards else None,
            lengths,
            cores=tuple(dict.fromkeys(core)) if core else None,
            memory=memory,
            seed=seed,
            hop_ns=hop_ns,
            progress=progress,
        )
        if png is not None or latency_png is not None:
            from host.bench.gpt2_figure import write_comparison, write_latency

            for path, write in ((png, write_comparison), (latency_png, write_latency)):
                if path is not None:
                    write(report, path)
    progress.clear()
    if as_json:
        files = {"png": png, "latency_png": latency_png}
        write_json("bench gpt2", {**report, **files}, schema="ringfly-bench-gpt2/1")
    else:
        sys.stdout.write("\n".join(gpt2_lines(report)) + "\n")
    return 0


@bench_app.command("gpu")
@command_errors("bench gpu")
def gpu_command(
    model: WeightsOption = None,
    length: LengthsOption = None,
    device: Annotated[str, typer.Option(help="auto (a GPU if PyTorch sees one), cpu or cuda.")] = "auto",
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="fp32, bf16 or fp16; repeatable. Default: fp16 on a GPU; on a CPU fp32 and what it has."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="On a CPU: threads of PyTorch; default: PyTorch's own.")] = None,
    warm_ups: Annotated[int, typer.Option(help="Untimed runs of each length before the timed ones.")] = 1,
    repeats: Annotated[int, typer.Option(help="Timed runs of each length; their median is printed.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of weights and prompts; neither changes the time.")] = 0,
    as_json: JsonOption = False,
) -> int:
    """Measure PyTorch on this machine, on its GPU if there is one, over the lengths of `ringfly bench gpt2`.

    Prompt and decode are timed apart, with the bandwidth that the bytes of weights and K/V come to. Without options:
    gpt2-124m at 32:32 and 64:64, about a minute on two CPU cores.

    Example: ringfly bench gpu --model gpt2-345m --length 64:64 --dtype fp32

    Example: ringfly bench gpu --device cuda --model gpt2-xl --json
    """
    from host.bench.gpt2_lengths import Length
    from host.bench.torch_report import GPU_LENGTHS, Setup, torch_report

    lengths = tuple(dict.fromkeys(Length.parse(text) for text in length)) if length else GPU_LENGTHS
    progress = Progress()
    with quiet_stdout(as_json):
        setup = Setup.of_machine(device, dtype or (), threads, warm_ups, repeats, seed)
        report = torch_report(tuple(dict.fromkeys(model or ("gpt2-124m",))), lengths, setup, progress)
    progress.clear()
    if as_json:
        write_json("bench gpu", report, schema="ringfly-bench-gpu/1")
    else:
        sys.stdout.write("\n".join(gpu_lines(report)) + "\n")
    return 0
