"""From a checkpoint directory and prompts to text: everything is checked first, then compiled, run and judged."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from host.compiler.core_choice import chosen_core
from host.compiler.model_choice import chosen_model
from host.runtime.comparison import Comparison, compare, stored_rms_error
from host.runtime.int8_reference import int8_logits
from host.runtime.job import Job, RunOutcome
from host.runtime.report import (
    ExecutedOn,
    Generation,
    GenerationBatch,
    check_conditions,
    reported_generation,
    run_conditions,
    shared_runs,
)
from host.runtime.request import (
    EXECUTORS,
    check_arguments,
    check_boards,
    check_rows,
    check_weights,
    chosen_context,
    chosen_stop_ids,
    encode_prompts,
    tokenizer_of,
)
from host.runtime.sampling import Sampler
from host.runtime.torch_executor import TorchExecutor, half_precision_logits, reference_logits
from hw.gpt2.config import CoreConfig
from sw.models.gpt2 import GPT2
from sw.models.weights import Progress, unobserved

if TYPE_CHECKING:
    from host.runtime.board_executor import BoardExecutor  # pynq, which `torch` does without
    from host.runtime.program_folders import Programs
    from sim.devices.link_timing import LinkTiming

__all__ = ["EXECUTORS", "GenerateOptions", "Generation", "GenerationBatch", "generate", "generate_batch"]


class Executor(Protocol):
    """What runs prompts: `BoardExecutor` or `TorchExecutor`, which has 0 `boards`."""

    boards: int
    verilog_sha256: str | None
    model_digest: str | None

    def run(self, job: Job) -> RunOutcome:
        """Generate as `job` says."""

    def run_batch(self, jobs: Sequence[Job]) -> list[RunOutcome]:
        """Generate as all jobs say."""


@dataclasses.dataclass(frozen=True)
class GenerateOptions:
    """How text is generated.

    Parameters
    ----------
    executor : ``rtl`` (Verilated gateware), ``functional`` (bit-exact, no cycles) or ``torch`` (fp32 on the CPU).
    core : name of a core, or a core description; `torch` ignores all of it but its context.
    rows : tokens that share a pass over the weights, 1, 2 or 4; None: as `core` says. `torch` has none.
    weights : ``fp16`` or ``int8`` weights of the core; None: as `core` says. `torch` has none.
    boards : 1 to 8 boards that share the model, one if the core has rows; `torch` has none.
    links : the cables between several boards of ``rtl``; fault-free ones of 500 ns if None.
    cards : names of cards to lock while their boards are used, one a board, or none.
    seed, temperature, top_k : see `Sampler`.
    context : positions of the cache; the smaller of the model's and the core's if None.
    check : judge greedy tokens by PyTorch fp32.
    stop_ids : ids that end a text; the model's end-of-text if None.
    timeout_s : wall-clock limit of the run itself; with several prompts see `BoardExecutor.run_batch`.
    xclbin : file of the kernel; the cached one of the core if None.
    """

    executor: str = "rtl"
    core: str | CoreConfig = "16x4"
    rows: int | None = None
    weights: str | None = None
    boards: int = 1
    links: LinkTiming | None = None
    cards: Sequence[str] = ()
    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    context: int | None = None
    check: bool = True
    stop_ids: Sequence[int] | None = None
    timeout_s: float = 600.0
    xclbin: Path | None = None


def generate(
    model_dir: str | Path,
    prompt: str,
    max_new_tokens: int,
    *,
    on_text: Callable[[str], object] = lambda text: None,
    progress: Progress = unobserved,
    **options: Any,
) -> Generation:
    """Generate text after `prompt`.

    Parameters
    ----------
    model_dir : HuggingFace GPT-2 directory with tokenizer.json.
    on_text : takes each piece of text as it appears.
    progress : takes (what, done, total) of long steps.
    options : those of `GenerateOptions`, by name.

    Raises CheckpointError, ModelError, ConfigError, CompileError, BadInput, ToolMissingError, BuildError, and the
    MachineErrors of `host.errors`.
    """
    chosen = GenerateOptions(**options)
    batch = generate_batch(
        model_dir, [prompt], max_new_tokens, chosen, on_text=lambda _, text: on_text(text), progress=progress
    )
    return batch.results[0]


def generate_batch(
    model_dir: str | Path,
    prompts: Sequence[str],
    max_new_tokens: int,
    options: GenerateOptions,
    *,
    on_text: Callable[[int, str], object] = lambda number, text: None,
    progress: Progress = unobserved,
) -> GenerationBatch:
    """Generate text after each of one or more prompts; on a core with rows so many greedy ones share a run.

    `on_text` takes a prompt's number, from 0, and a piece of its text; the rest and the errors are those of `generate`.
    An error of one of several prompts names it by its number.
    """
    seconds: dict[str, float] = {}
    executor, links = options.executor, options.links
    sampler = Sampler(options.temperature, options.top_k, options.seed)
    config = chosen_core(options.core, options.rows, options.weights) if isinstance(options.core, str) else options.core
    check_arguments(executor, max_new_tokens, options.timeout_s)
    check_rows(executor, options.rows, config)
    check_weights(executor, options.weights, config)
    check_boards(executor, options.boards, links, options.cards, config.rows)
    with _timed(seconds, "read"):
        weights = chosen_model(model_dir)
        tokenizer = tokenizer_of(model_dir, weights)
        limit = chosen_context(options.context, weights.config, config.context)
        ids = encode_prompts(tokenizer, weights.config, prompts, limit)
        stops = chosen_stop_ids(options.stop_ids, weights.config)
    if executor == "rtl":
        from sim.rtl.toolchain import find_toolchain

        find_toolchain()  # say at once that a tool is missing
    judged = options.check and sampler.greedy
    model = GPT2.from_directory(model_dir) if executor == "torch" or judged else None
    streams = [tokenizer.stream() for _ in prompts]

    def on_token(number: int, token: int) -> None:
        on_text(number, streams[number].push(token))

    with contextlib.ExitStack() as stack:
        runner: Executor
        if executor == "torch":
            runner = TorchExecutor(model or GPT2.from_directory(model_dir), limit)
        else:
            programs = stack.enter_context(_compiled(model_dir, config, options.boards, limit, seconds, progress))
            runner = stack.enter_context(_opened(options, programs, seconds))
        digest = runner.model_digest
        stored = stored_rms_error(digest, config.digest, boards=options.boards) if digest else None
        keep_logits = judged and stored is None
        jobs = [
            Job(
                prompt,
                max_new_tokens,
                sampler,
                stops,
                options.timeout_s,
                keep_logits,
                functools.partial(on_token, number),
                progress,
            )
            for number, prompt in enumerate(ids)
        ]
        with _timed(seconds, "run"):
            outcomes = [runner.run(jobs[0])] if len(jobs) == 1 else runner.run_batch(jobs)
    for number, stream in enumerate(streams):
        on_text(number, stream.finish())
    comparisons: list[Comparison | None] = [None] * len(jobs)
    if judged and model is not None:
        with _timed(seconds, "check"):
            for number, outcome in enumerate(outcomes):
                comparisons[number] = _judge(
                    model, ids[number], outcome, stored, config.has_int8 and executor != "torch"
                )
    on_board = executor != "torch"
    common = {
        "model": str(model_dir),
        "model_digest": digest,
        "core_digest": config.digest if on_board else None,
        "rows": config.rows if on_board else None,
        "context": limit,
        "max_new_tokens": max_new_tokens,
        "stop_ids": list(stops),
        "temperature": options.temperature,
        "top_k": options.top_k,
        "seed": None if sampler.greedy else options.seed,
        "core_clock_mhz": config.core_clock_mhz if on_board else None,
    }
    spent = {name: round(value, 3) for name, value in seconds.items()}
    results = []
    for prompt, prompt_ids, outcome, comparison in zip(prompts, ids, outcomes, comparisons, strict=True):
        conditions = {
            **common,
            "prompt_tokens": len(prompt_ids),
            **run_conditions(executor, outcome, keep_logits, config.core_clock_mhz, runner.boards, links),
            "check": check_conditions(options.check, sampler, comparison),
        }
        text = tokenizer.decode(outcome.tokens)
        where = ExecutedOn(executor, runner.boards, config if on_board else None, runner.verilog_sha256)
        results.append(reported_generation(prompt, prompt_ids, text, outcome, where, comparison, spent, conditions))
    return GenerationBatch(
        results=results,
        batches=shared_runs(outcomes, config.core_clock_mhz),
        rows=config.rows if on_board else None,
        seconds=spent,
    )


@contextlib.contextmanager
def _compiled(
    model_dir: str | Path,
    config: CoreConfig,
    boards: int,
    context: int,
    seconds: dict[str, float],
    progress: Progress,
) -> Iterator[Programs]:
    """The model compiled for `boards` boards of `config`, in a folder that lasts as long as they are needed."""
    from host.runtime.program_folders import compile_programs

    with tempfile.TemporaryDirectory(prefix="ringfly-") as folder:
        with _timed(seconds, "compile"):
            out = Path(folder) / "program"
            programs = compile_programs(model_dir, config, out, boards, context=context, progress=progress)
        yield programs


@contextlib.contextmanager
def _opened(options: GenerateOptions, programs: Programs, seconds: dict[str, float]) -> Iterator[BoardExecutor]:
    """Boards with their programs loaded."""
    from host.runtime.board_executor import open_executor

    with contextlib.ExitStack() as stack:
        with _timed(seconds, "build and load"):
            runner = stack.enter_context(
                open_executor(
                    options.executor, programs, xclbin=options.xclbin, links=options.links, cards=options.cards
                )
            )
        yield runner


def _judge(
    model: GPT2, ids: list[int], outcome: RunOutcome, stored: tuple[float, str] | None, int8: bool
) -> Comparison:
    """`int8`: what a core may be off is what its rounded weights are, not what fp16 is."""
    error, source = stored if stored is not None else (None, "")
    rounded = int8_logits if int8 else half_precision_logits
    return compare(
        lambda sequence: reference_logits(model, sequence),
        ids,
        outcome.tokens,
        rms_error=error,
        rms_source=source,
        logits=outcome.logits,
        half=lambda sequence: rounded(model, sequence),
        half_name="int8" if int8 else "fp16",
    )


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = time.monotonic() - start
