"""The compiled program, read word by word as docs/core.md says and evaluated in float64, gives the model's logits.

The evaluator below shares nothing with the compiler, the golden models or the functional executor.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from host.compiler import compile_model
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.isa import Access, AccessKind, Instruction, Op, Params
from hw.gpt2.isa import Path as DrainPath
from sw.models.gpt2 import GPT2, GPT2Config
from sw.train.save import save_model

SEED = 20240611


def _small(**sizes: int) -> CoreConfig:
    """A 16x4 core with some memories changed."""
    return dataclasses.replace(core_config("16x4"), **sizes)


class Evaluator:
    """Runs a program's instructions on float64; one position a call."""

    def __init__(self, program: Program, image: MemoryImage) -> None:
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

    def step(self, tokens: list[int], position: int, decode: bool) -> np.ndarray | None:
        self.pointer = self.registers["weight_base"]
        self.strips = np.full((self.core.strip_addresses, self.lanes), np.nan)
        self.acc = np.full((self.core.acc_depth, self.lanes), np.nan)
        self.param = np.full((self.core.param_depth, 2, self.lanes), np.nan)
        self.norm: dict[int, tuple[float, float]] = {}
        self.probabilities: dict[int, np.ndarray] = {}
        self.logits: np.ndarray | None = None
        self.position, self.token = position, tokens[position]
        index, body, layers = 0, range(0), 0
        while self.instructions[index].op != Op.NEXT:
            instruction = self.instructions[index]
            if instruction.op == Op.LOOP:
                body, layers = range(index + 1, index + 1 + instruction.words), instruction.strips
                for layer in range(layers):
                    for inner in body:
                        self.run(self.instructions[inner], layer)
                index = body.stop
                continue
            if decode or not instruction.decode_only:
                self.run(instruction, 0)
            index += 1
        return self.logits

    def run(self, instruction: Instruction, layer: int) -> None:
        {Op.MM: self.product, Op.EMB: self.embed, Op.SC: self.scores, Op.AV: self.average}[instruction.op](
            instruction, layer
        )

    def word(self, index: int) -> np.ndarray:
        per_word = self.tile // self.lanes
        return self.strips[index * per_word : (index + 1) * per_word].reshape(-1)

    def product(self, i: Instruction, layer: int) -> None:
        results = []
        for g0 in range(0, i.strips, i.group):
            for w in range(i.words):
                x = self.word(i.src + w)
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
                    slot = (i.acc + s) % self.core.param_depth
                    if i.first and w == 0:
                        total = total + (self.param[slot, 0] if i.params == Params.BIAS else 0)
                    else:
                        total = total + self.acc[i.acc + s - g0]
                    self.acc[i.acc + s - g0] = total
                    if i.last and w == i.words - 1:
                        results.append(self.drain(i, s, self.acc[i.acc + s - g0], self.param[slot]))
        if i.last:
            self.finish(i, results, layer)

    def embed(self, i: Instruction, layer: int) -> None:
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
            self.finish(i, results, layer)

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

    def finish(self, i: Instruction, results: list[np.ndarray], layer: int) -> None:
        if i.path == DrainPath.LOGITS:
            self.logits = np.concatenate(results)
            return
        self.strips[i.dst : i.dst + i.strips] = results
        if i.stats:
            x = np.concatenate(results)[: self.registers["width"]]
            d = len(x)
            eps = self.registers["eps_term"] / (d * d * 2.0**48)
            self.norm[i.stats_set] = (1 / math.sqrt(x.var() + eps), x.mean())
        for name, kind, base, size in (
            ("keys", 1, self.core.new_key_base, self.registers["key_words"] * self.tile // self.lanes),
            ("values", 2, self.core.new_value_base, self.registers["value_strips"]),
        ):
            if i.commit == kind:
                for head in range(self.registers["heads"]):
                    part = self.strips[base + head * size : base + (head + 1) * size].reshape(-1)
                    getattr(self, name).setdefault((layer, head), []).append(part.copy())

    def scores(self, i: Instruction, layer: int) -> None:
        scale = np.uint32(self.registers["score_scale"]).view(np.float32)
        size = (self.registers["key_words"] - 1) * self.tile + i.tail
        for j in range(i.heads):
            first = i.src + j * self.registers["key_words"]
            q = np.concatenate([self.word(first + w) for w in range(self.registers["key_words"])])[:size]
            values = np.array([key[:size] @ q for key in self.keys[layer, i.head0 + j]]) * scale
            weights = np.exp(values - values.max())
            self.probabilities[i.prob + j * i.prob_stride] = weights / weights.sum()

    def average(self, i: Instruction, layer: int) -> None:
        strips = self.registers["value_strips"]
        for j in range(i.heads):
            p = self.probabilities[i.prob + j * i.prob_stride]
            mixed = p @ np.array(self.values[layer, i.head0 + j])
            self.strips[i.dst + j * strips : i.dst + (j + 1) * strips] = mixed.reshape(strips, self.lanes)


def _random_model(folder: Path, seed: int = SEED, **sizes: int) -> GPT2:
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


BASE = {"n_layer": 1, "n_head": 2, "n_embd": 48, "n_positions": 20, "vocab_size": 50}
CASES = {  # changes of the model, core, context (0: the model's)
    "three heads of 16, width 48": ({"n_layer": 2, "n_head": 3, "vocab_size": 97}, core_config("16x4"), 0),
    "heads of 12 leave a tail": ({"n_layer": 2, "n_head": 3, "n_embd": 36, "n_inner": 50}, core_config("16x4"), 0),
    "heads of 32, two words a key": ({"n_embd": 64, "n_positions": 33, "vocab_size": 64}, core_config("16x4"), 0),
    "64x16": ({"n_layer": 2, "n_head": 3, "vocab_size": 97}, core_config("64x16"), 0),
    "V not split, embedding not in one": ({}, _small(acc_depth=8, param_depth=8), 0),
    "two passes of heads": ({"n_head": 3}, _small(prob_words=5), 0),
    "one word: V whole": ({"n_embd": 8, "n_positions": 16, "vocab_size": 33}, core_config("16x4"), 0),
    "short cache": ({"n_embd": 32, "n_positions": 64, "vocab_size": 64}, core_config("16x4"), 9),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_of_the_program_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    sizes, core, context = CASES[name]
    model = _random_model(tmp_path, **{**BASE, **sizes})
    program, image = compile_model(tmp_path, core, tmp_path / "out", context=context or None)
    tokens, got, want = _both(model, program, image)
    print(f"seed {SEED}, tokens {tokens}, largest error {np.abs(got - want).max():.2e} of {np.abs(want).max():.1f}")
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


def _both(model: GPT2, program: Program, image: MemoryImage) -> tuple[list[int], np.ndarray, np.ndarray]:
    count = min(program.registers["context_limit"], 19)
    tokens = np.random.default_rng(SEED).integers(0, model.config.vocab_size, count).tolist()
    evaluator = Evaluator(program, image)
    logits = [evaluator.step(tokens, position, decode=position >= 2) for position in range(count)]
    assert all(row is None for row in logits[:2])
    with torch.no_grad():
        want = model.double()(torch.tensor([tokens]))[0, 2:].numpy()
    return tokens, np.stack(logits[2:])[:, : model.config.vocab_size], want


@pytest.mark.parametrize("row", ["weights", "parameters", "position", "token"])
def test_twin_one_changed_row_shows(row: str, tmp_path: Path) -> None:
    model = _random_model(tmp_path, n_layer=1, n_head=2, n_embd=32, n_positions=32, vocab_size=64)
    program, image = compile_model(tmp_path, core_config("16x4"), tmp_path / "out")
    tokens, good, _ = _both(model, program, image)
    port = program.core.port_bytes
    place = {
        "weights": 3,  # a tile of the keys
        "parameters": 0,  # b' of the keys
        "position": program.registers["position_base"],
        "token": program.registers["token_base"] + (tokens[4] // 16) * program.registers["embed_strips"],
    }[row]
    data = bytearray(image.files[0].read_bytes())
    element = tokens[4] % 16 if row == "token" else 3
    data[place * port + 2 * element + 1] ^= 0x44
    image.files[0].write_bytes(data)
    _, bad, _ = _both(model, program, image)
    assert np.abs(bad - good).max() > 1e-4
