"""Several jobs on a core with rows: bits of each alone, waves, endings, and a board that is free again in any case."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from host.compiler import compile_model
from host.driver.batch_request import BatchRequest
from host.driver.sim_device import SimU280Device
from host.errors import BadInput, BoardFailed, KernelFault, TimeLimit
from host.runtime.appliance import open_appliance
from host.runtime.board_executor import BoardExecutor
from host.runtime.job import Job, RunOutcome
from host.runtime.program_folders import Programs, compile_programs
from host.runtime.sampling import Sampler
from hw.board.board_model import BoardError
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard
from sim.functional.ring import FunctionalRing
from sw.models.gpt2 import GPT2, GPT2Config
from sw.train.save import save_model

MODEL = GPT2Config(n_layer=2, n_head=3, n_embd=48, n_positions=48, vocab_size=101)
GREEDY, DRAWN = Sampler(), Sampler(0.8, 0, 5)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6], [2, 6, 4], [33, 8], [32, 7, 9, 50, 2]]
LIMIT_S = 60.0


def _job(prompt: list[int], count: int = 6, **changes: Any) -> Job:
    return Job(prompt, count, GREEDY, timeout_s=LIMIT_S, keep_logits=True, **changes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with weights large enough that its texts do not stand still."""
    torch.manual_seed(11)
    lively = GPT2(MODEL)
    with torch.no_grad():
        for name, parameter in lively.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(40 if "wpe" in name else 8)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("model")
    save_model(lively, folder)
    return folder


@pytest.fixture(scope="module")
def compiled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Programs]:
    """Takes a core's name; the model compiled for it."""
    found: dict[str, Programs] = {}

    def of(core: str) -> Programs:
        if core not in found:
            folder = tmp_path_factory.mktemp(core) / "program"
            found[core] = [compile_model(model, core_config(core), folder)]
        return found[core]

    return of


@contextlib.contextmanager
def _executor(
    programs: Programs, board: FunctionalBoard | None = None
) -> Iterator[tuple[BoardExecutor, FunctionalBoard]]:
    board = FunctionalBoard() if board is None else board
    with open_appliance([board], programs[0][0].core, poll_cycles=10) as appliance:
        appliance.load(programs, verify=False)
        yield BoardExecutor("functional", appliance, None), board
    assert SimU280Device._open == []


def _cache(board: FunctionalBoard, programs: Programs, row: int) -> bytes:
    """All keys and values of a row's request, channel after channel."""
    names = {f"{kind}_{row}" if row else kind for kind in ("keys", "values")}
    regions = [region for region in programs[0][0].regions if region.name in names]
    return b"".join(board.read_memory(region.channel, region.offset, region.bytes) for region in regions)


def _alone(programs: Programs, job: Job) -> tuple[RunOutcome, bytes]:
    with _executor(programs) as (executor, board):
        return executor.run(job), _cache(board, programs, 0)


def _same(a: RunOutcome, b: RunOutcome) -> bool:
    assert a.logits is not None and b.logits is not None
    equal = a.logits.shape == b.logits.shape and (a.logits.view(np.uint32) == b.logits.view(np.uint32)).all()
    return a.tokens == b.tokens and a.finish_reason == b.finish_reason and bool(equal)


@pytest.mark.parametrize("core", ["16x4r2", "16x4r4", "64x16r4"])
def test_every_job_has_the_bits_of_its_own_run(core: str, compiled: Any) -> None:
    """Tokens, logits, keys and values; also those of a core with one row, whose slots alone are others."""
    programs, plain = compiled(core), compiled(core.partition("r")[0])
    rows = programs[0][0].core.rows
    jobs = [_job(prompt, count) for prompt, count in zip(PROMPTS[:rows], (6, 11, 3, 8), strict=False)]
    with _executor(programs) as (executor, board):
        outcomes = executor.run_batch(jobs)
        caches = [_cache(board, programs, row) for row in range(rows)]
    for row, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        alone, cache = _alone(programs, job)
        assert _same(outcome, alone) and caches[row] == cache
        assert _same(_alone(plain, job)[0], alone)
        assert len(set(outcome.tokens)) > 2  # a text that stands still would tell little
        assert outcome.starts == 2 and outcome.shared is not None
        assert (
            outcome.shared.jobs == tuple(range(rows))
            and outcome.shared.steps == max(j.max_new_tokens for j in jobs) - 1
        )
    # twins: one token of one prompt; a row's cache that another row would read
    changed = dataclasses.replace(jobs[1], prompt=[7])
    with _executor(programs) as (executor, board):
        others = executor.run_batch([jobs[0], changed, *jobs[2:]])
        assert [_same(a, b) for a, b in zip(outcomes, others, strict=True)] == [row != 1 for row in range(rows)]
        assert [_cache(board, programs, row) == caches[row] for row in range(rows)] == [row != 1 for row in range(rows)]


