"""The sampler: RTL against its golden model, over steps, ties, orders of strips, pauses and full queues."""

import dataclasses
import functools
import gc

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.sampled_token import TOP_K_LIMIT, BoardSampling, sampled_token
from hw.gpt2.sampler import Sampler
from hw.gpt2.sampler_queue import SamplerQueue
from hw.numerics.gumbel import gumbel_fixed
from hw.numerics.splitmix import splitmix
from sim.rtl.sampler_faults import SAMPLER_FAULTS
from sim.rtl.unit import VerilatedUnit

CONFIG = core_config("16x4")
LANES = CONFIG.lanes
SEED = 20240702
DEPTH, MARGIN, HOLD = 16, 8, 30
PATIENCE = 20_000  # chunks
PARTS = {  # module of a part of the sampler: who instantiates it, its name
    "hw.gpt2.sampler_way": ("hw.gpt2.sampler", "SamplerWay"),
    "hw.gpt2.sampler_list": ("hw.gpt2.sampler", "LargestList"),
    "hw.gpt2.sampler_queue": ("hw.gpt2.sampler", "SamplerQueue"),
    "hw.numerics.splitmix": ("hw.gpt2.sampler_way", "SplitMix"),
    "hw.numerics.gumbel": ("hw.gpt2.sampler_way", "Gumbel"),
}


@dataclasses.dataclass
class Step:
    """Strips in the order in which they come; row i of ``values`` and ``mask`` is strip ``order[i]``."""

    values: np.ndarray
    mask: np.ndarray
    order: np.ndarray
    position: int

    def token(self, sampling, position_error=0):
        """What the golden model says."""
        columns = np.empty(self.mask.shape, np.uint32)
        taking_part = np.empty(self.mask.shape, bool)
        columns[self.order], taking_part[self.order] = self.values.view(np.uint32), self.mask
        ids = np.flatnonzero(taking_part)
        assert np.array_equal(ids, np.arange(len(ids)))
        return sampled_token(columns.ravel()[ids], sampling, self.position + position_error)


def step(rng, strips, kind="plain", lanes=LANES):
    spread = {"plain": 3, "wide": 100, "flat": 0.05}.get(kind, 1)
    values = (rng.standard_normal((strips, lanes)) * spread).astype(np.float32)
    if kind == "ties":
        values = rng.integers(-2, 2, (strips, lanes)).astype(np.float32)
        values[values == 0] *= rng.choice([-1.0, 1.0])  # signed zeros are equal
    if kind == "equal":
        values[:] = 1.5
    if kind in ("rising", "falling"):
        values = np.sort(values.ravel()).reshape(values.shape)[:: 1 if kind == "rising" else -1].copy()
    mask = np.ones((strips, lanes), bool)
    mask[-1, rng.integers(1, lanes + 1) :] = False
    values[~mask] = np.nan  # must not be looked at
    return Step(values, mask, np.arange(strips), int(rng.integers(1, CONFIG.context)))


def shuffled(step, rng):
    order = rng.permutation(len(step.order))
    return dataclasses.replace(step, values=step.values[order], mask=step.mask[order], order=step.order[order])


