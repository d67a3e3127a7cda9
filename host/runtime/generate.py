"""From a checkpoint directory and a prompt to text: everything is checked first, then compiled, run and judged."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from host.compiler.core_choice import chosen_core
from host.compiler.model_choice import chosen_model
from host.runtime.comparison import Comparison, compare, stored_rms_error
from host.runtime.job import Job, RunOutcome
from host.runtime.report import (
    Generation,
    check_conditions,
    decode_cycles_per_token,
    milliseconds,
    run_conditions,
)
from host.runtime.request import (
    EXECUTORS,
    check_arguments,
    check_boards,
    chosen_context,
    chosen_stop_ids,
    encode_prompt,
    tokenizer_of,
)
from host.runtime.sampling import Sampler
from host.runtime.torch_executor import TorchExecutor, half_precision_logits, reference_logits
from hw.gpt2.config import CoreConfig
from sw.models.gpt2 import GPT2

if TYPE_CHECKING:
    from host.runtime.board_executor import BoardExecutor  # pynq, which `torch` does without
    from host.runtime.program_folders import Programs
    from sim.devices.link_timing import LinkTiming

__all__ = ["EXECUTORS", "Generation", "generate"]


class Executor(Protocol):
    """What runs a prompt: `BoardExecutor` or `TorchExecutor`, which has 0 `boards`."""

    boards: int
    verilog_sha256: str | None
    model_digest: str | None

    def run(self, job: Job) -> RunOutcome:
        """Generate as `job` says."""


def generate(
    model_dir: str | Path,
    prompt: str,
    max_new_tokens: int,
    *,
    executor: str = "rtl",
    core: str | CoreConfig = "16x4",
    boards: int = 1,
    links: LinkTiming | None = None,
    cards: Sequence[str] = (),
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    context: int | None = None,
    check: bool = True,
    stop_ids: Sequence[int] | None = None,
    timeout_s: float = 600.0,
    xclbin: Path | None = None,
    on_text: Callable[[str], object] = lambda text: None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Generation:
    """Generate text after `prompt`.

    Parameters
    ----------
    model_dir : HuggingFace GPT-2 directory with tokenizer.json.
    executor : ``rtl`` (Verilated gateware), ``functional`` (bit-exact, no cycles) or ``torch`` (fp32 on the CPU).
    core : name of a core, or a core description; `torch` ignores all of it but its context.
    boards : 1 to 8 boards that share the model; `torch` has none.
    links : the cables between several boards of ``rtl``; fault-free ones of 500 ns if None.
    cards : names of cards to lock while their boards are used, one a board, or none.
    seed, temperature, top_k : see `Sampler`.
    context : positions of the cache; the smaller of the model's and the core's if None.
    check : judge greedy tokens by PyTorch fp32.
    stop_ids : ids that end the text; the model's end-of-text if None.
    timeout_s : wall-clock limit of the run itself.
    xclbin : file of the kernel; the cached one of the core if None.
    on_text : takes each piece of text as it appears.
    progress : takes (what, done, total) of long steps.

    Raises CheckpointError, ModelError, ConfigError, CompileError, BadInput, ToolMissingError, BuildError, and the
    MachineErrors of `host.errors`.
    """
    seconds: dict[str, float] = {}
    sampler = Sampler(temperature, top_k, seed)
    config = chosen_core(core) if isinstance(core, str) else core
    check_arguments(executor, max_new_tokens, timeout_s)
    check_boards(executor, boards, links, cards)
    with _timed(seconds, "read"):
        weights = chosen_model(model_dir)
        tokenizer = tokenizer_of(model_dir, weights)
        limit = chosen_context(context, weights.config, config.context)
        ids = encode_prompt(tokenizer, weights.config, prompt, limit)
        stops = chosen_stop_ids(stop_ids, weights.config)
    if executor == "rtl":
        from sim.rtl.toolchain import find_toolchain

        find_toolchain()  # say at once that a tool is missing
    judged = check and sampler.greedy
    model = GPT2.from_directory(model_dir) if executor == "torch" or judged else None
    stream = tokenizer.stream()

    def on_token(token: int) -> None:
        on_text(stream.push(token))

    with contextlib.ExitStack() as stack:
        runner: Executor
        if executor == "torch":
            runner = TorchExecutor(model or GPT2.from_directory(model_dir), limit)
        else:
            programs = stack.enter_context(_compiled(model_dir, config, boards, limit, seconds, progress))
            runner = stack.enter_context(_opened(executor, programs, xclbin, links, cards, seconds))
        digest = runner.model_digest
        stored = stored_rms_error(digest, config.digest, boards=boards) if digest else None
        keep_logits = judged and stored is None
        with _timed(seconds, "run"):
            job = Job(ids, max_new_tokens, sampler, stops, timeout_s, keep_logits, on_token, progress)
            outcome = runner.run(job)
    on_text(stream.finish())
    comparison = None
    if judged and model is not None:
        with _timed(seconds, "check"):
            comparison = _judge(model, ids, outcome, stored)
    conditions: dict[str, object] = {
        "model": str(model_dir),
        "model_digest": digest,
        "core_digest": None if executor == "torch" else config.digest,
        "context": limit,
        "prompt_tokens": len(ids),
        "max_new_tokens": max_new_tokens,
        "stop_ids": list(stops),
        "temperature": temperature,
        "top_k": top_k,
        "seed": None if sampler.greedy else seed,
        "core_clock_mhz": None if executor == "torch" else config.core_clock_mhz,
        **run_conditions(executor, sampler, outcome, keep_logits, config.core_clock_mhz, runner.boards, links),
        "check": check_conditions(check, sampler, comparison),
    }
    cycles_per_token = decode_cycles_per_token(outcome)
    return Generation(
        text=tokenizer.decode(outcome.tokens),
        tokens=outcome.tokens,
        prompt=prompt,
        prompt_tokens=ids,
        finish_reason=outcome.finish_reason,
        executor=executor,
        boards=runner.boards,
        core=None if executor == "torch" else config.name,
        decode_cycles_per_token=cycles_per_token,
        prefill_cycles=outcome.prefill_cycles,
        ms_per_token=milliseconds(cycles_per_token, config.core_clock_mhz),
        ms_per_token_at_200mhz=milliseconds(cycles_per_token, 200),
        cycles_source="rtl" if outcome.prefill_cycles is not None else None,
        verilog_sha256=runner.verilog_sha256,
        counters=outcome.counters[0] if outcome.counters else None,
        board_counters=outcome.counters if runner.boards > 1 and outcome.counters else None,
        link_counters=outcome.link_counters or None,
        matches_reference=comparison.verdict if comparison else None,
        near_ties=[dataclasses.asdict(tie) for tie in comparison.near_ties] if comparison else [],
        wrong_tokens=[dataclasses.asdict(tie) for tie in comparison.wrong] if comparison else [],
        seconds={name: round(value, 3) for name, value in seconds.items()},
        conditions=conditions,
    )


@contextlib.contextmanager
def _compiled(
    model_dir: str | Path,
    config: CoreConfig,
    boards: int,
    context: int,
    seconds: dict[str, float],
    progress: Callable[[str, int, int], None],
) -> Iterator[Programs]:
    """The model compiled for `boards` boards of `config`, in a folder that lasts as long as they are needed."""
    from host.runtime.program_folders import compile_programs

    with tempfile.TemporaryDirectory(prefix="ringfly-") as folder:
        with _timed(seconds, "compile"):
            out = Path(folder) / "program"
            programs = compile_programs(model_dir, config, out, boards, context=context, progress=progress)
        yield programs


@contextlib.contextmanager
def _opened(
    executor: str,
    programs: Programs,
    xclbin: Path | None,
    links: LinkTiming | None,
    cards: Sequence[str],
    seconds: dict[str, float],
) -> Iterator[BoardExecutor]:
    """Boards with their programs loaded."""
    from host.runtime.board_executor import open_executor

    with contextlib.ExitStack() as stack:
        with _timed(seconds, "build and load"):
            runner = stack.enter_context(open_executor(executor, programs, xclbin=xclbin, links=links, cards=cards))
        yield runner


def _judge(model: GPT2, ids: list[int], outcome: RunOutcome, stored: tuple[float, str] | None) -> Comparison:
    error, source = stored if stored is not None else (None, "")
    return compare(
        lambda sequence: reference_logits(model, sequence),
        ids,
        outcome.tokens,
        rms_error=error,
        rms_source=source,
        logits=outcome.logits,
        half=lambda sequence: half_precision_logits(model, sequence),
    )


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = time.monotonic() - start
