"""One board's program of a ring model: its slices, random in everything that a compiler may choose."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Path

from .program_builder import paired
from .ring_model import Product, RingModel, Vector

__all__ = ["Slices", "Streamed", "board_program", "even_slices", "random_slices", "word_runs"]


@dataclasses.dataclass(frozen=True)
class Slices:
    """What each board has: heads, strips of every shared vector, columns of the vocabulary; one range a board."""

    heads: tuple[range, ...]
    vectors: dict[str, tuple[range, ...]]
    vocab: tuple[range, ...]

    @property
    def boards(self) -> int:
        """Number of boards."""
        return len(self.heads)


@dataclasses.dataclass(frozen=True)
class Streamed:
    """Weights of an MM: k words ``words`` of ``product``'s matrix, its columns ``columns``."""

    product: Product
    words: range
    columns: range


def even_slices(count: int, boards: int) -> tuple[range, ...]:
    """``count`` things in order, as evenly as they divide, the first boards one more."""
    ends = [(count * (b + 1) + boards - 1) // boards for b in range(boards)]
    return tuple(range(start, end) for start, end in zip([0, *ends], ends, strict=False))


def random_slices(count: int, boards: int, rng: random.Random) -> tuple[range, ...]:
    """``count`` things in order, at least one a board."""
    cuts = [0, *sorted(rng.sample(range(1, count), boards - 1)), count]
    return tuple(range(start, end) for start, end in itertools.pairwise(cuts))


def word_runs(vector: Vector, slices: tuple[range, ...], board: int, config: CoreConfig) -> list[range]:
    """Words of a gathered vector in order of arrival on a board (docs/ring.md, section 2), one range a slice."""
    s, boards = config.strips_per_word, len(slices)
    order = [board]
    for distance in range(1, boards):
        for other in ((board - distance) % boards, (board + distance) % boards):
            if other not in order:
                order.append(other)
    words: dict[int, list[int]] = {}
    for word in range(-(-vector.strips // s)):
        inside = range(word * s, min((word + 1) * s, vector.strips))
        owners = [b for b in order if slices[b].start < inside.stop and inside.start < slices[b].stop]
        words.setdefault(owners[-1], []).append(word)
    return [range(words[b][0], words[b][-1] + 1) for b in order if b in words]


def board_program(model: RingModel, slices: Slices, board: int) -> tuple[list[Instruction], list[Streamed | None]]:
    """Instructions, and for each what weights it streams."""
    writer = _Writer(model, slices, board)
    writer.program()
    return writer.code, writer.streamed


@dataclasses.dataclass
class _Open:
    """A product of which some runs are still to come."""

    product: Product
    runs: list[range]
    columns: range
    fields: dict[str, int]
    begun: bool = False

    @property
    def used(self) -> range:
        """Its accumulators, and slots of its parameters."""
        return range(self.fields["acc"], self.fields["acc"] + self.fields["strips"])


def _apart(a: range, b: range) -> bool:
    return a.stop <= b.start or b.stop <= a.start


class _Writer:
    def __init__(self, model: RingModel, slices: Slices, board: int) -> None:
        self.model, self.slices, self.board = model, slices, board
        self.config, self.shape = model.config, model.shape
        self.rng = random.Random(f"program {model.seed} {slices.boards} {board}")
        self.code: list[Instruction] = []
        self.streamed: list[Streamed | None] = []
        self.heads = len(slices.heads[board])
        self.open: list[_Open] = []

    def append(self, op: Op, **fields: int) -> None:
        """Append an instruction that streams no weights of products."""
        self.code.append(Instruction(op, **fields))
        self.streamed.append(None)

    def program(self) -> None:
        """The whole program."""
        self._embedding()
        for product in self.model.before:
            self._product(product)
        start = len(self.code)
        self.append(Op.LOOP, strips=self.shape.layers)
        self._layer()
        self.code[start] = dataclasses.replace(self.code[start], words=len(self.code) - start - 1)
        for product in self.model.after:
            self._product(product)
        self._head()
        self.append(Op.NEXT)

    def _embedding(self) -> None:
        strips, split = self.shape.vector_strips, self.rng.random() < 0.5
        group = strips if split else self.rng.randint(1, strips)
        both = {"words": 1, "tail": self.config.tile, "strips": strips, "group": group}
        path = Path.PLAIN if split else Path.RESIDUAL
        self.append(Op.EMB, operand=Operand.POSITION, last=int(not split), **both)
        self.append(
            Op.EMB,
            operand=Operand.TOKEN,
            first=int(not split),
            path=path,
            stats=1,
            stats_set=self.model.first_set,
            **both,
        )

    # Products

    def _runs(self, source: str) -> list[range]:
        """k words of a product in some order: at once, by slices as they arrive, or cut anyhow."""
        vector, rng = self.model.vectors[source], self.rng
        words = -(-vector.strips // self.config.strips_per_word)
        kind = rng.random()
        if kind < 0.2:
            return [range(words)]
        if kind < 0.8 and vector.shared:
            return word_runs(vector, self.slices.vectors[source], self.board, self.config)
        cuts = [0, *sorted(rng.sample(range(1, words), rng.randint(0, min(3, words - 1)))), words]
        runs = [range(start, end) for start, end in itertools.pairwise(cuts)]
        rng.shuffle(runs)
        return runs

    def _begin(self, product: Product, strips: int, dst: int, columns: range, **fields: int) -> _Open:
        """A product of this board that will be open until its last run is issued."""
        runs = self._runs(product.source)
        depth, block = self.config.acc_depth, self.config.param_strips
        pair = self.config.mm_strips

        def written(acc: int, strips: int) -> range:
            return range(acc, acc + -(-strips // block) * block)  # parameter rows are stored whole

        for _ in range(200):
            if sum(o.fields["strips"] for o in self.open) + strips > depth:
                break
            acc = self.rng.randrange(depth - strips + 1)
            acc -= acc % pair
            used, stored = range(acc, acc + strips), written(acc, strips)
            if all(
                _apart(stored, o.used) and (o.begun or _apart(used, written(o.used.start, len(o.used))))
                for o in self.open
            ):
                return self._opened(product, runs, columns, strips=strips, dst=dst, acc=acc, **fields)
        while self.open:  # no room: finish what is open
            self._run(self.open[0])
        if strips > depth:
            runs = [range(-(-self.model.vectors[product.source].strips // self.config.strips_per_word))]
        return self._opened(product, runs, columns, strips=strips, dst=dst, acc=0, **fields)

    def _opened(self, product: Product, runs: list[range], columns: range, **fields: int) -> _Open:
        begun = _Open(product, runs, columns, fields)
        self.open.append(begun)
        return begun

    def _run(self, at: _Open) -> None:
        """The next run of an open product."""
        c, vector = self.config, self.model.vectors[at.product.source]
        words = at.runs.pop(0)
        first, last = not at.begun, not at.runs
        at.begun = True
        strips, total = at.fields["strips"], -(-vector.strips // c.strips_per_word)
        group = strips
        if last:
            self.open.remove(at)
            most = min(strips, c.acc_depth - at.fields["acc"]) if first else strips
            group = paired(self.rng.choice([1, most, min(8, most), self.rng.randint(1, most)]), c)
        tail = vector.strips * c.lanes - (total - 1) * c.tile if words.stop == total else c.tile
        fields = dict(at.fields)
        if not last:
            for name in ("stats", "stats_set", "commit", "send"):
                fields.pop(name, None)
        self.append(
            Op.MM,
            first=int(first),
            last=int(last),
            params=at.product.params,
            path=at.product.path,
            norm=at.product.norm,
            src=vector.word + words.start,
            words=len(words),
            tail=tail,
            group=group,
            **fields,
        )
        self.streamed[-1] = Streamed(at.product, words, at.columns)

    def _gather(self, name: str) -> int:
        """GATHER of a vector; returns 1, the value of ``send``, or 0 on one board."""
        if self.slices.boards == 1:
            return 0
        vector, own = self.model.vectors[name], self.slices.vectors[name][self.board]
        dst = vector.word * self.config.strips_per_word
        self.append(Op.GATHER, dst=dst, strips=vector.strips, src=own.start, words=len(own))
        return 1

    def _product(self, product: Product) -> None:
        """A product to a vector, whole where every board needs it for itself; sometimes in two chunks."""
        c, vector = self.config, self.model.vectors[product.target]
        own = self.slices.vectors[product.target][self.board] if vector.shared else range(vector.strips)
        fields: dict[str, int] = {"send": int(vector.shared and self.slices.boards > 1)}
        if product.stats_set is not None:
            fields |= {"stats": 1, "stats_set": product.stats_set}
        cut = len(own)
        if product.stats_set is None and len(own) > c.param_strips and self.rng.random() < 0.5:
            cut = c.param_strips
        chunks = [own[:cut], own[cut:]] if cut < len(own) else [own]
        for number, chunk in enumerate(chunks):
            columns = range(chunk.start * c.lanes, chunk.stop * c.lanes)
            dst = vector.word * c.strips_per_word + chunk.start
            work = self._begin(product, len(chunk), dst, columns, **fields)
            gather_at = self.rng.choice([0, 0, len(work.runs) - 1])
            for run in range(len(work.runs)):
                if vector.shared and number == 0 and run == gather_at:
                    self._gather(product.target)
                self._run(work)

    # Attention

    def _layer(self) -> None:
        chain = list(self.model.layer)
        while chain[0].target == "local":
            self._product(chain.pop(0))
        keys, queries, values = (self._head_product(chain.pop(0)) for _ in range(3))
        together = self.rng.random() < 0.7
        begun: list[_Open] = []
        for begin in (keys, queries, values):
            begun.append(begin())
            if not together:
                while begun[-1].runs:
                    self._run(begun[-1])
            elif len(begun[-1].runs) > 1 and self.rng.random() < 0.8:
                self._run(begun[-1])
        while begun[0].runs or begun[1].runs:
            self._run(self.rng.choice([work for work in begun[:2] if work.runs]))
            if len(begun[2].runs) > 1 and self.rng.random() < 0.2:  # values are committed after keys
                self._run(begun[2])
        self._attention(begun[2])
        for product in chain:
            self._product(product)

    def _head_product(self, product: Product) -> Callable[[], _Open]:
        """What opens a product of this board's heads."""
        c, shape, own = self.config, self.shape, self.slices.heads[self.board]
        per_head = shape.value_strips if product.target == "values" else shape.key_words * c.strips_per_word
        dst, commit = {
            "keys": (c.new_key_base, Commit.KEYS),
            "queries": (self.model.vectors["queries"].word * c.strips_per_word, Commit.NONE),
            "values": (c.new_value_base, Commit.VALUES),
        }[product.target]
        columns = range(own.start * per_head * c.lanes, own.stop * per_head * c.lanes)
        strips = paired(self.heads * per_head, c)
        return lambda: self._begin(product, strips, dst, columns, commit=commit)

    def _attention(self, values: _Open) -> None:
        """Scores and averages in passes; the first scores may come before the values are complete."""
        c, shape, rng = self.config, self.shape, self.rng
        blocks = -(-shape.context_limit // c.tile)
        per_pass = rng.randint(1, self.heads)
        sent = None
        for head0 in range(0, self.heads, per_pass):
            heads = min(per_pass, self.heads - head0)
            stride = blocks + rng.randint(0, 2)
            prob = rng.randint(0, c.prob_words - (heads - 1) * stride - blocks)
            group = {"head0": head0, "heads": heads, "prob": prob, "prob_stride": stride}
            if rng.random() < 0.3:
                while values.runs:
                    self._run(values)
            q_word = self.model.vectors["queries"].word + head0 * shape.key_words
            tail = rng.choice([c.tile, rng.randint(1, c.tile)]) if not self.model.exact else c.tile
            self.append(Op.SC, src=q_word, tail=tail, acc=self._free(1), **group)
            while values.runs:
                self._run(values)
            if sent is None:
                sent = self._gather("attention")
            attention = self.model.vectors["attention"].word * c.strips_per_word
            dst = attention + (self.slices.heads[self.board].start + head0) * shape.value_strips
            self.append(Op.AV, dst=dst, acc=self._free(shape.value_strips), send=sent, **group)

    def _free(self, count: int) -> int:
        """First of some accumulators that no open product uses."""
        depth = self.config.acc_depth - count + 1
        return self.rng.choice([a for a in range(depth) if all(_apart(range(a, a + count), o.used) for o in self.open)])

    def _head(self) -> None:
        """LOGITS of this board's columns, in one or two products."""
        c, own = self.config, self.slices.vocab[self.board]
        strips = paired(-(-len(own) // c.lanes), c)
        cut = self.rng.choice([0, self.rng.randint(0, strips - 1)])
        cut -= cut % c.mm_strips
        for part in (range(cut), range(cut, strips)):
            if not part:
                continue
            columns = range(own.start + part.start * c.lanes, min(own.start + part.stop * c.lanes, own.stop))
            commit = Commit.TOKEN if part.stop == strips else Commit.NONE
            work = self._begin(self.model.head, len(part), part.start, columns, decode_only=1, commit=commit)
            while work.runs:
                self._run(work)