class Board:
    """A sampler with a sender in front of it that looks at ``ready_soon`` and then sends up to ``margin`` strips."""

    def __init__(self, ways=1, margin=MARGIN, config=CONFIG, make=Sampler):
        self.unit = VerilatedUnit(make(config, ways, DEPTH, MARGIN, HOLD))
        self.lanes = config.lanes
        self.ways = ways
        self.margin = margin
        self.waits = 0
        self.cycle = 0

    def cycles(self, sampling, position, strips, enable=1):
        """One chunk: a strip (or None) a cycle, and a cycle without."""
        count = len(strips) + 1
        rows = {
            "enable": np.full(count, enable),
            "inverse_mantissa": np.full(count, sampling.inverse_mantissa),
            "inverse_exponent": np.full(count, sampling.inverse_exponent),
            "top_k": np.full(count, sampling.top_k),
            "seed": np.full(count, sampling.seed, np.uint64),
            "position": np.full(count, position),
            "strip_valid": np.array([s is not None for s in strips] + [False]),
            "strip": np.zeros((count, self.lanes), np.uint32),
            **{name: np.zeros(count, np.uint32) for name in ("strip_mask", "strip_index", "strip_commit")},
        }
        for i, strip in enumerate(strips):
            if strip is not None:
                rows["strip"][i], rows["strip_mask"][i], rows["strip_index"][i], rows["strip_commit"][i] = strip
        self.cycle += count
        return self.unit.run(rows)

    def draw(self, step, sampling, rng, pause=0.0, spacing=0):
        """The token or None; AssertionError if none comes or a strip was lost.

        In front of a strip are ``spacing`` cycles, and ``pause`` of all cycles besides. Afterwards ``arrivals`` says
        when the strips came, and ``token_at`` when the token did.
        """
        masks = (step.mask << np.arange(self.lanes)).sum(axis=1)
        last = len(step.order) - 1
        waiting = []
        for i in range(last + 1):
            waiting += [None] * spacing
            waiting.append((step.values[i].view(np.uint32), masks[i], step.order[i], i == last))
        ready, self.arrivals = True, []
        for _ in range(PATIENCE):
            strips = []
            while ready and waiting and len(strips) < self.margin:
                strips.append(None if rng.random() < pause else waiting.pop(0))
            self.waits += not ready
            self.arrivals += [self.cycle + i for i, strip in enumerate(strips) if strip is not None]
            out = self.cycles(sampling, step.position, strips or [None] * self.margin)
            ready = out["ready_soon"][-1] == 1
            assert not out["overflow"].any(), "a strip was lost"
            strobes = np.flatnonzero(out["token_valid"] | out["nan"])
            if len(strobes):
                [at] = strobes
                assert not waiting and out["busy"][at] == 1 and out["busy"][at + 1 :].sum() == 0
                self.token_at = self.cycle - len(out["token"]) + int(at)
                return int(out["token"][at]) if out["token_valid"][at] else None
            assert out["busy"][-1] == 1 or not self.arrivals
        raise AssertionError("no token")


shared_board = functools.cache(Board)


@pytest.fixture(params=[1, 2], ids=["one way", "two ways"])
def board(request):
    return shared_board(request.param)


@pytest.fixture
def one_way():
    return shared_board(1)


def sampling(rng, top_k, temperature=None):
    temperature = float(rng.choice([0.1, 0.7, 1.0, 2.5])) if temperature is None else temperature
    return BoardSampling.of(temperature, top_k, int(rng.integers(0, 2**64, dtype=np.uint64)), vocab=1 << 20)


def check(board, steps, rng, top_ks, pause=0.0, golden=Step.token, temperature=None):
    tokens, expected = [], []
    for i, step in enumerate(steps):
        how = sampling(rng, int(top_ks[i % len(top_ks)]), temperature)
        tokens.append(board.draw(step, how, rng, pause))
        expected.append(golden(step, how))
    assert tokens == expected


KINDS = ["plain", "wide", "flat", "ties", "equal", "rising", "falling"]


