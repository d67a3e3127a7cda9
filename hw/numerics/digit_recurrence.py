"""Division and square root digit by digit: exact, small, some tens of cycles."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .pipeline import rounded_up

__all__ = ["QUOTIENT_DIGITS", "DigitDivider", "DigitRoot", "quotient_to_fp32"]

QUOTIENT_DIGITS = 26
"""Digits of a quotient in (1/2, 2) from which fp32 is rounded: integer digit, 24 further ones, one to decide."""


def _check(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer {low}..{high}, got {value!r}")


class DigitDivider(wiring.Component):
    """Restoring division of two normalised integers.

    Parameters
    ----------
    width : int
        Bits of the operands, 2..128.
    digits : int
        Digits of the quotient, 1..128, the first of them of weight 1.
    bits_per_cycle : int
        Digits a cycle, 1..8: that many subtractions follow one another in a cycle.

    Members
    -------
    start : In(1)
        Takes the operands; ignored while `busy`.
    dividend, divisor : In(width)
        divisor > 0, dividend < 2 * divisor.
    busy, done : Out(1)
        `done` is 1 for one cycle, `latency` cycles after `start`.
    quotient : Out(digits)
        floor(dividend / divisor * 2**(digits - 1)), held until the next start.
    rest : Out(1)
        The division leaves a remainder, valid with `quotient`.

    Timing
    ------
    Latency 1 + ceil(digits / bits_per_cycle) cycles, one operation at a time; reset ends it.

    Numerics
    --------
    Exact; `rest` is the sticky bit of a rounding.

    Source
    ------
    Ercegovac and Lang, Digital Arithmetic, chapter 5 (radix 2, restoring).
    """

    def __init__(self, width: int, digits: int, bits_per_cycle: int = 2):
        _check("width", width, 2, 128)
        _check("digits", digits, 1, 128)
        _check("bits_per_cycle", bits_per_cycle, 1, 8)
        self.width = width
        self.digits = digits
        self.bits_per_cycle = bits_per_cycle
        super().__init__(
            {
                "start": In(1),
                "dividend": In(width),
                "divisor": In(width),
                "busy": Out(1),
                "done": Out(1),
                "quotient": Out(digits),
                "rest": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        return 1 + -(-self.digits // self.bits_per_cycle)

    def elaborate(self, platform) -> Module:
        m = Module()
        cycles = self.latency - 1
        steps = Signal(range(cycles + 1))
        remainder = Signal(self.width + 1, reset_less=True)
        divisor = Signal(self.width, reset_less=True)
        digits = Signal(cycles * self.bits_per_cycle, reset_less=True)

        rest, produced = remainder, []
        for place in range(self.bits_per_cycle):
            difference = Signal(self.width + 2, name=f"difference{place}")
            following = Signal(self.width + 1, name=f"remainder{place}")
            m.d.comb += [
                difference.eq(rest - divisor),
                following.eq(Mux(difference[-1], rest, difference) << 1),
            ]
            produced.append(~difference[-1])
            rest = following

        m.d.sync += self.done.eq(steps == 1)
        with m.If(steps != 0):
            m.d.sync += [
                steps.eq(steps - 1),
                remainder.eq(rest),
                digits.eq(Cat(*reversed(produced), digits)),
            ]
        with m.Elif(self.start):
            m.d.sync += [
                steps.eq(cycles),
                remainder.eq(self.dividend),
                divisor.eq(self.divisor),
            ]
        surplus = cycles * self.bits_per_cycle - self.digits
        m.d.comb += [
            self.busy.eq(steps != 0),
            self.quotient.eq(digits[surplus:]),
            self.rest.eq((remainder != 0) | digits[:surplus].any()),
        ]
        return m


class DigitRoot(wiring.Component):
    """Integer square root by restoring digit recurrence.

    Parameters
    ----------
    digits : int
        Digits of the root, 1..64.
    bits_per_cycle : int
        Digits a cycle, a divisor of `digits` up to 8.

    Members
    -------
    start : In(1)
        Takes the operand; ignored while `busy`.
    radicand : In(2 * digits)
        Unsigned operand.
    busy, done : Out(1)
        `done` is 1 for one cycle, `latency` cycles after `start`.
    root : Out(digits)
        floor(sqrt(radicand)), held until the next start.

    Timing
    ------
    Latency 1 + digits / bits_per_cycle cycles, one operation at a time; reset ends it.

    Numerics
    --------
    Exact.

    Source
    ------
    Ercegovac and Lang, Digital Arithmetic, chapter 6 (radix 2, restoring).
    """

    def __init__(self, digits: int, bits_per_cycle: int = 2):
        _check("digits", digits, 1, 64)
        _check("bits_per_cycle", bits_per_cycle, 1, 8)
        if digits % bits_per_cycle:
            raise ValueError(f"bits_per_cycle must divide the {digits} digits, got {bits_per_cycle}")
        self.digits = digits
        self.bits_per_cycle = bits_per_cycle
        super().__init__(
            {
                "start": In(1),
                "radicand": In(2 * digits),
                "busy": Out(1),
                "done": Out(1),
                "root": Out(digits),
            }
        )

    @property
    def latency(self) -> int:
        return 1 + self.digits // self.bits_per_cycle

    def elaborate(self, platform) -> Module:
        m = Module()
        cycles = self.latency - 1
        steps = Signal(range(cycles + 1))
        radicand = Signal(2 * self.digits, reset_less=True)
        remainder = Signal(self.digits + 2, reset_less=True)
        root = Signal(self.digits, reset_less=True)

        rest, found = remainder, root
        for place in range(self.bits_per_cycle):
            pair = radicand[2 * (self.digits - 1 - place) : 2 * (self.digits - place)]
            trial = Cat(pair, rest)
            difference = Signal(self.digits + 4, name=f"difference{place}")
            following = Signal(self.digits + 2, name=f"remainder{place}")
            m.d.comb += [
                difference.eq(trial - Cat(Const(1, 2), found)),
                following.eq(Mux(difference[-1], trial, difference)),
            ]
            rest, found = following, Cat(~difference[-1], found)[: self.digits]

        m.d.sync += self.done.eq(steps == 1)
        with m.If(steps != 0):
            m.d.sync += [
                steps.eq(steps - 1),
                remainder.eq(rest),
                root.eq(found),
                radicand.eq(radicand << (2 * self.bits_per_cycle)),
            ]
        with m.Elif(self.start):
            m.d.sync += [steps.eq(cycles), remainder.eq(0), root.eq(0), radicand.eq(self.radicand)]
        m.d.comb += [self.busy.eq(steps != 0), self.root.eq(root)]
        return m


def quotient_to_fp32(quotient: Value, rest: Value, exponent: Value) -> Value:
    """A positive fp32 value (32 bits, sign 0), rounded to nearest even.

    Parameters
    ----------
    quotient : Value of QUOTIENT_DIGITS bits
        In (1/2, 2), the highest bit of weight 1.
    rest : Value of one bit
        The quotient is larger than its digits say.
    exponent : Value
        Biased exponent if the highest digit is 1; the result must lie in the normal range.
    """
    whole = quotient[-1]
    fraction = Mux(whole, quotient[2:-1], quotient[1:-2])
    half = Mux(whole, quotient[1], quotient[0])
    sticky = rest | (whole & quotient[0])
    return (Cat(fraction, (exponent - ~whole)[:8]) + rounded_up(fraction, half, sticky))[:32]
