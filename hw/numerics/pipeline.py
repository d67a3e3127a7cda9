"""Pieces of free-running pipelines: registers without reset, reduction by levels, normalisation."""

from collections.abc import Callable, Sequence

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.utils import exact_log2

__all__ = [
    "add_or_subtract",
    "delayed",
    "normalised",
    "reduced_pairs",
    "registered",
    "rounded_up",
    "shifted_right",
    "shifted_right_by_four_way",
]


def registered(m: Module, value: Value, name: str) -> Signal:
    """Return a register (domain `sync`, no reset, so that Verilator copies it unconditionally) that follows `value`."""
    value = Value.cast(value)
    register = Signal(value.shape(), name=name, reset_less=True)
    m.d.sync += register.eq(value)
    return register


def delayed(m: Module, value: Value, cycles: int, name: str) -> Value:
    """Return `value` as it was `cycles` (>= 0) cycles ago."""
    for cycle in range(cycles):
        value = registered(m, value, f"{name}_d{cycle + 1}")
    return value


def reduced_pairs(items: Sequence, combine: Callable, levels: int) -> list:
    """Combine neighbours (``combine(items[2k], items[2k+1])``) `levels` times; an odd last item passes unchanged."""
    items = list(items)
    for _ in range(levels):
        items = [combine(*items[i : i + 2]) if i + 1 < len(items) else items[i] for i in range(0, len(items), 2)]
    return items


def add_or_subtract(a: Value, b: Value, subtract: Value) -> Value:
    """The signed value a - b where the bit `subtract` is set, else a + b, wide enough not to overflow.

    Written as one sum with a carry into its lowest bit: tools make one carry chain of it, of ``Mux(subtract, a - b,
    a + b)`` two (26 LUTs more for each multiplier of a dot tile, yosys for xcup).
    """
    width = 1 + max(len(v) + (not v.shape().signed) for v in (a, b))

    def extended(v: Value) -> Value:
        fill = v[-1] if v.shape().signed else Const(0, 1)
        return Cat(v, fill.replicate(width - len(v)))

    total = Cat(Const(1, 1), extended(a)) + Cat(subtract, extended(b) ^ subtract.replicate(width))
    return total[1 : width + 1].as_signed()


def shifted_right_by_four_way(value: Value, select: Value, step: int) -> Value:
    """`value` >> (step * select) for a `select` of two bits, as one 4:1 multiplexer (one LUT6) for each bit."""
    low = Mux(select[0], value >> step, value)
    high = Mux(select[0], value >> (3 * step), value >> (2 * step))
    return Mux(select[1], high, low)[: len(value)]


def normalised(m: Module, value: Value, name: str, steps: Sequence[int] | None = None) -> tuple[Value, Value]:
    """Shift the unsigned `value` left until its highest bit is 1.

    Returns (shifted, count), `count` the number of places; for value zero `shifted` is 0 and `count` is meaningless.
    Combinational: one multiplexer level for each of `steps` (powers of two, falling). Without `steps` the whole shift
    is done; to spread it over two pieces of a pipeline give the large steps first, and OR the two counts.
    """
    width = len(value)
    places = (width - 1).bit_length()
    if steps is None:
        steps = [1 << place for place in reversed(range(places))]
    count = Signal(places, name=f"{name}_count")
    for step in steps:
        empty = value[width - step :] == 0
        shifted = Signal(width, name=f"{name}_by{step}")
        m.d.comb += [shifted.eq(Mux(empty, value << step, value)), count[exact_log2(step)].eq(empty)]
        value = shifted
    return value, count


def shifted_right(m: Module, value: Value, amount: Value, name: str) -> tuple[Value, Value]:
    """Shift the unsigned `value` right; returns (shifted, sticky), `sticky` the OR of all bits that fell out."""
    sticky = Const(0, 1)
    for place in reversed(range(len(amount))):
        step = min(1 << place, len(value))
        shifted = Signal(len(value), name=f"{name}_by{1 << place}")
        lost = Signal(name=f"{name}_lost{1 << place}")
        m.d.comb += [
            shifted.eq(Mux(amount[place], value >> step, value)),
            lost.eq(sticky | (amount[place] & value[:step].any())),
        ]
        value, sticky = shifted, lost
    return value, sticky


def rounded_up(keep: Value, half: Value, sticky: Value) -> Value:
    """One bit: whether round to nearest even increments `keep`, given the first dropped bit and the OR of the rest."""
    return half & (sticky | keep[0])
