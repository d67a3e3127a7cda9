"""Smooth functions by a table of cubic polynomials in fixed point."""

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Cat, Module, Shape, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .pipeline import delayed, registered

__all__ = ["PLACE_BITS", "UNIT_BITS", "CubicTable", "cubic", "cubic_rows"]

UNIT_BITS = 43
"""Results and coefficients are in units of 2**-43."""

PLACE_BITS = 27
"""Bits of a place inside a segment, with sign."""

_HALF = PLACE_BITS - 1
_SHAPES = (unsigned(43), unsigned(34), signed(25), signed(16))  # of c0 to c3
_NARROW = 17  # a DSP48E2 multiplies 27 by 18 bits with signs, so a lower part of a factor has 17


def cubic_rows(
    function: Callable[[Decimal], Decimal], start: Decimal, width: Decimal, segments: int
) -> npt.NDArray[np.int64]:
    """Coefficients of the cubic polynomials through four Chebyshev points of each segment.

    Parameters
    ----------
    function
        Smooth, with values in [0, 1), and not falling.
    start, width : Decimal
        The interval, cut into `segments` equal ones (a power of two).

    Returns an array (4, segments), c0 to c3 in units of 2**-43, of polynomials in place * 2**-26 (see `cubic`). A place
    is what the first bits of a longer number say, so the polynomial belongs to the middle of what has the same place.
    Raises ValueError if a coefficient does not fit the table's row.
    """
    rows = []
    with localcontext() as context:
        context.prec = 45
        root = Decimal(2).sqrt()
        squares = ((2 + root) / 4, (2 - root) / 4)  # of cos(pi/8) and cos(3*pi/8)
        half = width / segments / 2
        for segment in range(segments):
            middle = start + (2 * segment + 1) * half + half / 2**PLACE_BITS
            even, odd = [], []
            for square in squares:
                point = square.sqrt()
                right, left = function(middle + half * point), function(middle - half * point)
                even.append((right + left) / 2)
                odd.append((right - left) / 2 / point)
            c2 = (even[0] - even[1]) / (squares[0] - squares[1])
            c3 = (odd[0] - odd[1]) / (squares[0] - squares[1])
            exact = (even[0] - c2 * squares[0], odd[0] - c3 * squares[0], c2, c3)
            rows.append([int((c * 2**UNIT_BITS).to_integral_value()) for c in exact])
            for power, (value, shape) in enumerate(zip(rows[-1], _SHAPES, strict=True)):
                low = -(1 << shape.width - 1) if shape.signed else 0
                if not low <= value < low + (1 << shape.width):
                    raise ValueError(f"coefficient c{power} = {value} of segment {segment} does not fit {shape!r}")
    return np.array(rows, np.int64).T


def cubic(
    rows: npt.NDArray[np.int64], segment: npt.NDArray[np.int64], place: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Golden model of `CubicTable`: the polynomials of `segment` [n] at `place` [n], in units of 2**-43.

    A place is -2**26 at the segment's start and would be 2**26 at its end.
    """
    c0, c1, c2, c3 = rows[:, segment]
    value = c2 + (c3 * place >> _HALF)
    value = c1 + (value * place >> _HALF)
    return c0 + (value * place >> _HALF)


class CubicTable(wiring.Component):
    """Cubic polynomials, one for each segment of an interval.

    Parameters
    ----------
    rows : int64 array (4, segments)
        Of `cubic_rows`, or several of them side by side; the number of segments must be a power of two.

    Members
    -------
    segment : In(log2(segments))
    place : In(signed(27))
    out : Out(signed(45))
        In units of 2**-43.

    Timing
    ------
    Free-running; latency 7 cycles, interval 1, no reset. Pieces: table (block RAM, 118 bits a row) | c3 times place |
    add c2 | times place | add c1 | times place | add c0 (drives `out`). Five products of 27 by 18 bits.

    Numerics
    --------
    Horner's rule, each product rounded down to a multiple of 2**-43: at most 3 * 2**-43 below the polynomial, whose own
    coefficients are rounded to nearest.

    Source
    ------
    Muller, Elementary Functions, chapter 4 (tables and polynomials).
    """

    latency = 7

    def __init__(self, rows: npt.NDArray[np.int64]):
        self._rows = rows
        super().__init__(
            {
                "segment": In(exact_log2(rows.shape[1])),
                "place": In(signed(PLACE_BITS)),
                "out": Out(signed(45)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        offsets = [sum(shape.width for shape in _SHAPES[:power]) for power in range(len(_SHAPES) + 1)]
        words = [
            sum((int(c) & (1 << shape.width) - 1) << at for c, shape, at in zip(row, _SHAPES, offsets, strict=False))
            for row in self._rows.T
        ]
        # told so, since yosys would make a table of 256 rows of LUTs, 1,200 of them
        block = {"rom_style": "block", "ram_style": "block"}
        m.submodules.table = table = Memory(shape=offsets[-1], depth=len(words), init=words, attrs=block)
        read = table.read_port()
        m.d.comb += read.addr.eq(self.segment)

        def coefficient(power: int) -> Value:
            shape: Shape = _SHAPES[power]
            bits = read.data[offsets[power] :][: shape.width]
            return bits.as_signed() if shape.signed else bits

        def product(value: Value, place: Value, name: str) -> Value:
            """value * place, rounded down by 26 bits, one cycle later and before a register."""
            low = registered(m, value[:_NARROW] * place, f"{name}_low")
            high = registered(m, value[_NARROW:].as_signed() * place, f"{name}_high")
            return (Cat(low[:_NARROW], low[_NARROW:].as_signed() + high).as_signed()) >> _HALF

        place = registered(m, self.place, "place")
        cube = registered(m, coefficient(3) * place, "cube")
        c2 = registered(m, coefficient(2), "c2")
        c1 = delayed(m, coefficient(1), 3, "c1")
        c0 = delayed(m, coefficient(0), 5, "c0")
        curve = registered(m, (c2 + (cube >> _HALF))[:26].as_signed(), "curve")
        place = delayed(m, place, 2, "place_curve")
        slope = registered(m, (c1 + product(curve, place, "curve_part"))[:35].as_signed(), "slope")
        place = delayed(m, place, 2, "place_slope")
        m.d.comb += self.out.eq(registered(m, c0 + product(slope, place, "slope_part"), "value"))
        return m
