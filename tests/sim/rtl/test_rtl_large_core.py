"""The 64x16 core is the same code: random programs on its gateware equal the functional executor bit for bit."""

import pytest

from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard
from sim.programs import agreement
from sim.rtl.build import build_board

CORE = core_config("64x16")
SEEDS = range(40)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rtl_equals_functional_at_64x16():
    built = build_board(CORE)
    assert [text for seed in SEEDS if (text := agreement.disagreement(seed, CORE, built))] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_functional_executor_that_is_wrong_is_noticed(monkeypatch):
    """Twin: one bit of the first key that the functional executor keeps in memory is another one."""

    class Wrong(FunctionalBoard):
        def kv_hash(self):
            region = next(region for region in self._program.regions if region.kind == "keys")
            first = self.read_memory(region.channel, region.offset, 1)
            self.write_memory(region.channel, region.offset, bytes([first[0] ^ 1]))
            return super().kv_hash()

    monkeypatch.setattr(agreement, "FunctionalBoard", Wrong)
    assert "differ" in agreement.disagreement(0, CORE, build_board(CORE))
