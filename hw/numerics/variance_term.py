"""The integer under LayerNorm's square root, by one small multiplier."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .pipeline import add_or_subtract, delayed, registered

__all__ = ["VarianceTerm"]

_LIMB = 28
_STEPS = 10


class VarianceTerm(wiring.Component):
    """A = count * sum2 - magnitude**2 + eps_term.

    Parameters
    ----------
    None.

    Members
    -------
    start : In(1)
        Takes all operands; not to be given again before `done`.
    magnitude : In(55)
        Absolute value of the sum.
    sum2 : In(96)
        Sum of squares.
    count : In(13)
        Number of elements.
    eps_term : In(80)
        Summand.
    done : Out(1)
        1 for one cycle, `latency` cycles after `start`.
    term : Out(112)
        A modulo 2**112, valid from `done` to the next `start`.
    negative : Out(1)
        A is below zero, valid with `term`.

    Timing
    ------
    Latency 14 cycles: ten products of 28 x 28 bits at one a cycle, in columns of 28 bits from the lowest, through
    operand registers, partial products (28 x 17 and 28 x 11 bits) and their sum into the accumulator. Reset ends an
    operation.

    Numerics
    --------
    Exact.

    Source
    ------
    Design, section 4 (LayerNorm sums in fixed point); schoolbook multiplication by columns.
    """

    start: In(1)
    magnitude: In(55)
    sum2: In(96)
    count: In(13)
    eps_term: In(80)
    done: Out(1)
    term: Out(4 * _LIMB)
    negative: Out(1)

    latency = _STEPS + 4

    def elaborate(self, platform) -> Module:
        m = Module()
        step = Signal(range(_STEPS))
        active = Signal()
        low = Signal(_LIMB, reset_less=True)
        high = Signal(_LIMB - 1, reset_less=True)
        sum2 = Signal(96, reset_less=True)
        eps_term = Signal(80, reset_less=True)
        count = Signal(13, reset_less=True)
        emit = Signal()

        with m.If(self.start):
            m.d.sync += [
                active.eq(1),
                step.eq(0),
                Cat(low, high).eq(self.magnitude),
                sum2.eq(self.sum2),
                eps_term.eq(self.eps_term),
                count.eq(self.count),
            ]
        with m.Elif(active):
            m.d.sync += [step.eq(step + 1), active.eq(step != _STEPS - 1)]
            with m.If(emit):
                m.d.sync += [sum2.eq(sum2 >> _LIMB), eps_term.eq(eps_term >> _LIMB)]

        # columns: count * sum2 + eps_term - square, the last one count * sum2 alone
        x, y = Signal(_LIMB), Signal(_LIMB)
        subtract = Signal()
        with m.Switch(step):
            with m.Case(0, 3, 6, 9):
                m.d.comb += [x.eq(sum2), y.eq(count), emit.eq(step == 9)]
            with m.Case(1, 4, 7):
                m.d.comb += [x.eq(eps_term), y.eq(1)]
            with m.Case(2):
                m.d.comb += [x.eq(low), y.eq(low), subtract.eq(1), emit.eq(1)]
            with m.Case(5):
                m.d.comb += [x.eq(low), y.eq(high << 1), subtract.eq(1), emit.eq(1)]
            with m.Case(8):
                m.d.comb += [x.eq(high), y.eq(high), subtract.eq(1), emit.eq(1)]
        product = self._product(m, registered(m, x, "x"), registered(m, y, "y"))

        def behind_product(value: Value, name: str) -> Value:
            return delayed(m, value, 3, name)

        column = Signal(signed(2 * _LIMB + 4), reset_less=True)
        total = Signal(signed(2 * _LIMB + 4))
        base = Mux(behind_product(active & (step == 0), "restart"), 0, column)
        m.d.comb += total.eq(add_or_subtract(base, product, behind_product(subtract, "subtract")))
        emitted = behind_product(emit & active, "emit")
        accumulating = delayed(m, active, 3, "active")
        with m.If(emitted):
            m.d.sync += [
                self.term.eq(Cat(self.term[_LIMB:], total[:_LIMB])),
                self.negative.eq(total < 0),
                column.eq(total >> _LIMB),
            ]
        with m.Elif(accumulating):
            m.d.sync += column.eq(total)

        last = Signal()
        m.d.comb += last.eq(active & (step == _STEPS - 1))
        for _ in range(4):
            following = Signal()
            m.d.sync += following.eq(last)
            last = following
        m.d.comb += self.done.eq(last)
        return m

    @staticmethod
    def _product(m: Module, x: Value, y: Value) -> Value:
        """x * y, two cycles later."""
        partial_low = registered(m, x * y[:17], "partial_low")
        partial_high = registered(m, x * y[17:], "partial_high")
        return registered(m, (partial_low + (partial_high << 17))[: 2 * _LIMB], "product")
