"""A random model for several boards: vectors, products between them and their weights, whatever the boards are.

The boards' programs (:mod:`sim.programs.ring_program`) compute slices of these products, so one model can be cut
into any number of boards, one too.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
from numpy.typing import NDArray

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Params, Path

from .program_builder import Shape

__all__ = ["Product", "RingModel", "Vector", "ring_model"]

_INT8_MAX = 127


@dataclasses.dataclass(frozen=True)
class Vector:
    """Strips that stand at the same strip address on all boards; ``shared``: each board computes a slice of them."""

    name: str
    word: int
    strips: int
    shared: bool


@dataclasses.dataclass(frozen=True)
class Product:
    """One product between vectors.

    ``target`` is a vector or "keys", "queries", "values", "logits"; ``stats_set`` is the scalar set that the results'
    statistics go to, or None.
    """

    name: str
    source: str
    target: str
    params: Params
    path: Path = Path.PLAIN
    norm: int = 0
    stats_set: int | None = None


@dataclasses.dataclass(frozen=True)
class RingModel:
    """All that boards have in common.

    Attributes
    ----------
    vectors : dict
        By name: ``x`` (at word 0), ``attention``, ``inner0``, ..., ``local``, ``queries``. The last two are not shared.
    before, layer, after : tuple of Product
        In order of execution. A layer begins with products to keys, queries and values; attention itself follows them.
    head : Product
    vocab : int
    exact : bool
        Sums over a vector have one term, so results do not depend on the order of words and on the number of boards.
    """

    config: CoreConfig
    seed: int
    shape: Shape
    vectors: dict[str, Vector]
    before: tuple[Product, ...]
    layer: tuple[Product, ...]
    after: tuple[Product, ...]
    head: Product
    vocab: int
    first_set: int
    ties: bool
    exact: bool

    def columns(self, product: Product) -> int:
        """Columns of a product's matrix over all boards."""
        shape, c = self.shape, self.config
        sizes = {
            "keys": shape.heads * shape.key_words * c.tile,
            "queries": shape.heads * shape.key_words * c.tile,
            "values": shape.heads * shape.value_strips * c.lanes,
            "logits": self.vocab,
        }
        if product.target in self.vectors and product.target != "queries":
            return self.vectors[product.target].strips * c.lanes
        return sizes[product.target]

    def weights(self, product: Product, layer: int) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
        """Matrix (elements of the source, columns) and parameters (2, columns): bias or b', column sums."""
        rows, columns = self.vectors[product.source].strips * self.config.lanes, self.columns(product)
        rng = np.random.default_rng([self.seed, layer, *product.name.encode()])
        params = (rng.standard_normal((2, columns)) * 0.5).astype(np.float32)
        few = product.target == "logits" and self.ties
        if not (self.exact or few):
            return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float16), params
        matrix = np.zeros((rows, columns), np.float16)
        matrix[rng.integers(rows, size=columns), np.arange(columns)] = rng.choice([-1, -0.5, 0.5, 1], columns)
        if few:  # columns of a few kinds: equal logits on several boards
            kind = rng.integers(min(3, columns), size=columns)
            matrix, params = matrix[:, kind], params[:, kind]
        return matrix, params

    def int8_weights(self, product: Product, layer: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """Matrix and parameters (3, columns) for int8 weights: scales, what sums start from or b', column sums."""
        matrix, params = self.weights(product, layer)
        scales = np.abs(matrix).max(axis=0).astype(np.float32) / np.float32(_INT8_MAX)
        scales[scales == 0] = 1
        start = params[0] / scales if product.params == Params.BIAS else params[0]
        return np.rint(matrix / scales).astype(np.int8), np.stack([scales, start, params[1]])


def ring_model(seed: int, config: CoreConfig, boards: int, exact: bool = False) -> RingModel:
    """The model of a seed, large enough to be cut into ``boards`` boards."""
    rng = random.Random(f"model {seed} {boards}")
    s, pair = config.strips_per_word, config.mm_strips
    heads = rng.randint(boards, boards + 3)
    shape = Shape(
        layers=rng.randint(1, 3),
        heads=heads,
        key_words=rng.randint(1, max(1, min(2, config.new_key_words // heads))),
        value_strips=rng.randint(1, max(1, min(s + 1, config.new_value_strips // heads))),
        width=0,
        vector_strips=pair * rng.randint(max(boards, s), boards + 3 * s),
        context_limit=rng.randint(10, min(40, config.context)),
    )
    shape = dataclasses.replace(shape, width=shape.vector_strips * config.lanes)
    sizes = {"x": shape.vector_strips, "attention": heads * shape.value_strips}
    sizes |= {f"inner{i}": pair * rng.randint(boards, boards + 4 * s) for i in range(2)}
    sizes["local"] = pair * rng.randint(1, 2 * s)
    sizes["queries"] = heads * shape.key_words * s
    vectors, word = {}, 0
    for name, strips in sizes.items():
        vectors[name] = Vector(name, word, strips, name not in ("local", "queries"))
        word += -(-strips // s)
    products = _Products(rng)
    first_set, entry_set = rng.randint(0, 1), rng.randint(0, 1)
    before = products.detour(first_set, entry_set) if rng.random() < 0.4 else ()
    if not before:
        first_set = entry_set
    layer = products.layer(entry_set)
    after = products.detour(entry_set, entry_set) if rng.random() < 0.3 else ()
    head = Product("head", "x", "logits", Params.NORM, Path.LOGITS, norm=entry_set)
    vocab = rng.randint(boards * config.lanes, boards * config.lanes + 3 * config.tile)
    return RingModel(
        config, seed, shape, vectors, before, layer, after, head, vocab, first_set, rng.random() < 0.35, exact
    )


class _Products:
    """Random chains of products that begin and end with x; every statistics of x are used by the product behind."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0

    def _product(
        self, kind: str, source: str, target: str, norm: int | None, path: Path = Path.PLAIN, stats: int | None = None
    ) -> Product:
        self.count += 1
        name = f"{kind}{self.count}"
        if norm is None:
            params = self.rng.choice([Params.NONE, Params.BIAS])
            return Product(name, source, target, params, path, stats_set=stats)
        return Product(name, source, target, Params.NORM, path, norm, stats)

    def _x(self, source: str, stats_set: int | None) -> Product:
        path = Path.RESIDUAL if self.rng.random() < 0.8 else Path.PLAIN
        return self._product("x", source, "x", None, path, stats_set)

    def detour(self, have: int | None, leave: int | None) -> tuple[Product, ...]:
        """From x over one or two inner vectors back to x; ``have`` and ``leave``: scalar sets before and behind."""
        names = ["inner0", "inner1"]
        self.rng.shuffle(names)
        path = self.rng.choice([Path.PLAIN, Path.GELU, Path.GELU])
        chain = [self._product("inner", "x", names[0], have, path)]
        if self.rng.random() < 0.3:
            chain.append(self._product("inner", names[0], names[1], None, Path.GELU))
        return (*chain, self._x(chain[-1].target, leave))

    def layer(self, entry_set: int) -> tuple[Product, ...]:
        """Keys, queries, values from x or from a vector that every board computes whole; projection; detours."""
        local = [self._product("local", "x", "local", entry_set)] if self.rng.random() < 0.4 else []
        sources = ["x", *(["local"] if local else [])]
        chain = list(local)
        for target in ("keys", "queries", "values"):
            source = "x" if target == "keys" else self.rng.choice(sources)
            norm = entry_set if source == "x" and (target == "keys" or self.rng.random() < 0.8) else None
            chain.append(self._product(target, source, target, norm))
        detours = self.rng.randint(0, 2)
        other = 1 - entry_set if self.rng.random() < 0.7 else None
        chain.append(self._x("attention", other if detours else entry_set))
        for i in range(detours):
            last = i == detours - 1
            chain += self.detour(other, entry_set if last else other)
        return tuple(chain)
