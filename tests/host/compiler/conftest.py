"""What several compiler tests need: random models, and programs evaluated in float64 word by word as the contracts say.

The evaluator shares nothing with the compiler, the golden models or the functional executor.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from hw.board.program import MemoryImage, Program
from hw.gpt2.isa import Access, AccessKind, Instruction, Op, Params
from hw.gpt2.isa import Path as DrainPath
from sw.models.gpt2 import GPT2, GPT2Config
from sw.train.save import save_model

SEED = 20240611


class Exchange:
    """What the boards of a ring send each other: strips by address in the order of sending, and sums."""

    def __init__(self, boards: int) -> None:
        self.boards = boards
        self.strips: list[dict[int, deque[np.ndarray]]] = [{} for _ in range(boards)]  # by receiver
        self.sums: list[list[np.ndarray]] = [[] for _ in range(boards)]  # by board: (sum x, sum x^2) of each vector

    def send(self, board: int, address: int, strip: np.ndarray) -> None:
        for receiver, mail in enumerate(self.strips):
            if receiver != board:
                mail.setdefault(address, deque()).append(strip.copy())


class Evaluator:
    """Runs a board's instructions on float64; one position a call. It yields whenever it waits for another board."""

    def __init__(self, program: Program, image: MemoryImage, exchange: Exchange) -> None:
        self.board, self.exchange = program.board, exchange
        core = self.core = program.core
        self.registers = program.registers
        self.instructions = [Instruction.decode(word) for word in program.instructions]
        self.accesses = [Access.decode(word) for word in program.descriptors]
        self.lanes, self.tile = core.lanes, core.tile
        per_lane = core.channels // core.lanes
        files = [np.fromfile(path, np.uint16).reshape(-1, core.port_bytes // 2) for path in image.files]
        lanes = [np.concatenate([files[n * per_lane + j] for j in range(per_lane)], axis=1) for n in range(core.lanes)]
        self.rows = np.stack(lanes, axis=1)  # [row, lane, T]
        self.keys: dict[tuple[int, int], list[np.ndarray]] = {}
        self.values: dict[tuple[int, int], list[np.ndarray]] = {}

    def weights(self, row: int) -> np.ndarray:
        return self.rows[row].view(np.float16).astype(np.float64)

    def parameters(self, row: int) -> np.ndarray:
        return np.ascontiguousarray(self.rows[row]).view(np.float32).astype(np.float64)

    def step(self, tokens: list[int], position: int, decode: bool) -> Iterator[None]:
        self.pointer = self.registers["weight_base"]
        self.strips = np.full((self.core.strip_addresses, self.lanes), np.nan)
        self.acc = np.full((self.core.acc_depth, self.lanes), np.nan)
        self.param = np.full((self.core.param_depth, 2, self.lanes), np.nan)
        self.norm: dict[int, tuple[float, float]] = {}
        self.probabilities: dict[int, np.ndarray] = {}
        self.logits: list[np.ndarray] = []
        self.pending: set[int] = set()  # strips of other boards that are announced and not taken
        self.position, self.token = position, tokens[position]
        index, body, layers = 0, range(0), 0
        while self.instructions[index].op != Op.NEXT:
            instruction = self.instructions[index]
            if instruction.op == Op.LOOP:
                body, layers = range(index + 1, index + 1 + instruction.words), instruction.strips
                for layer in range(layers):
                    for inner in body:
                        yield from self.run(self.instructions[inner], layer)
                index = body.stop
                continue
            if decode or not instruction.decode_only:
                yield from self.run(instruction, 0)
            index += 1
        for address in sorted(self.pending):  # what nobody needs any more in this step
            yield from self.take(address)

    def run(self, instruction: Instruction, layer: int) -> Iterator[None]:
        return {
            Op.MM: self.product,
            Op.EMB: self.embed,
            Op.SC: self.scores,
            Op.AV: self.average,
            Op.GATHER: self.gather,
        }[instruction.op](instruction, layer)

    def gather(self, i: Instruction, layer: int) -> Iterator[None]:
        own = range(i.dst + i.src, i.dst + i.src + i.words)
        for address in range(i.dst, i.dst + i.strips):
            if address in self.pending:
                yield from self.take(address)
            if address not in own:
                self.pending.add(address)

    def take(self, address: int) -> Iterator[None]:
        mail = self.exchange.strips[self.board].setdefault(address, deque())
        while not mail:
            yield
        self.strips[address] = mail.popleft()
        self.pending.discard(address)

    def word(self, index: int) -> Iterator[None]:
        per_word = self.tile // self.lanes
        for address in range(index * per_word, (index + 1) * per_word):
            if address in self.pending:
                yield from self.take(address)
        return self.strips[index * per_word : (index + 1) * per_word].reshape(-1)

    def product(self, i: Instruction, layer: int) -> Iterator[None]:
        results = []
        split = not (i.first and i.last)
        for g0 in range(0, i.strips, i.group):
            for w in range(i.words):
                x = yield from self.word(i.src + w)
                if w == i.words - 1:
                    x = np.where(np.arange(self.tile) < i.tail, x, 0)
                for s in range(g0, min(g0 + i.group, i.strips)):
                    if i.first and w == 0 and i.params and s % (self.tile // 2) == 0:
                        for kind in range(2 if i.params == Params.NORM else 1):
                            block = self.parameters(self.pointer)
                            self.pointer += 1
                            for k in range(self.tile // 2):
                                self.param[(i.acc + s + k) % self.core.param_depth, kind] = block[:, k]
                    total = self.weights(self.pointer) @ x
                    self.pointer += 1
                    slot, acc = (i.acc + s) % self.core.param_depth, i.acc + (s if split else s - g0)
                    if i.first and w == 0:
                        total = total + (self.param[slot, 0] if i.params == Params.BIAS else 0)
                    else:
                        total = total + self.acc[acc]
                    self.acc[acc] = total
                    if i.last and w == i.words - 1:
                        results.append(self.drain(i, s, self.acc[acc], self.param[slot].copy()))
        if i.last:
            yield from self.finish(i, results, layer)

    def embed(self, i: Instruction, layer: int) -> Iterator[None]:
        access = [a for a in self.accesses if a.kind == AccessKind.EMBED][self.instructions.index(i)]
        index, base = (self.token, "token_base") if i.operand else (self.position, "position_base")
        assert access.operand == i.operand and access.count == i.strips and access.offset == i.src
        row = self.registers[base] + (index // self.tile) * self.registers["embed_strips"] + access.offset
        results = []
        for s in range(i.strips):
            picked = self.weights(row + s)[:, index % self.tile]
            acc = i.acc + s % i.group
            self.acc[acc] = picked if i.first else self.acc[acc] + picked
            if i.last:
                results.append(self.drain(i, s, self.acc[acc], None))
        if i.last:
            yield from self.finish(i, results, layer)

    def drain(self, i: Instruction, s: int, acc: np.ndarray, param: np.ndarray | None) -> np.ndarray:
        y = acc.copy()
        if i.params == Params.NORM:
            r, mean = self.norm[i.norm]
            y = r * acc + (param[0] - r * mean * param[1])
        if i.path == DrainPath.RESIDUAL:
            y = y + self.strips[i.dst + s]
        if i.path == DrainPath.GELU:
            y = np.array([0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in y])
        return y

    def finish(self, i: Instruction, results: list[np.ndarray], layer: int) -> Iterator[None]:
        if i.path == DrainPath.LOGITS:
            assert i.dst == sum(len(part) for part in self.logits) // self.lanes
            self.logits.append(np.concatenate(results))
            return
        assert not self.pending.intersection(range(i.dst, i.dst + i.strips))
        self.strips[i.dst : i.dst + i.strips] = results
        if i.send:
            for s, strip in enumerate(results):
                self.exchange.send(self.board, i.dst + s, strip)
        if i.stats:
            d = self.registers["width"]
            x = np.concatenate(results)[: d - i.dst * self.lanes]
            sums = np.array([x.sum(), (x * x).sum(), len(x)])
            if i.send:
                self.exchange.sums[self.board].append(sums)
                turn = len(self.exchange.sums[self.board]) - 1
                while any(len(of_board) <= turn for of_board in self.exchange.sums):
                    yield
                sums = np.sum([of_board[turn] for of_board in self.exchange.sums], axis=0)
            assert sums[2] == d
            mean, variance = sums[0] / d, sums[1] / d - (sums[0] / d) ** 2
            eps = self.registers["eps_term"] / (d * d * 2.0**48)
            self.norm[i.stats_set] = (1 / math.sqrt(variance + eps), mean)
        for name, kind, base, size in (
            ("keys", 1, self.core.new_key_base, self.registers["key_words"] * self.tile // self.lanes),
            ("values", 2, self.core.new_value_base, self.registers["value_strips"]),
        ):
            if i.commit == kind:
                for head in range(self.registers["heads"]):
                    part = self.strips[base + head * size : base + (head + 1) * size].reshape(-1)
                    getattr(self, name).setdefault((layer, head), []).append(part.copy())

    def scores(self, i: Instruction, layer: int) -> Iterator[None]:
        scale = np.uint32(self.registers["score_scale"]).view(np.float32)
        size = (self.registers["key_words"] - 1) * self.tile + i.tail
        for j in range(i.heads):
            first = i.src + j * self.registers["key_words"]
            words = []
            for w in range(self.registers["key_words"]):
                words.append((yield from self.word(first + w)))
            q = np.concatenate(words)[:size]
            values = np.array([key[:size] @ q for key in self.keys[layer, i.head0 + j]]) * scale
            weights = np.exp(values - values.max())
            self.probabilities[i.prob + j * i.prob_stride] = weights / weights.sum()

    def average(self, i: Instruction, layer: int) -> Iterator[None]:
        strips = self.registers["value_strips"]
        for j in range(i.heads):
            p = self.probabilities[i.prob + j * i.prob_stride]
            mixed = p @ np.array(self.values[layer, i.head0 + j])
            for s, strip in enumerate(mixed.reshape(strips, self.lanes)):
                address = i.dst + j * strips + s
                assert address not in self.pending
                self.strips[address] = strip
                if i.send:
                    self.exchange.send(self.board, address, strip)
        yield from ()


def _saved(folder: Path, seed: int = SEED, **sizes: int) -> GPT2:
    """A random GPT-2 with lively biases and LayerNorms, saved to `folder` and read back (so rounded to fp16)."""
    torch.manual_seed(seed)
    model = GPT2(GPT2Config(**sizes))
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.dim() == 1:
                centre = 1.0 if "ln_" in name and "weight" in name else 0.0
                parameter.copy_(torch.randn_like(parameter) * 0.3 + centre)
            else:
                parameter.mul_(8)
    save_model(model, folder)
    return GPT2.from_directory(folder)


def _together(evaluators: Sequence[Evaluator], tokens: list[int], position: int, decode: bool) -> None:
    """One position on all boards; boards run in turn until all are through."""
    running = {e.board: e.step(tokens, position, decode) for e in evaluators}
    turns = 0
    while running:
        for board in sorted(running):
            if next(running[board], "through") == "through":
                del running[board]
        turns += 1
        assert turns < 10_000, "the boards wait for each other"


@pytest.fixture
def random_model() -> Callable[..., GPT2]:
    """Takes a folder and sizes; saves a random GPT-2 there and returns it."""
    return _saved


def _logits_of(boards: Sequence[tuple[Program, MemoryImage]], tokens: list[int], first_decode: int) -> np.ndarray:
    """Logits [decode steps, vocabulary] of a program and image for every board."""
    exchange = Exchange(len(boards))
    evaluators = [Evaluator(program, image, exchange) for program, image in boards]
    rows = []
    for position in range(len(tokens)):
        decode = position >= first_decode
        _together(evaluators, tokens, position, decode)
        assert decode or not any(e.logits for e in evaluators)
        assert not any(any(mail.values()) for mail in exchange.strips), "strips that no board took"
        if decode:
            parts = [np.concatenate(e.logits)[: e.registers["vocab"]] for e in evaluators]
            offsets = [e.registers.get("token_offset", 0) for e in evaluators]
            assert offsets == [sum(map(len, parts[:board])) for board in range(len(parts))]
            rows.append(np.concatenate(parts))
    return np.stack(rows)


Both = Callable[[GPT2, Sequence[tuple[Program, MemoryImage]]], tuple[list[int], np.ndarray, np.ndarray]]


@pytest.fixture
def both() -> Both:
    """Takes a model and (program, image) of every board; returns tokens, logits of the programs, logits of the model.

    The first two positions are prompt steps and have no logits.
    """

    def evaluate(
        model: GPT2, boards: Sequence[tuple[Program, MemoryImage]]
    ) -> tuple[list[int], np.ndarray, np.ndarray]:
        count = min(boards[0][0].registers["context_limit"], 19 if len(boards) == 1 else 9)
        tokens = np.random.default_rng(SEED).integers(0, model.config.vocab_size, count).tolist()
        got = _logits_of(boards, tokens, 2)
        with torch.no_grad():
            want = model.double()(torch.tensor([tokens]))[0, 2:].numpy()
        return tokens, got, want

    return evaluate
