"""CRC-32 of a frame at one beat a cycle, with a short loop."""

from __future__ import annotations

import functools

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.crc import Algorithm
from amaranth.lib.wiring import In, Out

from hw.link.frame import BEAT_BYTES

__all__ = ["FrameCrc"]

_BITS = 8 * BEAT_BYTES
_CRC_BITS = 32
_ONES = (1 << _CRC_BITS) - 1
_LINEAR_CRC32 = Algorithm(  # that of IEEE 802.3 without its inversions
    crc_width=_CRC_BITS,
    polynomial=0x04C11DB7,
    initial_crc=0,
    reflect_input=True,
    reflect_output=True,
    xor_output=0,
)


@functools.cache
def _masks() -> tuple[int, ...]:
    """For each bit of the CRC, the bits of a beat whose sum it is."""
    parameters = _LINEAR_CRC32(_BITS)
    columns = [parameters.compute([1 << j]) for j in range(_BITS)]
    return tuple(sum((columns[j] >> i & 1) << j for j in range(_BITS)) for i in range(_CRC_BITS))


def _crc_of_beat(beat: Value) -> Value:
    """CRC of one beat; of a shorter value, that of a beat with zeros behind it."""
    used = (1 << len(beat)) - 1
    return Cat((beat & (mask & used)).xor() for mask in _masks())


class FrameCrc(wiring.Component):
    """CRC-32 over the beats of a frame, one frame directly after the other.

    A CRC is linear, so its sum of up to 288 bits is taken in two: of a beat alone (``of_beat``, no loop), and of the
    beats so far as if a beat of zeros followed them (``so_far``), a loop of 32 bits. The two together are the CRC with
    the beat. The library's processor would have all in the loop, and writes every exclusive or as a cell of its own,
    which makes the export of a port ten seconds longer; the numbers here are the library's.

    Members
    -------
    ``enable`` : the step; without it everything stays as it is. ``beat`` (256 bits), ``valid`` : a beat of a frame;
        ``last`` : with it the frame ends. ``crc`` : over the frame up to and with the beat of the last step.

    Timing: domain ``link``; a beat a cycle; ``crc`` is there in the cycle behind the beat's.
    """

    def __init__(self) -> None:
        super().__init__({"enable": In(1), "beat": In(_BITS), "valid": In(1), "last": In(1), "crc": Out(_CRC_BITS)})

    def elaborate(self, platform):
        m = Module()
        valid, last = Signal(), Signal()  # of the beat in of_beat
        start = _LINEAR_CRC32(_BITS).compute([_ONES])  # what the register of ones makes of a beat of zeros
        of_beat, so_far, total = Signal(_CRC_BITS), Signal(_CRC_BITS, init=start), Signal(_CRC_BITS)
        m.d.comb += [total.eq(so_far ^ of_beat), self.crc.eq(~total)]
        with m.If(self.enable):
            m.d.link += [of_beat.eq(_crc_of_beat(self.beat)), valid.eq(self.valid), last.eq(self.last)]
            with m.If(valid):
                m.d.link += so_far.eq(Mux(last, start, _crc_of_beat(total)))
        return m