def test_twin_a_row_that_reads_another_rows_keys_shows(compiled: Any) -> None:
    [(program, image)] = programs = compiled("16x4r2")
    registers = {**program.registers, "key_base_1": program.registers["key_base"]}
    jobs = [_job(PROMPTS[0]), _job(PROMPTS[3])]
    with _executor(programs) as (executor, _):
        right = executor.run_batch(jobs)
    with _executor([(dataclasses.replace(program, registers=registers), image)]) as (executor, _):
        wrong = executor.run_batch(jobs)
    assert not all(_same(a, b) for a, b in zip(right, wrong, strict=True))


@pytest.mark.parametrize(("core", "waves"), [("16x4r2", [(0, 1), (2, 3), (4, 5)]), ("16x4r4", [(0, 1, 2, 3), (4, 5)])])
def test_more_jobs_than_rows_go_in_waves(core: str, waves: list[tuple[int, ...]], compiled: Any) -> None:
    programs, jobs = compiled(core), [_job(prompt, 4 + number) for number, prompt in enumerate(PROMPTS)]
    with _executor(programs) as (executor, _):
        outcomes = executor.run_batch(jobs)
        assert executor.appliance.kernels[0].get("start_count") == len(jobs) + len(waves)
    assert list(dict.fromkeys(outcome.shared.jobs for outcome in outcomes if outcome.shared is not None)) == waves
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert _same(outcome, _alone(programs, job)[0])


def test_one_job_left_over_runs_alone(compiled: Any) -> None:
    with _executor(compiled("16x4r4")) as (executor, _):
        outcomes = executor.run_batch([_job(prompt) for prompt in PROMPTS[:5]])
    assert [outcome.starts for outcome in outcomes] == [2, 2, 2, 2, 1]
    assert outcomes[4].shared is None


def test_jobs_end_for_their_own_reasons(compiled: Any) -> None:
    """At the first token by length and by stop id, later by stop id, at the end of the cache."""
    programs = compiled("16x4r4")
    free = [_alone(programs, _job(prompt, 12))[0].tokens for prompt in PROMPTS[:4]]
    late = next(token for token in free[2][1:] if token != free[2][0])
    long = [1] * 45
    jobs = [
        _job(PROMPTS[0], 1),
        _job(PROMPTS[1], 12, stop_ids=(free[1][0],)),
        _job(PROMPTS[2], 12, stop_ids=(late,)),
        _job(long, 12),
    ]
    with _executor(programs) as (executor, _):
        outcomes = executor.run_batch(jobs)
    assert [outcome.finish_reason for outcome in outcomes] == ["length", "stop", "stop", "context"]
    assert [outcome.starts for outcome in outcomes] == [1, 1, 2, 2]
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert _same(outcome, _alone(programs, job)[0])
    full = [_job([1] * 48, 5), _job([2] * 48, 5)]  # the cache is full with the first token: there is nothing to share
    with _executor(programs) as (executor, _):
        outcomes = executor.run_batch(full)
    assert [(outcome.finish_reason, len(outcome.tokens), outcome.shared) for outcome in outcomes] == [
        ("context", 1, None)
    ] * 2


def test_tokens_appear_as_they_are_made(compiled: Any) -> None:
    seen: list[tuple[int, int]] = []
    jobs = []
    for number, prompt in enumerate(PROMPTS[:4]):
        jobs.append(_job(prompt, 5, on_token=lambda token, number=number: seen.append((number, token))))
    with _executor(compiled("16x4r4")) as (executor, _):
        outcomes = executor.run_batch(jobs)
    for number, outcome in enumerate(outcomes):
        assert [token for of, token in seen if of == number] == outcome.tokens
    assert [number for number, _ in seen[:4]] == [0, 1, 2, 3]  # first tokens
    behind = [number for number, _ in seen[4:]]
    assert behind[:4] != [0] * 4  # and then not one text after the other


