"""AXI signatures: names, directions, comparison, checks."""

import pytest
from amaranth.lib.wiring import In, Out

from hw.bus.axi import Axi4Signature, AxiLiteSignature


def test_members_and_directions():
    signature = Axi4Signature(34, 512, 1)
    widths = {name: (member.flow, member.shape) for name, member in signature.members.items()}
    assert widths["araddr"] == (Out, 34) and widths["rdata"] == (In, 512) and widths["wstrb"] == (Out, 64)
    assert widths["arlen"] == (Out, 8) and widths["bresp"] == (In, 2) and widths["rready"] == (Out, 1)
    assert len(widths) == 29 and signature.beat_bytes == 64
    lite = AxiLiteSignature(16).members
    assert lite["wstrb"].shape == 4 and lite["rdata"].flow == In and len(lite) == 17


def test_comparison_and_text():
    assert Axi4Signature(34, 512) == Axi4Signature(34, 512, 1) != Axi4Signature(34, 256)
    assert Axi4Signature(34, 512) != AxiLiteSignature(16) != AxiLiteSignature(12)
    assert AxiLiteSignature(16) == AxiLiteSignature(16)
    assert eval(repr(Axi4Signature(33, 256, 6))) == Axi4Signature(33, 256, 6)
    assert eval(repr(AxiLiteSignature(16))) == AxiLiteSignature(16)


@pytest.mark.parametrize("widths", [(11, 256, 1), (65, 256, 1), (34, 24, 1), (34, 48, 1), (34, 2048, 1), (34, 256, 0)])
def test_refuses_widths(widths):
    with pytest.raises(ValueError, match="must be"):
        Axi4Signature(*widths)


def test_refuses_other_types():
    with pytest.raises(TypeError, match="addr_width must be an int, got '34'"):
        Axi4Signature("34", 256)
    with pytest.raises(ValueError, match="addr_width must be 2 to 64 bits, got 1"):
        AxiLiteSignature(1)
