"""A checkpoint on rings of gateware and of functional boards, bit for bit: ``python -m host.bench.ring_agreement``.

``[--boards N ...] [--seeds K] [--tokens T] [--model DIR] [--core NAME]``. For each number of boards the gateware runs
with plain cables, with K seeds of memory and link delays, and with 1 % of all frames corrupted; compared with the
functional boards' are tokens, every logit, and all keys and values of every board. The exit code is the number of runs
that differ (at most 99).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from host.compiler import chosen_core
from host.runtime.appliance import LINK_LIMIT_CYCLES, open_appliance
from host.runtime.board_models import open_boards
from host.runtime.program_folders import Programs, compile_programs
from hw.board.board_model import BoardModel
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.rtl.board import RtlBoard
from sim.rtl.build import BuiltBoard, build_board
from sim.rtl.ring import RtlRing
from sw.models.tokenizer import Tokenizer

__all__ = ["Conditions", "Ran", "Traffic", "conditions", "difference", "functional_run", "gateware_run", "main"]

CHECKPOINT = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
BOARDS, SEEDS, TOKENS = (1, 2, 3, 4, 8), 5, 8
PROMPT = "In the beginning God created"
FRAME_ERROR_RATE = 0.01
HOPS_NS, JITTER_NS = (50.0, 1000.0), 200.0  # shortest and longest hop, longest jitter, of random cables
WAIT_S = 600.0
STUCK_CYCLES = LINK_LIMIT_CYCLES + 20_000  # beyond the time in which a board gives others up by itself


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What gateware runs under.

    Members: `name`; `memory` of board 0 (see `sim.rtl.ring.board_memory`); `links`, one a cable, none for one board;
    `must_resend`: a run in which no frame was sent again proves nothing.
    """

    name: str
    memory: MemoryTiming
    links: tuple[LinkTiming, ...]
    must_resend: bool = False


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a run left: new tokens, logits as bits [tokens, vocabulary], the hash of each board's keys and values."""

    tokens: tuple[int, ...]
    logits: npt.NDArray[np.uint32]
    kv_hashes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Cycles of a run, and frames of all ports together: sent, dropped, times that a port went back to send again."""

    cycles: int
    frames: int
    dropped: int
    resends: int

    def __str__(self) -> str:
        cables = f", {self.frames:,} frames, {self.dropped:,} dropped, {self.resends:,} times sent again"
        return f"{self.cycles:,} cycles" + (cables if self.frames else "")


def conditions(boards: int, seeds: Sequence[int], frame_error_rate: float = FRAME_ERROR_RATE) -> list[Conditions]:
    """Plain; each seed's delays of memory and, cable by cable, of links; frame errors, if there are cables."""
    cables = boards if boards > 1 else 0
    found = [Conditions("plain", MemoryTiming(), (LinkTiming(),) * cables)]
    for seed in seeds:
        draw = random.Random(seed)
        links = tuple(
            LinkTiming(hop_ns=draw.uniform(*HOPS_NS), jitter_ns=draw.uniform(0.0, JITTER_NS), seed=seed)
            for _ in range(cables)
        )
        found.append(Conditions(f"delays of seed {seed}", MemoryTiming.random(seed), links))
    if cables and frame_error_rate:
        links = tuple(LinkTiming(frame_error_rate=frame_error_rate, seed=cable) for cable in range(cables))
        name = f"{100 * frame_error_rate:g} % of frames corrupted"
        found.append(Conditions(name, MemoryTiming(), links, must_resend=True))
    return found


def functional_run(programs: Programs, prompt: Sequence[int], tokens: int) -> Ran:
    """The run on functional boards."""
    with open_boards("functional", programs[0][0].core, len(programs)) as models:
        return _run(models.boards, programs, prompt, tokens)[0]


def gateware_run(
    built: BuiltBoard, programs: Programs, prompt: Sequence[int], tokens: int, under: Conditions, threads: int = 1
) -> tuple[Ran, Traffic]:
    """The run on Verilated boards, as many threads as given. Raises what `Appliance` raises."""
    if len(programs) == 1:
        with RtlBoard(built, timing=under.memory, no_progress_cycles=STUCK_CYCLES) as board:
            return _run((board,), programs, prompt, tokens)
    with RtlRing(
        built,
        len(programs),
        timing=under.memory,
        links=under.links,
        threads=threads,
        no_progress_cycles=STUCK_CYCLES,
    ) as ring:
        return _run(ring.boards, programs, prompt, tokens)


def difference(got: Ran, want: Ran) -> str:
    """What differs first between two runs, or an empty text."""
    if got.tokens != want.tokens:
        return f"tokens {list(got.tokens)}, not {list(want.tokens)}"
    if got.logits.shape != want.logits.shape:
        return f"{got.logits.shape} logits, not {want.logits.shape}"
    places = np.argwhere(got.logits != want.logits)
    if len(places):
        return f"{len(places)} logits differ, first at (step, id) {tuple(places[0].tolist())}"
    pairs = enumerate(zip(got.kv_hashes, want.kv_hashes, strict=True))
    boards = [board for board, (one, other) in pairs if one != other]
    return f"keys and values of boards {boards} differ" if boards else ""


def _run(boards: Sequence[BoardModel], programs: Programs, prompt: Sequence[int], tokens: int) -> tuple[Ran, Traffic]:
    with open_appliance(boards, programs[0][0].core) as appliance:
        appliance.load(programs, verify=False)
        appliance.start(prompt, tokens, write_logits=True)
        result = appliance.wait(WAIT_S)
        first = len(prompt) - 1
        logits = np.stack([appliance.read_logits(first + step) for step in range(len(result.tokens))])
        ports = [port for links in appliance.link_counters() for port in links]
        frames = (sum(port[name] for port in ports) for name in ("frames_sent", "frames_dropped", "resends"))
        ran = Ran(result.tokens, logits.view(np.uint32), tuple(appliance.kv_hashes()))
        return ran, Traffic(result.cycles, *frames)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m host.bench.ring_agreement", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--boards", type=int, nargs="+", default=list(BOARDS), help="numbers of boards (1 2 3 4 8)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds of delays ({SEEDS})")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"new tokens ({TOKENS})")
    parser.add_argument("--model", type=Path, default=CHECKPOINT, help="checkpoint folder (the shipped one)")
    parser.add_argument("--core", default="16x4", help="core (16x4)")
    options = parser.parse_args(arguments)
    core, threads = chosen_core(options.core), min(2, len(os.sched_getaffinity(0)))
    prompt, built = Tokenizer(options.model).encode(PROMPT), build_board(core)
    failures = 0
    for boards in options.boards:
        with tempfile.TemporaryDirectory(prefix="ringfly-agreement-") as folder:
            programs = compile_programs(options.model, core, Path(folder) / "program", boards)
            want = functional_run(programs, prompt, options.tokens)
            for under in conditions(boards, range(options.seeds)):
                got, traffic = gateware_run(built, programs, prompt, options.tokens, under, threads)
                text = difference(got, want)
                if not text and under.must_resend and not traffic.resends:
                    text = "nothing was sent again, so the run proves nothing"
                failures += bool(text)
                verdict = text or f"{len(got.tokens)} tokens, {got.logits.size:,} logits, all keys and values equal"
                name = f"{boards} board{'s' if boards > 1 else ''}, {under.name}"
                print(f"figure: {name}: {verdict}; {traffic}", flush=True)
    return min(failures, 99)


if __name__ == "__main__":
    sys.exit(main())
