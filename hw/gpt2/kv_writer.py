"""Key/value writer: puts the new keys and values of a layer where attention will stream them from."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.board.channel_port import ROW_BITS
from hw.board.gpt2_map import row_register
from hw.board.write_arbiter import write_members
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit

__all__ = ["KvWriter", "all_answered", "kv_config_layout", "slot_in_tile"]


def kv_config_layout(config: CoreConfig) -> data.StructLayout:
    """Start registers of the writer; names and meaning as in ``hw.board.gpt2_map``."""
    return data.StructLayout(
        {
            "heads": 8,
            "key_words": 8,
            "value_strips": 8,
            "key_layer_rows": ROW_BITS,
            "key_head_rows": ROW_BITS,
            "value_layer_rows": ROW_BITS,
            "value_head_rows": ROW_BITS,
            **{row_register(name, r): ROW_BITS for r in range(config.rows) for name in ("key_base", "value_base")},
        }
    )


def slot_in_tile(position, head, config: CoreConfig):
    """``slot(position, head) % T``: the position in its tile, rotated by R times the head inside its group of N."""
    lane_bits, tile_bits = ceil_log2(config.lanes), ceil_log2(config.tile)
    return Cat((position + (head << ceil_log2(config.rows)))[:lane_bits], position[lane_bits:tile_bits])


def all_answered(writes_unanswered):
    """Whether memory has answered every write that was accepted."""
    return ~writes_unanswered


class KvWriter(wiring.Component):
    """Writes the keys or values of one layer to memory, row after row, in order of the commits (docs/core.md section 1,
    docs/rows.md section 3).

    Keys of a head are a row's share of one lane: full words to that lane's channels. Values are transposed: each strip
    puts one fp16 into every lane, by byte strobes, into the one channel of the lane that holds the slot. Nothing is
    gathered and nothing read back.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``cfg``, ``batch`` : start registers, constant during a run; in a batch each row has bases of its own.
    ``commit_valid``, ``commit_kind`` (``Commit.KEYS`` or ``VALUES``), ``commit_layer``, ``commit_rows`` (a bit for each
        row that has something to write, at least one), ``commit_positions`` : strobe, the buffers of that kind are
        complete. Only while ``busy_keys`` (``busy_values``) is low, so at most one job of each kind waits.
    ``key_addr``/``key_data``, ``value_addr``/``value_data`` : each row's new-key and new-value buffer, synchronous,
        data one cycle after the address; word ``head*key_words + w`` and strip ``head*value_strips + s``.
    ``write_*`` : write command (``hw.board.write_arbiter``). ``writes_unanswered`` : of ``MemoryPorts``.
    ``busy_keys``, ``busy_values`` : a job of that kind waits or reads its buffer; when it falls the buffer may be
        overwritten.
    ``committed`` : VALUES jobs finished since reset, that is layer instances whose keys and values, and every write
        before, were answered.

    Timing: four cycles from commit to the first ``write_valid``, then one write a cycle while ``write_ready``, and
    two cycles without one between two rows.
    ``write_valid`` does not depend on ``write_ready``; the buffer addresses do. The answers of a VALUES job are awaited
    before the next job starts.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        super().__init__(
            {
                "cfg": In(kv_config_layout(config)),
                "batch": In(1),
                "commit_valid": In(1),
                "commit_kind": In(Commit),
                "commit_layer": In(8),
                "commit_rows": In(config.rows),
                "commit_positions": In(data.ArrayLayout(16, config.rows)),
                "key_addr": Out(range(config.new_key_words)),
                "key_data": In(data.ArrayLayout(config.tile * 16, config.rows)),
                "value_addr": Out(range(config.new_value_strips)),
                "value_data": In(data.ArrayLayout(config.lanes * 16, config.rows)),
                "writes_unanswered": In(1),
                "busy_keys": Out(1),
                "busy_values": Out(1),
                "committed": Out(32),
                **write_members(config),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config, cfg = self.config, self.cfg
        tile_bits, lane_bits = ceil_log2(config.tile), ceil_log2(config.lanes)
        rows = config.rows
        job = data.StructLayout({"values": 1, "layer": 8, "rows": rows, "positions": data.ArrayLayout(16, rows)})
        waiting = [Signal(job, name=f"waiting_{i}") for i in range(2)]  # oldest first
        waiting_count = Signal(range(3))
        now = Signal(job)
        working = Signal()  # `now` reads its buffer
        start = Signal()

        # Queue of commits: at most one of each kind waits, so two places are enough.
        arrived = Signal(job)
        m.d.comb += [
            arrived.values.eq(self.commit_kind == Commit.VALUES),
            arrived.layer.eq(self.commit_layer),
            arrived.rows.eq(self.commit_rows),
            arrived.positions.eq(self.commit_positions),
        ]
        m.d.sync += waiting_count.eq(waiting_count + self.commit_valid - start)
        with m.If(start):
            m.d.sync += [now.eq(waiting[0]), waiting[0].eq(waiting[1])]
        for i in range(2):
            with m.If(self.commit_valid & (waiting_count - start == i)):
                m.d.sync += waiting[i].eq(arrived)
        for busy, kind in ((self.busy_keys, 0), (self.busy_values, 1)):
            queued = Cat((waiting_count > i) & (waiting[i].values == kind) for i in range(2)).any()
            m.d.comb += busy.eq(queued | (working & (now.values == kind)))

        # Sizes of the job's kind; addresses run head by head, word by word.
        words, head_rows = Signal(8), Signal(ROW_BITS)
        m.d.comb += [
            words.eq(Mux(now.values, cfg.value_strips, cfg.key_words)),
            head_rows.eq(Mux(now.values, cfg.value_head_rows, cfg.key_head_rows)),
        ]
        row, position = Signal(range(rows)), Signal(16)  # the lowest row that is not yet written
        m.d.comb += position.eq(now.positions[0])
        for r in reversed(range(rows)):
            with m.If(now.rows[r]):
                m.d.comb += [row.eq(r), position.eq(now.positions[r])]
        others = Signal(rows)  # rows behind it
        m.d.comb += others.eq(now.rows & ~(1 << row))
        base = Signal(ROW_BITS)
        bases = [
            Mux(now.values, cfg[row_register("value_base", r)], cfg[row_register("key_base", r)]) for r in range(rows)
        ]
        m.d.comb += base.eq(Mux(self.batch, Array(bases)[row], bases[0]))
        layer_product, block_product = Signal(ROW_BITS), Signal(ROW_BITS)
        head_row = Signal(ROW_BITS)  # first row of the head's block
        head, word = Signal(8), Signal(8)
        index = Signal(max(len(self.key_addr), len(self.value_addr)))
        step, last_word = Signal(), Signal()
        m.d.comb += [
            last_word.eq(word + 1 == words),
            step.eq(self.write_valid & self.write_ready),
            self.key_addr.eq(index + step),
            self.value_addr.eq(index + step),
            self.write_row.eq(head_row + word),
        ]
        self._elaborate_command(m, now.values, position, head, row)
        with m.FSM():
            with m.State("IDLE"):
                with m.If(waiting_count != 0):
                    m.d.comb += start.eq(1)
                    m.d.sync += [working.eq(1), head.eq(0), word.eq(0), index.eq(0)]
                    m.next = "PRODUCTS"
            with m.State("PRODUCTS"):
                m.d.sync += [
                    layer_product.eq(now.layer * Mux(now.values, cfg.value_layer_rows, cfg.key_layer_rows)),
                    block_product.eq(Mux(now.values, position >> tile_bits, position >> lane_bits) * words),
                    head_row.eq(base),
                ]
                m.next = "BLOCK"
            with m.State("BLOCK"):
                m.d.sync += head_row.eq(head_row + layer_product + block_product)
                m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += self.write_valid.eq(1)
                with m.If(step):
                    m.d.sync += [index.eq(index + 1), word.eq(word + 1)]
                    with m.If(last_word):
                        m.d.sync += [head.eq(head + 1), word.eq(0), head_row.eq(head_row + head_rows)]
                        with m.If((head + 1 == cfg.heads) & (others != 0)):
                            m.d.sync += [now.rows.eq(others), head.eq(0), index.eq(0)]
                            m.next = "PRODUCTS"
                        with m.Elif(head + 1 == cfg.heads):
                            m.d.sync += working.eq(0)
                            m.next = "IDLE"
                            with m.If(now.values):
                                m.next = "ANSWERS"
            with m.State("ANSWERS"):
                with m.If(all_answered(self.writes_unanswered)):
                    m.d.sync += self.committed.eq(self.committed + 1)
                    m.next = "IDLE"
        return m

    def _elaborate_command(self, m: Module, of_values, position, head, row) -> None:
        """Channels, data and strobes of the command from the buffers' words."""
        config = self.config
        per_lane = config.channels_per_lane
        elements = config.tile // per_lane  # of one channel word
        slot = Signal(ceil_log2(config.tile))  # within its tile
        m.d.comb += slot.eq(slot_in_tile(position, head, config))
        lane = slot[: ceil_log2(config.lanes)]
        holder, element = slot[ceil_log2(elements) :], slot[: ceil_log2(elements)]
        element_bytes = Signal(config.port_bytes)
        m.d.comb += element_bytes.eq(0b11 << (2 * element))
        value, key = self.value_data[row], self.key_data[row]
        for c in range(config.channels):
            n, j = divmod(c, per_lane)
            m.d.comb += self.write_channels[c].eq(Mux(of_values, holder == j, lane == n))
        m.d.comb += [
            self.write_word.eq(key),
            self.write_values.eq(value),
            self.write_spread.eq(of_values),
            self.write_strobe.eq(element_bytes | (~of_values).replicate(config.port_bytes)),
        ]
