"""Stream reader: walks the access program ahead of compute and turns it into read commands."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from hw.board.channel_port import BURST_BEATS, ROW_BITS
from hw.board.gpt2_map import row_register
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import ACCESS_FIELDS, AccessKind, Operand
from hw.gpt2.row_steps import last_position, sequence_rows

__all__ = [
    "RUNS",
    "StreamReader",
    "burst_beats",
    "credits_suffice",
    "guard_open",
    "stream_config_layout",
    "token_known",
]

_COUNT_BITS = ACCESS_FIELDS["count"]
RUNS = 4  # row runs that wait between the descriptor walk and the splitter


def stream_config_layout(config: CoreConfig) -> data.StructLayout:
    """Start registers of the reader; names and meaning as in ``hw.board.gpt2_map``."""
    return data.StructLayout(
        {
            "position": 16,
            "context_limit": 16,
            "layers": 8,
            "key_words": 8,
            "value_strips": 8,
            "weight_base": ROW_BITS,
            "position_base": ROW_BITS,
            "token_base": ROW_BITS,
            "embed_strips": 16,
            "key_layer_rows": ROW_BITS,
            "key_head_rows": ROW_BITS,
            "value_layer_rows": ROW_BITS,
            "value_head_rows": ROW_BITS,
            **{
                row_register(name, r): bits
                for r in range(config.rows)
                for name, bits in (("prompt_end", 16), ("key_base", ROW_BITS), ("value_base", ROW_BITS))
            },
        }
    )


def burst_beats(row, left):
    """Rows of the next burst of a run: up to the next multiple of ``BURST_BEATS`` rows, at most ``left``."""
    fits = BURST_BEATS - row[: ceil_log2(BURST_BEATS)]
    return Mux(left < fits, left[: bits_for(BURST_BEATS)], fits)


def credits_suffice(credits, beats):
    """Whether every FIFO has room for all rows of a burst."""
    return credits >= beats


def guard_open(committed, layers, instance):
    """Whether layer instance ``instance`` may read keys and values: those of the position before are in memory."""
    return committed + layers > instance


def token_known(position, tokens_valid):
    """Whether the token of ``position`` stands in the token memory."""
    return position < tokens_valid


class StreamReader(wiring.Component):
    """Runs the access program (docs/core.md sections 2, 5, 7) as far ahead as FIFO credits, tokens and the guard allow.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``run`` : level. Starts at ``cfg.position`` when it rises after a reset; while it is low no command is issued.
    ``cfg``, ``batch`` : start registers, constant during a run.
    ``step``, ``step_rows``, ``step_positions`` : of ``hw.gpt2.fetch``; looked at in a batch alone. ``begun`` : ``step``
        of the step at hand.
    ``tokens_valid`` : row 0's tokens[0 .. tokens_valid) stand in the token memory.
    ``desc_addr``/``desc_data``, ``token_addr``/``token_data`` : synchronous memories, data one cycle after the address;
        ``token_row`` : whose tokens.
    ``committed`` : layer instances whose keys and values are in memory (of ``KvWriter``).
    ``row_pop`` : a row left the FIFOs: one credit back.
    ``read_valid``, ``read_ready``, ``read_row``, ``read_beats`` : to ``MemoryPorts``. ``run`` low withdraws a command
        at once, so with ``run`` low and no reads outstanding nothing is under way.
    ``dump_descriptor`` : descriptor at hand. ``waiting_guard`` : it waits for keys or values.

    Instances are counted by loop iterations that hold a KEYS or VALUES descriptor. In a sequence it runs ahead across
    steps, and the program ends behind the NEXT of position ``context_limit - 1``; in a batch it begins a step when
    fetch has begun it.

    Timing: one burst a cycle. WEIGHTS takes 3 cycles, EMBED 6 (TOKEN 7), KEYS and VALUES 6 and one more for each head
    behind the first, all of it again for each row that does so by itself, in front of a queue of 4 runs; so only runs
    shorter than that show it. From ``tokens_valid`` to the TOKEN read command: 7 cycles. ``read_valid`` comes from a
    register and ``run``.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        super().__init__(
            {
                "run": In(1),
                "cfg": In(stream_config_layout(config)),
                "batch": In(1),
                "step": In(1),
                "step_rows": In(config.rows),
                "step_positions": In(data.ArrayLayout(16, config.rows)),
                "begun": Out(1),
                "tokens_valid": In(16),
                "desc_addr": Out(range(config.descriptors)),
                "desc_data": In(128),
                "token_addr": Out(range(config.context + 1)),
                "token_row": Out(range(config.rows)),
                "token_data": In(32),
                "committed": In(32),
                "row_pop": In(1),
                "read_valid": Out(1),
                "read_ready": In(1),
                "read_row": Out(ROW_BITS),
                "read_beats": Out(bits_for(BURST_BEATS)),
                "dump_descriptor": Out(range(config.descriptors)),
                "waiting_guard": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.runs = runs = SyncFIFO(width=ROW_BITS + _COUNT_BITS, depth=RUNS)
        self._elaborate_walk(m, runs)
        self._elaborate_split(m, runs)
        return m

    def _elaborate_split(self, m: Module, runs: SyncFIFO) -> None:
        """Cut runs into bursts and issue them against credits."""
        row = Signal(ROW_BITS)
        left = Signal(_COUNT_BITS)
        credits = Signal(range(self.config.fifo_words + 1), init=self.config.fifo_words)
        pending = Signal()  # a command waits in read_row, read_beats
        beats = Signal.like(self.read_beats)
        issue = Signal()
        m.d.comb += [
            self.read_valid.eq(pending & self.run),
            beats.eq(burst_beats(row, left)),
            issue.eq(self.run & (left != 0) & credits_suffice(credits, beats) & (~pending | self.read_ready)),
            runs.r_en.eq((left == 0) | (issue & (left == beats))),
        ]
        with m.If(issue):
            m.d.sync += [
                self.read_row.eq(row),
                self.read_beats.eq(beats),
                pending.eq(1),
                row.eq(row + beats),
                left.eq(left - beats),
            ]
        with m.Elif(self.read_valid & self.read_ready):
            m.d.sync += pending.eq(0)
        with m.If(runs.r_en & runs.r_rdy):
            m.d.sync += Cat(row, left).eq(runs.r_data)
        m.d.sync += credits.eq(credits + self.row_pop - Mux(issue, beats, 0))

    def _elaborate_step(self, m: Module, position, last, active, positions, prompt_step) -> None:
        """Rows and positions of the step: a sequence's are known ahead, a batch's come from fetch and are kept, since
        fetch may begin the next step before the last commands of this one have left."""
        cfg, rows = self.cfg, self.config.rows
        self._begin = Signal()  # a step begins
        m.d.comb += [
            active.eq(sequence_rows(position, last, rows)),
            prompt_step.eq(last + 1 < cfg.prompt_end),
        ]
        for r in range(rows):
            m.d.comb += positions[r].eq((position & ~(rows - 1)) + r if rows > 1 else position)
        if rows == 1:
            return
        kept_rows, kept_positions = Signal(rows), Signal(data.ArrayLayout(16, rows))
        with m.If(self._begin):
            m.d.sync += [kept_rows.eq(self.step_rows), kept_positions.eq(self.step_positions)]
        deciding = [(kept_positions[r] + 1 >= cfg[row_register("prompt_end", r)]) & kept_rows[r] for r in range(rows)]
        with m.If(self.batch):
            m.d.comb += [active.eq(kept_rows), positions.eq(kept_positions), prompt_step.eq(~Cat(deciding).any())]

    def _elaborate_walk(self, m: Module, runs: SyncFIFO) -> None:
        """Fetch descriptors, follow loops and positions, compute the runs."""
        config, cfg = self.config, self.cfg
        tile_bits, lane_bits = ceil_log2(config.tile), ceil_log2(config.lanes)
        fields = data.View(data.StructLayout(dict(ACCESS_FIELDS)), self.desc_data[: sum(ACCESS_FIELDS.values())])
        index = Signal(range(config.descriptors))
        rows = config.rows
        position = Signal(16)  # first one of the step
        pointer = Signal(ROW_BITS)  # next row of the weight stream
        instance = Signal(32)  # layer instances begun since the start
        attended = Signal()  # this iteration holds a KEYS or VALUES descriptor
        key_layer, value_layer = Signal(ROW_BITS), Signal(ROW_BITS)  # row offset of the layer
        loop_first, loop_last = Signal.like(index), Signal.like(index)
        loop_left = Signal(_COUNT_BITS)
        # of the descriptor at hand
        values, token = Signal(), Signal()
        base, stride, product_base = Signal(ROW_BITS), Signal(ROW_BITS), Signal(ROW_BITS)
        block, scale = Signal(16), Signal(ROW_BITS)  # base += block * scale
        blocks, words = Signal(16), Signal(8)  # rows of one head = blocks * words
        count = Signal(_COUNT_BITS)
        heads = Signal(7)
        # of the step
        active, positions, prompt_step = Signal(rows), Signal(data.ArrayLayout(16, rows)), Signal()
        # of the row at work; ``done_rows`` have done the descriptor at hand
        last, row, row_position, done_rows = Signal(16), Signal(range(rows)), Signal(16), Signal(rows)
        by_row = Signal()
        m.d.comb += [
            self.desc_addr.eq(index),
            self.token_addr.eq(row_position),
            self.token_row.eq(Mux(self.batch, row, 0)),
            self.dump_descriptor.eq(index),
            runs.w_data.eq(Cat(base, count)),
            last.eq(last_position(position, cfg.prompt_end, rows)),
        ]
        self._elaborate_step(m, position, last, active, positions, prompt_step)
        todo = active & ~done_rows
        for r in reversed(range(rows)):
            with m.If(todo[r]):
                m.d.comb += [row.eq(r), row_position.eq(positions[r])]
        others = Signal(rows)  # rows behind it
        m.d.comb += others.eq(todo & ~(1 << row))
        attended_to = Signal(16)  # position up to which keys and values are read
        m.d.comb += attended_to.eq(Mux(self.batch, row_position, last))
        key_base, value_base = (
            Mux(self.batch, Array(bases)[row], bases[0])
            for bases in ([cfg[row_register(name, r)] for r in range(rows)] for name in ("key_base", "value_base"))
        )

        def advance():
            """To the next row; behind the last one step behind the descriptor at index, around a loop's end."""
            with m.If(by_row & (others != 0)):
                m.d.sync += done_rows.eq(done_rows | (1 << row))
                m.next = "FETCH"
            with m.Else():
                m.d.sync += done_rows.eq(0)
                behind()

        def behind():
            with m.If((loop_left != 0) & (index == loop_last)):
                m.d.sync += [
                    loop_left.eq(loop_left - 1),
                    index.eq(Mux(loop_left == 1, index + 1, loop_first)),
                    key_layer.eq(Mux(loop_left == 1, 0, key_layer + cfg.key_layer_rows)),
                    value_layer.eq(Mux(loop_left == 1, 0, value_layer + cfg.value_layer_rows)),
                    instance.eq(instance + attended),
                    attended.eq(0),
                ]
            with m.Else():
                m.d.sync += index.eq(index + 1)
            m.next = "FETCH"

        with m.FSM():
            with m.State("START"):
                m.d.sync += position.eq(cfg.position)
                with m.If(self.run):
                    m.next = "POSITION"
            with m.State("POSITION"):
                m.d.sync += [index.eq(0), pointer.eq(cfg.weight_base), loop_left.eq(0)]
                with m.If(~self.batch | (self.step != self.begun)):
                    m.d.comb += self._begin.eq(1)
                    m.d.sync += self.begun.eq(self.step)
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.next = "DECODE"
            with m.State("DECODE"):
                attention = (fields.kind == AccessKind.KEYS) | (fields.kind == AccessKind.VALUES)
                embeds, of_token = fields.kind == AccessKind.EMBED, fields.operand == Operand.TOKEN
                if rows > 1:
                    m.d.sync += by_row.eq((embeds & (of_token | self.batch)) | (attention & self.batch))
                m.d.sync += [
                    values.eq(fields.kind == AccessKind.VALUES),
                    token.eq(of_token),
                    heads.eq(fields.heads),
                    count.eq(fields.count),
                ]
                with m.If(fields.kind == AccessKind.NEXT):
                    m.d.sync += position.eq(last + 1)
                    m.next = "POSITION"
                    with m.If(~self.batch & (last + 1 == cfg.context_limit)):
                        m.next = "END"
                with m.Elif(fields.decode_only & prompt_step):
                    behind()
                with m.Elif(fields.kind == AccessKind.LOOP):
                    m.d.sync += [
                        index.eq(index + 1),
                        loop_first.eq(index + 1),
                        loop_last.eq(index + fields.length),
                        loop_left.eq(fields.count),
                        key_layer.eq(0),
                        value_layer.eq(0),
                    ]
                    m.next = "FETCH"
                with m.Elif(fields.kind == AccessKind.WEIGHTS):
                    m.d.sync += [base.eq(pointer), pointer.eq(pointer + fields.count), heads.eq(1)]
                    m.next = "RUNS"
                with m.Elif(embeds):
                    table = Mux(of_token, cfg.token_base, cfg.position_base)
                    m.d.sync += [
                        base.eq(table + fields.offset),
                        block.eq(row_position >> tile_bits),
                        scale.eq(cfg.embed_strips),
                        heads.eq(1),
                    ]
                    m.next = "EMBED"
                with m.Elif(attention):
                    m.d.sync += [block.eq(fields.head0), attended.eq(1)]
                    m.next = "GUARD"
                with m.Else():
                    m.next = "END"
            with m.State("EMBED"):
                with m.If(~token):
                    m.next = "PRODUCT"
                with m.Elif(self.batch | token_known(row_position, self.tokens_valid)):
                    m.next = "TOKEN"
            with m.State("TOKEN"):
                m.d.sync += block.eq(self.token_data >> tile_bits)
                m.next = "PRODUCT"
            with m.State("GUARD"):
                m.d.sync += [
                    base.eq(Mux(values, value_base + value_layer, key_base + key_layer)),
                    stride.eq(Mux(values, cfg.value_head_rows, cfg.key_head_rows)),
                    scale.eq(Mux(values, cfg.value_head_rows, cfg.key_head_rows)),
                    blocks.eq(Mux(values, attended_to >> tile_bits, attended_to >> lane_bits) + 1),
                    words.eq(Mux(values, cfg.value_strips, cfg.key_words)),
                ]
                with m.If(guard_open(self.committed, cfg.layers, instance)):
                    m.next = "ROWS"
                with m.Else():
                    m.d.comb += self.waiting_guard.eq(1)
            with m.State("ROWS"):
                m.d.sync += count.eq(blocks * words)
                m.next = "PRODUCT"
            with m.State("PRODUCT"):
                m.d.sync += product_base.eq(block * scale)
                m.next = "SUM"
            with m.State("SUM"):
                m.d.sync += base.eq(base + product_base)
                m.next = "RUNS"
            with m.State("RUNS"):
                m.d.comb += runs.w_en.eq((heads != 0) & (count != 0))
                with m.If((heads == 0) | (count == 0)):
                    advance()
                with m.Elif(runs.w_rdy):
                    m.d.sync += [base.eq(base + stride), heads.eq(heads - 1)]
                    with m.If(heads == 1):
                        advance()
            with m.State("END"):
                pass