def _drawn_from_its_logits(job: Job, outcome: RunOutcome) -> list[int]:
    """What the host's sampler draws."""
    assert outcome.logits is not None
    return [job.sampler.choose(logits, len(job.prompt) + step) for step, logits in enumerate(outcome.logits)]


def test_drawn_jobs_share_a_run_where_the_board_draws(compiled: Any) -> None:
    """Greedy and drawn jobs mixed; top-k 70 of 101 is the host's work, one start a token, behind the waves."""
    jobs = [
        dataclasses.replace(_job(PROMPTS[0]), sampler=DRAWN),
        dataclasses.replace(_job(PROMPTS[4]), sampler=Sampler(0.8, 70, 5)),
        _job(PROMPTS[2]),
        dataclasses.replace(_job(PROMPTS[1]), sampler=Sampler(1.5, 7, 2**64 - 1)),
        _job(PROMPTS[3]),
    ]
    waves = [(0, 2), None, (0, 2), (3, 4), (3, 4)]
    for core, starts, shared in (("16x4r2", [2, 6, 2, 2, 2], waves), ("16x4", [1, 6, 1, 1, 1], [None] * 5)):
        programs = compiled(core)
        with _executor(programs) as (executor, _):
            outcomes = executor.run_batch(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            assert _same(outcome, _alone(programs, job)[0])
            assert outcome.tokens == _drawn_from_its_logits(job, outcome)
        assert [outcome.starts for outcome in outcomes] == starts
        assert [outcome.sampled_by for outcome in outcomes] == ["board", "host", None, "board", None]
        assert [outcome.shared and outcome.shared.jobs for outcome in outcomes] == shared


def test_four_samplers_in_one_batch(compiled: Any) -> None:
    samplers = [Sampler(0.6, 3, 1), Sampler(2.0, 0, 2), Sampler(1.0, 64, 2), Sampler(0.9, 101, 4)]
    jobs = [dataclasses.replace(_job(PROMPTS[2], 12), sampler=sampler) for sampler in samplers]
    with _executor(compiled("16x4r4")) as (executor, _):
        outcomes = executor.run_batch(jobs)
        again = executor.run_batch([_job(PROMPTS[2], 12) for _ in jobs])  # nothing of the samplers stays
    assert [(outcome.starts, outcome.sampled_by) for outcome in outcomes] == [(2, "board")] * 4
    assert len({tuple(outcome.tokens) for outcome in outcomes}) == 4
    for row, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        assert outcome.tokens == _drawn_from_its_logits(job, outcome)
        # twin: the sampler of the next row
        other = dataclasses.replace(job, sampler=samplers[(row + 1) % 4])
        assert outcome.tokens != _drawn_from_its_logits(other, outcome)
    for outcome in again:
        assert outcome.tokens == _drawn_from_its_logits(_job(PROMPTS[2]), outcome) and outcome.sampled_by is None


class TrippedError(BoardError):
    """Injected."""


class TrippedBoard(FunctionalBoard):
    """Calls `trip` with the name of a method before each access."""

    def __init__(self, trip: Callable[[str], None]) -> None:
        super().__init__()
        self.trip, self.closes = trip, 0

    def read_register(self, offset: int, bytes: int = 4) -> int:
        self.trip("read_register")
        return super().read_register(offset, bytes)

    def write_register(self, offset: int, value: int, bytes: int = 4) -> None:
        self.trip("start" if offset == 0 else "write_register")
        super().write_register(offset, value, bytes)

    def advance(self, max_cycles: int) -> int:
        self.trip("advance")
        return super().advance(max_cycles)

    def read_memory(self, channel: int, offset: int, bytes: int) -> bytes:
        self.trip("read_memory")
        return super().read_memory(channel, offset, bytes)

    def close(self) -> None:
        self.closes += 1
        super().close()


@pytest.mark.parametrize("raised", [TrippedError, KeyboardInterrupt])
@pytest.mark.parametrize("method", ["read_register", "write_register", "start", "advance", "read_memory"])
def test_a_fault_at_any_step_releases_the_board(
    method: str, raised: type[BaseException], compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven accesses of a kind, from opening to reading logits, over the prompts and the shared run."""
    programs, jobs = compiled("16x4r2"), [_job(PROMPTS[0], 3), _job(PROMPTS[1], 3)]
    count = 0

    def counted(what: str) -> None:
        nonlocal count
        count += what == method

    with _executor(programs, TrippedBoard(counted)) as (executor, _):
        good = [outcome.tokens for outcome in executor.run_batch(jobs)]
    assert count, "the step does not exist"
    for at in sorted({1 + (count - 1) * step // 6 for step in range(7)}):
        passed = 0

        def tripped(what: str, at: int = at) -> None:
            nonlocal passed
            passed += what == method
            if what == method and passed == at:
                raise raised("injected")

        board = TrippedBoard(tripped)
        with contextlib.suppress(KeyboardInterrupt, BoardFailed):
            with _executor(programs, board) as (executor, _):
                executor.run_batch(jobs)
        assert passed >= at and board.closes and not board.running
        assert SimU280Device._open == []
    with _executor(programs) as (executor, _):
        assert [outcome.tokens for outcome in executor.run_batch(jobs)] == good


def test_after_any_failed_batch_the_next_one_works(compiled: Any) -> None:
    programs, jobs = compiled("16x4r4"), [_job(prompt, 8) for prompt in PROMPTS[:4]]
    with _executor(programs) as (executor, board):
        good = [outcome.tokens for outcome in executor.run_batch(jobs)]

        def interrupt_at(number: int) -> Callable[[int], None]:
            seen: list[int] = []

            def on_token(token: int) -> None:
                seen.append(token)
                if len(seen) == number:
                    raise KeyboardInterrupt

            return on_token

        for number in (1, 3):  # while the prompts are read, and in the shared run
            with pytest.raises(KeyboardInterrupt):
                executor.run_batch([*jobs[:2], dataclasses.replace(jobs[2], on_token=interrupt_at(number)), jobs[3]])
            assert not board.running
            assert [outcome.tokens for outcome in executor.run_batch(jobs)] == good
        for limit_s in (1e-9, 0.05):
            slow = [dataclasses.replace(job, max_new_tokens=35) for job in jobs]
            slow[2] = dataclasses.replace(slow[2], timeout_s=limit_s)  # the smallest limit counts
            with pytest.raises(TimeLimit, match=f"no end within {limit_s:g} s"):
                executor.run_batch(slow)
            assert not board.running
            assert [outcome.tokens for outcome in executor.run_batch(jobs)] == good


def test_a_nan_in_one_rows_cache_names_row_and_request(compiled: Any) -> None:
    """The keys of row 2 are spoilt while the prompt of row 3 is read."""
    [(program, _)] = programs = compiled("16x4r4")
    region = next(region for region in program.regions if region.name == "keys_2" and region.channel == 0)

    with _executor(programs) as (executor, board):

        def spoil(token: int) -> None:
            board.write_memory(0, region.offset, b"\x00\x7e" * (region.bytes // 2))

        jobs = [_job(prompt) for prompt in PROMPTS[:3]]
        good = executor.run_batch(jobs)
        with pytest.raises(KernelFault, match=r"NaN at position 13 of row 2, which has request 2") as caught:
            executor.run_batch([*jobs, _job(PROMPTS[3], 6, on_token=spoil)])
        assert caught.value.value["row"] == 2
        assert all(_same(a, b) for a, b in zip(good, executor.run_batch(jobs), strict=True))


def test_rows_and_rings_exclude_each_other(tmp_path: Path, model: Path, compiled: Any) -> None:
    with pytest.raises(BadInput, match="a core with 2 rows has no ring: it works alone, not with 2 boards") as caught:
        with open_appliance([FunctionalBoard(), FunctionalBoard()], core_config("16x4r2")):
            pass
    assert (caught.value.kind, caught.value.exit_code) == ("rows_on_ring", 2) and SimU280Device._open == []
    core = core_config("16x4")
    programs = compile_programs(model, core, tmp_path / "ring", 2)
    with open_appliance(FunctionalRing(2, core).boards, core) as appliance:
        appliance.load(programs)
        with pytest.raises(BadInput, match="a batch runs on one board, these are 2"):
            appliance.start_batch([BatchRequest([1], 1)])
        jobs = [_job(prompt) for prompt in PROMPTS[:2]]  # jobs run all the same, one after the other
        outcomes = BoardExecutor("functional", appliance, None).run_batch(jobs)
        assert [outcome.starts for outcome in outcomes] == [1, 1]
    with _executor(compiled("16x4")) as (executor, _):
        with pytest.raises(BadInput, match="core 16x4 has one row"):
            executor.appliance.start_batch([BatchRequest([1], 1)])
