"""Cycles of the timing model against those of the gateware, program by program.

``python -m sim.timing.table [--seed S] [--programs 100] [--core 16x4] [--folder PROGRAM ...] [--twins] [--json]``:
random programs from seed S on, each with fixed delays, random delays and the HBM model, then program folders (``ringfly
compile``) with the HBM model. On a core with rows half of the random programs run as a batch; a few meet a value that
is no number, of which the timing model knows nothing: they are left out and named. A row misses if any counter differs,
or a large lost-cycle bucket by more than 10 %. With twins every row's gateware runs once and the timing model again
with one thing wrong at a time: each twin must make a row miss.

Exit code: 0 if no row misses and every twin is noticed, 1 if not, 2 for bad arguments and for whatever goes wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence

from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_config import DeviceTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs.random_case import random_case
from sim.rtl.build import BuiltBoard, build_board
from sim.timing.comparison import Comparison, GatewareRun, gateware_run
from sim.timing.gateware import Run, case_run, folder_run
from sim.timing.twins import TWINS, Twin

__all__ = ["Row", "Table", "exit_code", "main", "memories", "model_row", "parsed", "random_rows", "table_parser"]

HELD, MISSED, ERROR = 0, 1, 2
_NAMED_ROWS = 8  # of those that do not notice a twin, for one reason


@dataclasses.dataclass(frozen=True)
class Row:
    """A run on both sides, and with each twin of the timing model."""

    ran: GatewareRun
    comparison: Comparison
    twins: Sequence[tuple[Twin, Comparison]]

    @classmethod
    def of(cls, ran: GatewareRun, twins: Sequence[Twin]) -> Row:
        """Run the timing model and its twins. Raises TimingError."""
        pairs = [(twin, ran.compared(memory=twin.memory(ran.memory), overrides=twin.overrides)) for twin in twins]
        return cls(ran, ran.compared(), pairs)


def memories(seed: int) -> tuple[tuple[str, DeviceTiming], ...]:
    """Name and timing of the memories that each random program runs with."""
    return (
        ("fixed", MemoryTiming()),
        ("random", MemoryTiming.random(seed)),
        ("hbm", HbmTiming(seed=seed)),
    )


def random_rows(core: str, seed: int, programs: int, twins: Sequence[Twin]) -> Iterator[Row]:
    """Random programs from ``seed`` on, each with all :func:`memories`."""
    if programs < 1:
        return
    config = core_config(core)
    built = build_board(config)
    for number in range(seed, seed + programs):
        with tempfile.TemporaryDirectory(prefix="ringfly-timing-") as name:
            run = case_run(random_case(number, config), pathlib.Path(name))
            for kind, memory in memories(number):
                ran = gateware_run(run, built, memory, kind)
                if ran.counters["error"]:
                    sys.stderr.write(f"{run.name} {kind}: left out, it ended with error {ran.counters['error']}\n")
                else:
                    yield Row.of(ran, twins)


def model_row(run: Run, twins: Sequence[Twin], *, seed: int = 0, built: BuiltBoard | None = None) -> Row:
    """A program with the HBM model."""
    return Row.of(gateware_run(run, built or build_board(run.program.core), HbmTiming(seed=seed), "hbm"), twins)


class Table:
    """Prints rows as they come, or one JSON object of all, and judges them.

    Parameters: ``twins`` that the rows have; ``limit``: see ``Comparison.misses``; ``as_json``.
    """

    def __init__(self, twins: Sequence[Twin], limit: float, as_json: bool) -> None:
        self._limit, self._as_json = limit, as_json
        self._rows: list[dict[str, object]] = []
        self._missed = self._buckets = 0
        self._noticed = {twin.name: 0 for twin in twins}
        self._unnoticed: dict[str, dict[str, list[str]]] = {twin.name: {} for twin in twins}

    def held(self, rows: Iterable[Row]) -> bool:
        """Whether no row misses and every twin is noticed. Raises ValueError if there are no rows."""
        if not self._as_json:
            heads = (f"{'case':<28} {'memory':<7}", f"{'gateware':>10}", f"{'timing':>10}", f"{'difference':>11}")
            print(*heads, " buckets > 0.5 %, worst  missed", flush=True)
        for row in rows:
            self._add(row)
        if not self._rows:
            raise ValueError("the table has no rows; give programs or folders")
        held = not self._missed and all(self._noticed.values())
        if self._as_json:
            counts = {"missed": self._missed, "buckets_judged": self._buckets, "limit": self._limit}
            twins = {
                name: {"noticed": noticed, "unnoticed": self._unnoticed[name]}
                for name, noticed in self._noticed.items()
            }
            sources = ["rtl", "timing"]
            print(json.dumps({"rows": self._rows, **counts, "twins": twins, "held": held, "cycles_source": sources}))
        else:
            self._summary()
        return held

    def _add(self, row: Row) -> None:
        misses = row.comparison.misses(self._limit)
        self._missed += bool(misses)
        self._buckets += len(row.comparison.large_buckets())
        facts = _facts(row.comparison, misses)
        twins: dict[str, object] = {}
        lines = [_line(row.comparison, f"{row.comparison.run:<28} {row.comparison.memory:<7}", "; ".join(misses))]
        for twin, comparison in row.twins:
            wrong = comparison.misses(self._limit)
            twins[twin.name] = _facts(comparison, wrong)
            text = ", ".join(comparison.unequal())
            if wrong:
                self._noticed[twin.name] += 1
            else:
                why = f"within the limit of {100 * self._limit:g} %"
                if not comparison.unequal():
                    why = twin.why_unnoticed(row.ran.run.program.core, row.ran.memory)
                text = f"not noticed: {why}"
                where = f"{comparison.run} {comparison.memory}"
                self._unnoticed[twin.name].setdefault(why, []).append(where)
            lines.append(_line(comparison, f"  {twin.name:<34}", text))
        self._rows.append({**facts, "twins": twins})
        if not self._as_json:
            print(*lines, sep="\n", flush=True)

    def _summary(self) -> None:
        total = len(self._rows)
        for name, reasons in self._unnoticed.items():
            print(f"twin {name}: noticed by {self._noticed[name]} of {total} rows")
            for why, rows in reasons.items():
                more = f" and {len(rows) - _NAMED_ROWS} more" if len(rows) > _NAMED_ROWS else ""
                print(f"  not by {len(rows)}, {why}: {', '.join(rows[:_NAMED_ROWS])}{more}")
        twins = "".join(f", {name} noticed by {noticed}" for name, noticed in self._noticed.items())
        print(f"{total} rows, {self._missed} missed, {self._buckets} buckets above 0.5 % judged{twins}")


def _facts(comparison: Comparison, misses: list[str]) -> dict[str, object]:
    large = {"large_buckets": comparison.large_buckets(), "large_causes": comparison.large_causes()}
    return {**dataclasses.asdict(comparison), "difference": comparison.difference, **large, "misses": misses}


def _line(comparison: Comparison, head: str, text: str) -> str:
    buckets = comparison.large_buckets()
    worst = max(buckets, key=lambda name: abs(buckets[name]), default="")
    shown = f"{len(buckets)}" + (f", {worst} {100 * buckets[worst]:+.1f} %" if worst and buckets[worst] else "")
    return (
        f"{head} {comparison.rtl['cycles']:>10,} {comparison.timing['cycles']:>10,} "
        f"{100 * comparison.difference:>+9.4f} %  {shown:<23} {text}"
    ).rstrip()


def table_parser(program: str, text: str) -> argparse.ArgumentParser:
    """Options that every table takes."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=text.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="first random program, seed of memory and tokens (0)")
    parser.add_argument("--programs", type=int, default=100, help="number of random programs (100)")
    parser.add_argument("--core", default="16x4", help="core of the random programs (16x4)")
    parser.add_argument(
        "--twins", action="store_true", help=f"also wrong timing models, which must be noticed: {', '.join(TWINS)}"
    )
    parser.add_argument(
        "--twin", action="append", default=[], metavar="NAME=VALUE", help=(Twin.__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "--limit", type=float, default=0.0, metavar="PERCENT", help="allow cycles to differ; 0: no counter may (0)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return parser


def parsed(parser: argparse.ArgumentParser, arguments: list[str] | None) -> tuple[argparse.Namespace, list[Twin]]:
    """Options, and the twins that they name; ends the program with 2 for bad ones."""
    options = parser.parse_args(arguments)
    if not 0 <= options.limit <= 100:
        parser.error(f"--limit must be 0 to 100, got {options.limit!r}")
    if options.programs < 0:
        parser.error(f"--programs must be 0 or more, got {options.programs!r}")
    try:
        return options, [Twin.parse(name) for name in (*(TWINS if options.twins else ()), *options.twin)]
    except ValueError as error:
        parser.error(str(error))


def exit_code(held: Callable[[], bool]) -> int:
    """0 or 1 for what ``held`` returns, 2 for whatever it raises, which goes to standard error."""
    try:
        return HELD if held() else MISSED
    except Exception:
        traceback.print_exc()
        return ERROR


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = table_parser("sim.timing.table", __doc__ or "")
    parser.add_argument("--folder", type=pathlib.Path, action="append", default=[], help="a program folder as a row")
    parser.add_argument("--position", type=int, default=0, help="first position of the folders' runs (0)")
    parser.add_argument("--prompt-end", type=int, default=4, help="tokens given to the folders' runs (4)")
    parser.add_argument("--new-tokens", type=int, default=3, help="tokens that the folders' runs generate (3)")
    options, twins = parsed(parser, arguments)
    folders = (
        model_row(
            folder_run(path, options.position, options.prompt_end, options.new_tokens, options.seed),
            twins,
            seed=options.seed,
        )
        for path in options.folder
    )
    rows = random_rows(options.core, options.seed, options.programs, twins)
    return exit_code(lambda: Table(twins, options.limit / 100, options.json).held(itertools.chain(rows, folders)))


if __name__ == "__main__":
    sys.exit(main())
