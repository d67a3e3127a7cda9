"""Short runs of instructions that contain one wanted dependency at a wanted distance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hw.gpt2.isa import Params, Path

from .hazards import DISTANCES, Cell
from .program_builder import ProgramBuilder, Region

__all__ = ["append_snippet", "layer_plan", "needs_attention", "needs_plan", "spans_layers"]

_PATHS = {"MM": Path.PLAIN, "MM plain": Path.PLAIN, "MM gelu": Path.GELU, "MM residual": Path.RESIDUAL}
_PLANNED = ("probability", "new key", "new value", "memory writer")


def needs_plan(cell: Cell) -> bool:
    """True if the cell fixes the order of commits and attention in the layer (:func:`layer_plan`)."""
    return cell.hazard.startswith(_PLANNED)


def needs_attention(cell: Cell) -> bool:
    """True if the snippet must stand behind both commits of a layer."""
    return not {"SC", "AV", "SC query"}.isdisjoint((cell.producer, cell.consumer))


def spans_layers(cell: Cell) -> bool:
    """True if the later instruction of a planned cell belongs to the next layer."""
    pair = (cell.hazard, cell.producer)
    return pair == ("memory writer", "VALUES") or (cell.hazard.endswith((" war", " waw")) and "new" in cell.hazard)


def layer_plan(cell: Cell, fillers: int) -> list[str]:
    """Order of KEYS, VALUES, SC, AV and FILL in a layer that hits a planned cell, ``fillers`` apart."""
    gap = ["FILL"] * fillers
    key = (cell.hazard, cell.producer)
    if key == ("new key raw", "KEYS"):
        return ["KEYS", *gap, "SC", "VALUES", "AV"]
    if key == ("new key war", "SC"):
        return ["KEYS", "VALUES", "SC", "AV", "SC", *gap]
    if cell.hazard in ("new key waw", "new value waw"):
        return ["KEYS", *gap[1:], "VALUES"]
    if key == ("new value raw", "VALUES"):
        return ["KEYS", "SC", "VALUES", *gap, "AV"]
    if key == ("new value war", "AV"):
        return ["KEYS", "VALUES", "SC", "AV", *gap[1:]]
    if key == ("memory writer", "KEYS"):
        return ["KEYS", *gap, "VALUES", "SC", "AV"]
    if key == ("memory writer", "VALUES"):
        return ["KEYS", "SC", "VALUES", *gap]
    if key == ("probability raw", "SC"):
        return ["KEYS", "VALUES", "SC", *gap, "AV"]
    if key == ("probability war", "AV"):
        return ["KEYS", "VALUES", "SC", "AV", *gap, "SC again", "AV"]
    return ["KEYS", "VALUES", "SC", *gap, "SC again", "AV"]


def append_snippet(builder: ProgramBuilder, cell: Cell) -> None:
    """Append instructions that hit a cell for which no layer plan is needed."""
    makers: dict[str, Callable[[ProgramBuilder, Cell], None]] = {
        "strip raw": _strip,
        "strip war": _strip,
        "strip waw": _strip,
        "accumulator reuse": _accumulator,
        "split product": _split,
        "parameter reuse": _accumulator,
        "norm raw": _norm,
        "norm war": _norm,
        "norm waw": _norm,
    }
    makers[cell.hazard](builder, cell)


def _gap(builder: ProgramBuilder, cell: Cell) -> None:
    between = DISTANCES.index(cell.distance)
    if cell.distance == "4+":
        between += builder.rng.randint(0, 1)
    for _ in range(between):
        builder.filler()


def _av_heads(builder: ProgramBuilder) -> int:
    return builder.rng.randint(1, builder.shape.heads)


def _strip(builder: ProgramBuilder, cell: Cell) -> None:
    """Both ends touch one region."""
    kinds = (cell.producer, cell.consumer)
    c, shape = builder.config, builder.shape
    s = c.strips_per_word
    heads = _av_heads(builder)
    words = builder.rng.choice([1, 1, 2])
    if "SC query" in kinds:
        heads = builder.rng.randint(1, heads)
        words = heads * shape.key_words
    if "AV" in kinds:
        words = max(words, -(-heads * shape.value_strips // s))
        builder.ensure_scores(heads)
    low = True if {"addend", "MM residual"}.intersection(kinds) else None
    region = builder.region(words, low)
    covered = {"AV": heads * shape.value_strips, "EMB": shape.vector_strips, "MM residual": 0}
    builder.complete(region, 0 if cell.hazard == "strip war" else covered.get(cell.producer, words * s))
    _touch(builder, cell.producer, region, heads)
    _gap(builder, cell)
    _touch(builder, cell.consumer, region, heads)
    builder.release(region)


def _touch(builder: ProgramBuilder, kind: str, region: Region, heads: int) -> None:
    """Write or read a region that is written whole."""
    rng, s, shape = builder.rng, builder.config.strips_per_word, builder.shape
    first, strips = region.word * s, region.words * s
    if kind == "AV":
        builder.av(first, heads)
    elif kind == "EMB":
        builder.emb(first, min(strips, shape.vector_strips), path=rng.choice([Path.PLAIN, Path.GELU]))
    elif kind == "SC query":
        builder.sc(region.word, heads, builder.tail())
    elif kind == "MM source":
        target = builder.region(1, low=False)
        builder.fill(target, source=(region.word, region.words, builder.tail()))
        (builder.hidden if builder.decode_only else builder.sources).append(target)
    elif kind == "addend":
        if strips <= shape.vector_strips and rng.random() < 0.2:
            builder.emb(first, strips, path=Path.RESIDUAL)
        else:
            builder.fill(region, path=Path.RESIDUAL)
    else:
        builder.fill(region, path=_PATHS[kind])


def _accumulator(builder: ProgramBuilder, cell: Cell) -> None:
    """Both ends use the same accumulators, and products the same parameters."""
    c, shape = builder.config, builder.shape
    strips = c.strips_per_word * builder.rng.choice([1, 1, 2])
    heads = _av_heads(builder)
    av_strips = heads * shape.value_strips if "AV" in (cell.producer, cell.consumer) else 0
    room = max(strips, av_strips)
    if cell.producer == "AV" or (cell.consumer == "AV" and cell.producer != "SC"):
        builder.ensure_scores(heads)
        assert builder.scores is not None
        heads = min(heads, builder.scores[1])
    query = builder.query(heads) if "SC" in (cell.producer, cell.consumer) else None
    targets: list[Region] = []
    for kind in (cell.producer, cell.consumer):
        size = {"SC": 0, "AV": av_strips}.get(kind, strips)
        targets.append(builder.region(-(-size // c.strips_per_word)))
        covered = {"AV": av_strips, "EMB": shape.vector_strips}
        builder.complete(targets[-1], covered.get(kind, size))
    acc = builder.accumulator(room, c.mm_strips)
    builder.reserve(acc, room)
    params = {"params": Params.BIAS} if cell.hazard == "parameter reuse" else {}
    for number, kind in enumerate((cell.producer, cell.consumer)):
        first = targets[number].word * c.strips_per_word
        if number:
            _gap(builder, cell)
        if kind == "SC":
            assert query is not None
            builder.sc(query.word, heads, builder.tail(), acc=acc)
        elif kind == "AV":
            builder.av(first, heads, acc=acc)
        elif kind == "EMB":
            builder.emb(first, min(strips, shape.vector_strips), acc=acc)
        else:
            builder.fill(targets[number], acc=acc, group=builder.paired(builder.group(strips)), **params)
    builder.release(*(target for target in targets if target.words))


def _split(builder: ProgramBuilder, cell: Cell) -> None:
    """One product in two or three runs."""
    rng, c, shape = builder.rng, builder.config, builder.shape
    s = c.strips_per_word
    only_mm = (cell.producer, cell.consumer) == ("MM", "MM")
    words = rng.choice([1, 2, 3]) if only_mm else max(1, min(rng.choice([1, 2]), shape.vector_strips // s))
    region = builder.region(words)
    strips = words * s
    acc = builder.accumulator(strips, c.mm_strips)
    builder.reserve(acc, strips)
    params = rng.choice([Params.NONE, Params.BIAS, Params.NORM]) if only_mm else Params.NONE
    fields: dict[str, Any] = {"acc": acc, "group": strips, "params": params}
    if params == Params.NORM:
        fields["norm"] = rng.choice(builder.norms)
    path = rng.choice([Path.PLAIN, Path.GELU])

    def run(kind: str, first: int, last: int) -> None:
        if kind == "EMB":
            builder.emb(region.word * s, strips, acc=acc, group=strips, first=first, last=last)
        else:
            builder.mm(region.word * s, strips, first=first, last=last, path=path, **fields)

    run(cell.producer, 1, 0)
    if only_mm and rng.random() < 0.2:
        run("MM", 0, 0)
    _gap(builder, cell)
    run(cell.consumer, 0, 1)
    builder.release(region)


def _norm(builder: ProgramBuilder, cell: Cell) -> None:
    """Both ends use the same LayerNorm scalars."""
    chosen = builder.rng.choice(builder.norms)
    s = builder.config.strips_per_word
    vector_words = -(-builder.shape.vector_strips // s)
    writers = {"norm raw": (True, False), "norm war": (False, True), "norm waw": (True, True)}[cell.hazard]
    regions = []
    for kind in (cell.producer, cell.consumer):
        regions.append(builder.region(vector_words))
        builder.complete(regions[-1], builder.shape.vector_strips if kind == "EMB" else vector_words * s)
    builder.reserved.norms.add(chosen)
    for number, (kind, writes) in enumerate(zip((cell.producer, cell.consumer), writers, strict=True)):
        if number:
            _gap(builder, cell)
        if not writes:
            builder.fill(regions[number], params=Params.NORM, norm=chosen)
        elif kind == "EMB":
            builder.emb(regions[number].word * s, builder.shape.vector_strips, stats=1, stats_set=chosen)
        else:
            path = builder.rng.choice([Path.PLAIN, Path.GELU])
            builder.fill(regions[number], path=path, stats=1, stats_set=chosen)
    builder.release(*regions)
