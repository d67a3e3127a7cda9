"""The way of the weights from the read FIFOs to the lanes of all rows, with new keys and values put in their places."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.slr_crossing import slr_crossing
from hw.gpt2.config import CoreConfig
from hw.gpt2.tags import Stages
from hw.numerics.pipeline import delayed

__all__ = ["WeightPath", "patch_layout"]


def patch_layout(config: CoreConfig) -> data.StructLayout:
    """Which weights of a tile are those of the newest positions (docs/core.md section 4, docs/rows.md section 1)."""
    return data.StructLayout(
        {
            "key": config.lanes,  # lanes whose weights are a new key
            "value": config.tile,  # elements that are a new value
            "single": 1,  # all of row `row`; else lane n's key, and element n's value, of row n % R
            "row": range(config.rows),
        }
    )


class WeightPath(wiring.Component):
    """Registers and crossings between the read FIFOs and the lanes, and the patch: it is there once for all rows.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``row`` : all lanes' weights of a tile, ``Stages.operand`` cycles after its issue.
    ``patch`` : what is patched, in the cycle of issue. ``keys`` (T fp16 of each row of the core), ``values`` (N fp16
        of each) : new key and values of the tile's head, at ``Stages.lane``.
    ``patched`` : all lanes' weights, ``Stages.patched`` cycles after issue.

    Timing: interval 1, no back-pressure, not reset.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        bits = config.tile * 16
        super().__init__(
            {
                "row": In(bits * config.lanes),
                "patch": In(patch_layout(config)),
                "keys": In(data.ArrayLayout(bits, config.rows)),
                "values": In(data.ArrayLayout(16 * config.lanes, config.rows)),
                "patched": Out(bits * config.lanes),
            }
        )

    def elaborate(self, platform):
        m = Module()
        cfg = self.config
        bits = cfg.tile * 16
        row, patch = self.row, self.patch
        row = delayed(m, row, Stages(cfg).lane - Stages(cfg).operand - cfg.slr_stages, "row")
        row = slr_crossing(m, row, cfg.slr_stages, "row_slr")
        for i in range(Stages(cfg).lane):
            later = Signal(patch_layout(cfg), name=f"patch_{i}", reset_less=True)
            m.d.sync += later.eq(patch)
            patch = later
        keys = self._of_rows(m, "key", self.keys, patch)
        values = self._of_rows(m, "value", self.values, patch)
        for n in range(cfg.lanes):
            key, mine = keys[n % cfg.rows], row.word_select(n, bits)
            keyed, patched = Signal(bits, name=f"keyed_{n}"), Signal(bits, name=f"patched_{n}", reset_less=True)
            m.d.comb += [keyed.eq(Mux(patch.key[n], key, mine)), self.patched.word_select(n, bits).eq(patched)]
            m.d.sync += patched.eq(
                Cat(
                    Mux(
                        patch.value[e],
                        values[e % cfg.rows].word_select(n, 16),
                        keyed.word_select(e, 16),
                    )
                    for e in range(cfg.tile)
                )
            )
        return m

    def _of_rows(self, m: Module, name: str, each, patch):
        """What lanes and elements take that belong to row 0, 1, ...: all the same if one row is at work."""
        rows = self.config.rows
        if rows == 1:
            return [each[0]]
        taken = []
        for r in range(rows):
            chosen = Signal(each.shape().elem_shape, name=f"{name}_of_{r}")
            m.d.comb += chosen.eq(Mux(patch.single, each[patch.row], each[r]))
            taken.append(chosen)
        return taken