@pytest.mark.parametrize("pause", [0.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_golden_model(board, kind, pause):
    rng = np.random.default_rng([SEED, KINDS.index(kind)])
    steps = [step(rng, int(rng.integers(1, 60)), kind) for _ in range(16)]
    check(board, steps, rng, [0, 1, 2, 40, 0, 3, 64, 17], pause)


def test_thousands_of_short_steps(one_way):
    rng = np.random.default_rng(SEED)
    steps = [step(rng, int(rng.integers(1, 8)), KINDS[i % len(KINDS)]) for i in range(2000)]
    check(one_way, steps, rng, [0, 3, 0, 1, 64])


def test_strips_may_come_in_any_order(board):
    rng = np.random.default_rng(SEED)
    steps = [shuffled(step(rng, 40, kind), rng) for kind in ("plain", "ties", "flat", "equal") * 4]
    check(board, steps, rng, [0, 7, 33, 64, 20])


@pytest.mark.slow
def test_full_size_core_and_vocabulary():
    config = core_config("64x16")
    board, rng = Board(config=config), np.random.default_rng(SEED)
    for kind in ("plain", "ties", "falling"):
        each = step(rng, 3142, kind, config.lanes)
        each.mask[-1] = np.arange(config.lanes) < 50257 % config.lanes
        for top_k in (0, 40, 64):
            how = sampling(rng, top_k)
            assert board.draw(each, how, rng, spacing=15) == each.token(how)
            assert board.token_at == token_time(board, each, top_k)


def test_every_top_k_with_many_ties(one_way):
    rng = np.random.default_rng(SEED)
    steps = [step(rng, 30, "ties") for _ in range(TOP_K_LIMIT)]
    check(one_way, steps, rng, range(1, TOP_K_LIMIT + 1), temperature=16.0)  # nearly flat: any of the list may win


def test_top_k_above_the_number_of_logits(one_way):
    rng = np.random.default_rng(SEED)
    check(one_way, [step(rng, strips, "flat") for strips in range(1, 16)], rng, [64, 5, 30])


@pytest.mark.parametrize(
    "golden",
    [
        lambda step, how: step.token(how, position_error=1),
        lambda step, how: step.token(dataclasses.replace(how, seed=how.seed ^ 1)),
        lambda step, how: step.token(dataclasses.replace(how, top_k=how.top_k + 1)),
        lambda step, how: step.token(dataclasses.replace(how, inverse_exponent=how.inverse_exponent + 1)),
        lambda step, how: dataclasses.replace(step, values=-step.values).token(how),
    ],
    ids=["position", "seed", "top_k", "temperature", "logits"],
)
def test_twins_another_question_has_another_answer(one_way, golden):
    rng = np.random.default_rng(SEED)
    with pytest.raises(AssertionError):
        check(one_way, [step(rng, 30, "plain") for _ in range(40)], rng, [3], golden=golden)


FAULTY = {fault.name: fault for fault in SAMPLER_FAULTS if fault.module in ("hw.gpt2.sampler", *PARTS)}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_faulty_samplers_are_noticed(mutant, monkeypatch, name):
    fault = FAULTY[name]
    faulty = mutant(fault.module, fault.before, fault.after)
    make = faulty.get("Sampler", Sampler)
    if fault.module in PARTS:
        user, part = PARTS[fault.module]
        monkeypatch.setattr(f"{user}.{part}", faulty[part])
    board, rng = Board(make=make), np.random.default_rng(SEED)
    steps = [step(rng, int(rng.integers(1, 60)), kind) for kind in KINDS * 3]
    top_ks = [0, 1, 2, 40, 0, 3, 64, 17]
    if fault.equivalent:
        check(board, steps, rng, top_ks)
        return
    with pytest.raises(AssertionError):
        check(board, steps, rng, top_ks)


def tied_step(how, position, strips):
    """(step, lower id, higher id, logits that differ): two tokens of exactly the same score, and all others far below.

    Two Gumbel numbers whose distance is a number of fp32: the token with the smaller one has it as its logit.
    """
    ids = np.arange(strips * LANES, dtype=np.uint64)
    row = splitmix(int(splitmix(how.seed, np.array([1], np.uint64))[0]), np.array([position], np.uint64))
    numbers = gumbel_fixed(splitmix(int(row[0]), ids + np.uint64(1))) >> 3  # units of 2**-40
    order = np.argsort(numbers)
    gaps = np.diff(numbers[order])
    at = int(np.flatnonzero((gaps > 0) & (gaps < 1 << 23))[0])
    smaller, larger = int(order[at]), int(order[at + 1])
    values = np.full((strips, LANES), -1000, np.float32)
    values.ravel()[larger] = 0
    values.ravel()[smaller] = np.float32(gaps[at] * 2.0**-40)
    step = Step(values, np.ones(values.shape, bool), np.arange(strips), position)
    return step, smaller, larger


@pytest.mark.parametrize("top_k", [0, 2])
def test_equal_scores_go_to_the_lower_id(board, top_k):
    rng = np.random.default_rng(SEED)
    seen = set()
    for position in range(1, 9):
        how = sampling(rng, top_k, temperature=1.0)
        step, smaller, larger = tied_step(how, position, 400)
        assert board.draw(step, how, rng) == step.token(how) == min(smaller, larger)
        value = step.values.ravel()[smaller]
        for direction, winner in ((-np.inf, larger), (np.inf, smaller)):  # 2**-40 or more apart
            step.values.ravel()[smaller] = np.float32(value + np.sign(direction) * max(2.0**-40, np.spacing(value)))
            assert board.draw(step, how, rng) == step.token(how) == winner
        seen.add(smaller < larger)
    assert seen == {False, True}


def test_huge_logits_are_limited(one_way):
    rng = np.random.default_rng(SEED)
    steps = [step(rng, 12, "wide") for _ in range(20)]
    for each in steps:
        each.values *= np.float32(1e30)
    check(one_way, steps, rng, [0, 9], temperature=2.0**-16)


def test_nan_ends_the_step_and_is_then_forgotten(board):
    rng = np.random.default_rng(SEED)
    for top_k in (0, 5, 64):
        how = sampling(rng, top_k)
        bad, clean = step(rng, 20), step(rng, 20)
        for value in (np.nan, np.inf, -np.inf):
            bad.values[rng.integers(20), 0] = value
            assert board.draw(bad, how, rng) is None and bad.token(how) is None
            assert board.draw(clean, how, rng) == clean.token(how)
            bad.values[~np.isfinite(bad.values) & bad.mask] = 0


def test_a_full_queue_holds_the_sender_back(board):
    rng = np.random.default_rng(SEED)
    for top_k, kind in ((0, "plain"), (64, "rising")):
        before = board.waits
        check(board, [step(rng, 200, kind) for _ in range(3)], rng, [top_k])
        assert board.waits > before


def test_twin_a_sender_that_takes_more_room_loses_strips():
    rng = np.random.default_rng(SEED)
    hasty = Board(margin=DEPTH + 4)
    with pytest.raises(AssertionError, match="a strip was lost"):
        check(hasty, [step(rng, 200)], rng, [0])


def test_disabled_does_nothing(one_way):
    rng = np.random.default_rng(SEED)
    quiet = step(rng, 4)
    strips = [(quiet.values[i].view(np.uint32), 15, i, i == 3) for i in range(4)] + [None] * 400
    out = one_way.cycles(sampling(rng, 0), 1, strips, enable=0)
    assert not (out["token_valid"] | out["nan"] | out["busy"]).any() and out["ready_soon"].all()
    check(one_way, [step(rng, 9)], rng, [0])


def token_time(board, step, top_k):
    """Rule of docs/sampling.md, section 5, from the arrivals alone."""
    merge = board.ways.bit_length() - 1
    if top_k:
        return board.arrivals[-1] + HOLD + 34 + top_k + merge
    free = board.arrivals[0] + 23
    for arrival, mask in zip(board.arrivals, step.mask, strict=True):
        free = max(free, arrival + 3) + max(1, *(mask[w :: board.ways].sum() for w in range(board.ways)))
    return free + 33 + merge


@pytest.mark.parametrize("spacing, pause", [(0, 0.0), (0, 0.5), (1, 0.0), (3, 0.0), (3, 0.6)])
def test_the_time_of_a_token_over_all_logits(board, spacing, pause):
    rng = np.random.default_rng(SEED)
    for kind in KINDS:
        each = step(rng, int(rng.integers(1, 60)), kind)
        each.mask[:-1] = rng.random(each.mask[:-1].shape) < 0.7  # padding inside
        board.draw(each, sampling(rng, 0), rng, pause, spacing)
        assert board.token_at == token_time(board, each, 0), kind


@pytest.mark.parametrize("top_k", [1, 40, 64])
def test_the_time_of_a_token_of_the_largest_logits(board, top_k):
    rng = np.random.default_rng(SEED)
    for kind in KINDS:
        each = step(rng, 60, kind)
        board.draw(each, sampling(rng, top_k), rng, spacing=3)
        assert board.token_at == token_time(board, each, top_k), kind
    hurried = step(rng, 60, "rising")
    board.draw(hurried, sampling(rng, top_k), rng)  # every token passes, and the queue is full at the end
    assert board.token_at > token_time(board, hurried, top_k)


def test_refuses_sizes(monkeypatch):
    for part in (Sampler, SamplerQueue):  # Amaranth warns of components that are never used
        monkeypatch.setattr(part, "_MustUse__silence", True)
    with pytest.raises(ValueError, match=r"ways must be a power of two, 1 to lanes \(4\), got 3"):
        Sampler(CONFIG, ways=3)
    with pytest.raises(ValueError, match="margin 1 to depth, got depth 8, margin 9"):
        Sampler(CONFIG, depth=8, margin=9)
    gc.collect()
