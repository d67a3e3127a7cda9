"""Sampled text of the shipped checkpoint: gateware, functional executor, PyTorch and the host's sampler draw alike.

One start makes all tokens where a board knows the sampler (docs/sampling.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from host.runtime.board_executor import open_executor
from host.runtime.generate import generate
from host.runtime.job import Job, RunOutcome
from host.runtime.program_folders import Programs, compile_programs
from host.runtime.report import Generation
from host.runtime.sampling import Sampler
from hw.gpt2.config import core_config
from sw.models.tokenizer import Tokenizer

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
SEED = 77
TOKENS = 50
PROMPT = "And it came to pass"
SAMPLERS = [
    Sampler(0.8, 40, SEED),
    Sampler(1.0, 0, 2**64 - 1),
    Sampler(0.3, 5, 1),
    Sampler(1.7, 64, 2**63),
    Sampler(0.05, 1, 3),
    Sampler(60.0, 0, 0),
]
QUICK = 2  # samplers that run on gateware in the quick tests


def _sampled(executor: str, seed: int, top_k: int = 40) -> Generation:
    return generate(TINY, PROMPT, TOKENS, executor=executor, seed=seed, temperature=0.8, top_k=top_k, stop_ids=())


def _drawn(sampler: Sampler, outcome: RunOutcome, prompt: int) -> list[int]:
    """What the host's sampler draws from the logits that the board wrote, behind ``prompt`` tokens."""
    assert outcome.logits is not None and len(outcome.logits) == TOKENS
    return [sampler.choose(logits, prompt + step) for step, logits in enumerate(outcome.logits)]


def _job(sampler: Sampler) -> Job:
    return Job(Tokenizer(TINY).encode(PROMPT), TOKENS, sampler, keep_logits=True)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return compile_programs(TINY, core_config("16x4"), tmp_path_factory.mktemp("program") / "16x4", context=80)


@pytest.fixture(scope="module")
def functional(programs: Programs) -> Iterator[list[RunOutcome]]:
    """What the functional executor makes of each sampler."""
    with open_executor("functional", programs) as runner:
        yield [runner.run(_job(sampler)) for sampler in SAMPLERS]


def test_the_board_draws_what_the_host_draws(functional: list[RunOutcome]) -> None:
    prompt = len(_job(SAMPLERS[0]).prompt)
    for sampler, outcome in zip(SAMPLERS, functional, strict=True):
        assert (outcome.starts, outcome.sampled_by) == (1, "board")
        assert outcome.tokens == _drawn(sampler, outcome, prompt)
        # twins: the position before, and (where the choice is wide) another seed
        if sampler.top_k != 1:
            assert outcome.tokens != _drawn(sampler, outcome, prompt - 1)
            assert outcome.tokens != _drawn(Sampler(sampler.temperature, sampler.top_k, 12), outcome, prompt)
    assert len({tuple(outcome.tokens) for outcome in functional}) == len(SAMPLERS)


@pytest.mark.parametrize(
    "number", [pytest.param(i, marks=[pytest.mark.slow] if i >= QUICK else []) for i in range(len(SAMPLERS))]
)
def test_gateware_draws_like_the_functional_executor(
    number: int, programs: Programs, functional: list[RunOutcome]
) -> None:
    with open_executor("rtl", programs) as runner:
        outcome = runner.run(_job(SAMPLERS[number]))
    assert outcome.tokens == functional[number].tokens and (outcome.starts, outcome.sampled_by) == (1, "board")
    assert outcome.logits is not None and functional[number].logits is not None
    assert outcome.logits.tobytes() == functional[number].logits.tobytes()


@pytest.fixture(scope="module")
def drawn_text() -> Generation:
    return _sampled("functional", SEED)


def test_the_report_says_who_draws(drawn_text: Generation) -> None:
    conditions = drawn_text.conditions
    assert (conditions["starts"], conditions["sampled_by"], conditions["logits_written"]) == (1, "board", False)
    by_host = _sampled("functional", SEED, top_k=65).conditions
    assert (by_host["starts"], by_host["sampled_by"], by_host["logits_written"]) == (TOKENS, "host", True)


def test_gateware_makes_the_same_text(drawn_text: Generation) -> None:
    rtl = _sampled("rtl", SEED)
    assert rtl.tokens == drawn_text.tokens and rtl.text == drawn_text.text
    assert rtl.conditions["starts"] == 1 and rtl.matches_reference is None
    assert rtl.cycles_source == "rtl" and rtl.decode_cycles_per_token is not None
    assert rtl.decode_cycles_per_token > 8_000  # at least the tiles of a token


def test_pytorch_draws_like_the_functional_executor(drawn_text: Generation) -> None:
    assert _sampled("torch", SEED).tokens == drawn_text.tokens


def test_another_seed_gives_another_text(drawn_text: Generation) -> None:
    other = _sampled("functional", SEED + 1)
    assert len(other.tokens) == TOKENS and other.tokens != drawn_text.tokens


def test_greedy_text_does_not_depend_on_the_seed() -> None:
    texts = {generate(TINY, "And it came", 10, executor="functional", seed=seed, check=False).text for seed in (1, 2)}
    assert len(texts) == 1
