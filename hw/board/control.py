"""Control of the GPT-2 kernel: registers, run state machine, counters, instruction, access and token memories."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.board.axi_lite import AxiLiteSlave
from hw.board.core_interface import core_members, run_config_layout
from hw.board.gpt2_map import (
    IDENTITY,
    INTERFACE_VERSION,
    MAX_BOARDS,
    STALL_CAUSES,
    ErrorCode,
    RunState,
    gpt2_register_map,
    row_register,
)
from hw.board.window_memory import WindowMemory
from hw.bus.axi import AxiLiteSignature
from hw.bus.registers import RegisterMap
from hw.gpt2.config import CoreConfig

__all__ = ["DRAIN_CYCLES", "RESET_CYCLES", "Gpt2Control"]

DRAIN_CYCLES = 4  # cycles in a row that the core must say drained: it may answer late to the fall of `run`
RESET_CYCLES = 4  # length of the core's reset between runs
_CHECKED = ("position", "prompt_end", "max_new_tokens", "context_limit")
_DRAIN = STALL_CAUSES.index("drain")


class Gpt2Control(wiring.Component):
    """AXI4-Lite registers of ``hw.board.gpt2_map`` and the run they start.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``s_axi_control`` : AXI4-Lite slave of the map's size. Answers SLVERR to an offset that is not in the map, a write
        to a read-only register, a write of a part of a word, and any write but to ``ctrl`` and ``cancel`` while a run
        lasts; these writes do nothing.
    ``core`` : everything of ``hw.board.core_interface.core_members``, flipped.
    ``core_reset`` : reset of the core, for RESET_CYCLES at the end of each run.
    ``state`` : RunState.

    Behaviour
    ---------
    ``ctrl`` reads bit 1 done (since the last run's end, until the next start), bits 2 idle and 3 ready (no run lasts);
    bit 0 reads as 0, so that a read-modify-write of the register starts nothing by itself. A write of 1 to bit 0 starts
    if idle and is ignored otherwise. Start clears done, error and all counters, counts ``start_count`` and sets
    each row's tokens_valid to its prompt_end. IDLE -> RUN -> DRAIN -> RESET -> IDLE; a start with registers out of
    range (docs/core.md section 2, docs/rows.md section 2, and context_limit above the core's context) goes to RESET at
    once with error START.
    ``done_count`` counts when IDLE is reached: whoever remembers the count from before the start cannot miss a done.
    The first error of a run is kept; cancel counts as one, and does nothing in DRAIN.
    Each cycle outside IDLE adds one to ``cycles`` and to exactly one of ``tiles`` and the stall counters (DRAIN and
    RESET: drain). Reading the low word of a 64-bit counter keeps its high word for the next read of that address, so
    a pair is never torn.

    Timing: registers as in ``AxiLiteSlave``; RUN begins in the cycle after the write strobe. ``tiles`` and the stall
    counters are a cycle behind ``cycles`` and complete when IDLE has lasted a cycle; what the core shows (``dump_*``,
    ``link_*``) is read a cycle late.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        self.map: RegisterMap = gpt2_register_map(config)
        super().__init__(
            {
                "s_axi_control": In(AxiLiteSignature((self.map.size - 1).bit_length())),
                "core": In(wiring.Signature(core_members(config))),
                "core_reset": Out(1),
                "state": Out(RunState),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.slave = self._slave = AxiLiteSlave((self.map.size - 1).bit_length())
        wiring.connect(m, wiring.flipped(self.s_axi_control), self._slave.bus)
        self._start = Signal(name="start")
        self._cancel = Signal(name="cancel")
        self._idle = Signal(name="idle")
        m.d.comb += self._idle.eq(self.state == RunState.IDLE)
        # register name -> what the host reads
        self._values: dict[str, Value] = {}
        self._stored(m)
        self._run(m)
        self._counters(m)
        self._constants(m)
        self._memories(m)
        self._write(m)
        self._read(m)
        return m

    def _stored(self, m: Module) -> None:
        """Flip-flops of the rw registers; what fits the run config goes to the core."""
        layout = run_config_layout(self.config)
        self._registers: dict[str, Signal] = {}
        for name, field in layout:
            checked = name in (row_register(each, r) for each in _CHECKED for r in range(self.config.rows))
            width = 32 if checked else field.width
            self._registers[name] = self._values[name] = Signal(width, name=name)
            m.d.comb += self.core.cfg[name].eq(self._registers[name])

    def _run(self, m: Module) -> None:
        """State machine, error register, done."""
        core, config, registers = self.core, self.config, self._registers
        done = Signal()
        done_count, start_count = Signal(32, name="done_count"), Signal(32, name="start_count")
        error, error_info = Signal(8, name="error"), Signal(32, name="error_info")
        rows = range(config.rows)
        tokens_valid = [Signal(16, name=row_register("tokens_valid", r)) for r in rows]
        quiet = Signal(range(DRAIN_CYCLES + 1))
        left = Signal(range(RESET_CYCLES + 1))
        batch = registers["flags"][1] if config.rows > 1 else Const(0, 1)
        taking_part = Mux(batch, registers["batch_rows"], 1) if config.rows > 1 else Const(1, 1)
        limit = registers["context_limit"]
        boards, most_boards = registers["ring_boards"], MAX_BOARDS if config.has_ring else 1
        in_range = Signal(name="in_range")
        wrong = Signal(config.rows, name="wrong_rows")
        wrong_position = Signal(32, name="wrong_position")
        m.d.comb += [
            in_range.eq(
                (wrong == 0)
                & (taking_part != 0)
                & (limit <= config.context)
                & ((boards <= 1) | ((boards <= most_boards) & (registers["ring_board"] < boards)))
            ),
            wrong_position.eq(registers["position"]),
        ]
        for r in reversed(rows):
            position, prompt_end, most = (registers[row_register(name, r)] for name in _CHECKED[:3])
            legal = (position < limit) & (prompt_end > position) & (prompt_end <= limit) & (most != 0)
            m.d.comb += wrong[r].eq(taking_part[r] & ~legal)
            with m.If(wrong[r]):
                m.d.comb += wrong_position.eq(position)
        m.d.comb += [
            core.run.eq(self.state == RunState.RUN),
            core.error.eq(error),
            core.tokens_valid.eq(tokens_valid[0]),
            self.core_reset.eq(self.state == RunState.RESET),
        ]
        with m.Switch(self.state):
            with m.Case(RunState.IDLE):
                with m.If(self._start):
                    m.d.sync += [done.eq(0), error.eq(ErrorCode.NONE), error_info.eq(0), quiet.eq(0)]
                    m.d.sync += [left.eq(RESET_CYCLES), start_count.eq(start_count + 1)]
                    m.d.sync += [tokens_valid[r].eq(registers[row_register("prompt_end", r)]) for r in rows]
                    with m.If(in_range):
                        m.d.sync += self.state.eq(RunState.RUN)
                    with m.Else():
                        m.d.sync += [
                            self.state.eq(RunState.RESET),
                            error.eq(ErrorCode.START),
                            error_info.eq(wrong_position),
                        ]
            with m.Case(RunState.RUN):
                with m.If(core.finish | core.fail | self._cancel):
                    m.d.sync += self.state.eq(RunState.DRAIN)
                with m.If(self._cancel & ~core.finish):
                    m.d.sync += error.eq(ErrorCode.CANCELLED)
            with m.Case(RunState.DRAIN):
                m.d.sync += quiet.eq(Mux(core.drained, quiet + 1, 0))
                with m.If(core.drained & (quiet == DRAIN_CYCLES - 1)):
                    m.d.sync += self.state.eq(RunState.RESET)
            with m.Case(RunState.RESET):
                m.d.sync += left.eq(left - 1)
                with m.If(left == 1):
                    m.d.sync += [self.state.eq(RunState.IDLE), done.eq(1), done_count.eq(done_count + 1)]
        active = (self.state == RunState.RUN) | (self.state == RunState.DRAIN)
        with m.If(active & core.fail & (error == ErrorCode.NONE)):
            m.d.sync += [error.eq(core.fail_code), error_info.eq(core.fail_info)]
        for r in rows:
            with m.If(core.token_write & (core.token_write_row == r)):
                m.d.sync += tokens_valid[r].eq(core.token_write_addr + 1)
        self._values |= {row_register("tokens_valid", r): tokens_valid[r] for r in rows}
        self._values |= {
            "ctrl": Cat(Const(0, 1), done, self._idle, self._idle),
            "done_count": done_count,
            "start_count": start_count,
            "error": error,
            "error_info": error_info,
            "state": Value.cast(self.state),
        }

    def _counters(self, m: Module) -> None:
        """64-bit counters of cycles, tiles and stall causes."""
        counters = {name: Signal(64, name=name) for name in ("cycles", "tiles", *(f"stall_{c}" for c in STALL_CAUSES))}
        with m.If(self._start):
            m.d.sync += counters["cycles"].eq(0)
        with m.Elif(~self._idle):
            m.d.sync += counters["cycles"].eq(counters["cycles"] + 1)
        # What the cycle before was, since the core's answer comes late in its cycle.
        was_busy, was_tile, was_cause = Signal(), Signal(), Signal.like(self.core.stall)
        running = self.state == RunState.RUN
        m.d.sync += [
            was_busy.eq(~self._idle),
            was_tile.eq(running & self.core.tile),
            was_cause.eq(Mux(running, self.core.stall, _DRAIN)),
        ]
        was = {"tiles": was_tile} | {f"stall_{c}": ~was_tile & (was_cause == i) for i, c in enumerate(STALL_CAUSES)}
        for name, counts in was.items():
            with m.If(self._start):
                m.d.sync += counters[name].eq(0)
            with m.Elif(was_busy & counts):
                m.d.sync += counters[name].eq(counters[name] + 1)
        first = Signal(64, name="first_token_cycles")
        with m.If(self._start):
            m.d.sync += first.eq(0)
        with m.Elif(self.core.token_write & (first == 0)):
            m.d.sync += first.eq(counters["cycles"] + 1)
        self._values |= {**counters, "first_token_cycles": first}

    def _constants(self, m: Module) -> None:
        config = self.config
        shape = config.tile | config.lanes << 8 | config.channels << 16 | config.rows << 24
        self._values |= {
            "identity": Const(IDENTITY, 32),
            "interface_version": Const(INTERFACE_VERSION, 32),
            "config_digest": Const(int(config.digest[:16], 16), 64),
            "core_shape": Const(shape, 32),
            "cancel": Const(0, 32),
        }
        for register in self.map:
            if register.name.startswith(("dump_", "link_")) and register.access == "r":
                value = getattr(self.core, register.name)
                shown = self._values[register.name] = Signal.like(value, name=f"shown_{register.name}")
                m.d.sync += shown.eq(value)

    def _memories(self, m: Module) -> None:
        core, config, slave = self.core, self.config, self._slave
        m.submodules.instructions = instructions = WindowMemory(config.instructions, 128, 1)
        m.submodules.descriptors = descriptors = WindowMemory(config.descriptors, 128, 1)
        tokens = [WindowMemory(config.context + 1, 32, 3) for _ in range(config.rows)]
        for r, memory in enumerate(tokens):
            m.submodules[row_register("tokens", r)] = memory
            m.d.comb += [
                memory.read_addr[0].eq(core.token_addr_core),
                memory.read_addr[1].eq(core.token_addr_reader),
            ]
        # the row that was addressed a cycle ago
        row_core, row_reader = Signal.like(core.token_row_core), Signal.like(core.token_row_reader)
        m.d.sync += [row_core.eq(core.token_row_core), row_reader.eq(core.token_row_reader)]
        m.d.comb += [
            instructions.read_addr[0].eq(core.instr_addr),
            core.instr_data.eq(instructions.read_data[0]),
            descriptors.read_addr[0].eq(core.desc_addr),
            core.desc_data.eq(descriptors.read_data[0]),
            core.token_data_core.eq(Array([memory.read_data[0] for memory in tokens])[row_core]),
            core.token_data_reader.eq(Array([memory.read_data[1] for memory in tokens])[row_reader]),
        ]
        self._windows = {
            "instructions": instructions,
            "descriptors": descriptors,
            **{row_register("tokens", r): memory for r, memory in enumerate(tokens)},
        }
        for name, memory in self._windows.items():
            window = self.map.window(name)
            index = (slave.write_addr - window.offset)[(window.stride - 1).bit_length() :]
            part = (slave.write_addr[2:] - (window.offset >> 2))[: (window.stride // 4 - 1).bit_length()]
            m.d.comb += [
                memory.write_index.eq(index),
                memory.write_part.eq(part),
                memory.write_data.eq(slave.write_data),
                memory.write.eq(slave.write & self._idle & self._inside(name, slave.write_addr)),
            ]
        for r, memory in enumerate(tokens):
            with m.If(core.token_write & (core.token_write_row == r)):
                m.d.comb += [
                    memory.write.eq(1),
                    memory.write_index.eq(core.token_write_addr),
                    memory.write_data.eq(core.token_write_data),
                ]

    def _inside(self, name: str, address: Value) -> Value:
        window = self.map.window(name)
        return (address >= window.offset) & (address < window.end)

    def _write(self, m: Module) -> None:
        """Decode of host writes."""
        slave = self._slave
        error = Signal(name="write_error")
        m.d.comb += slave.write_error.eq(error)
        with m.If(slave.write_addr[2:] == self.map["cancel"].offset >> 2):
            m.d.comb += self._cancel.eq(slave.write)
        with m.Elif(slave.write_addr[2:] == self.map["ctrl"].offset >> 2):
            m.d.comb += self._start.eq(slave.write & slave.write_data[0] & self._idle)
        with m.Elif(~self._idle):
            m.d.comb += error.eq(1)
        with m.Else(), m.Switch(slave.write_addr[2:]):
            for name, register in self._registers.items():
                offset = self.map[name].offset
                for word in range(self.map[name].bits // 32):
                    with m.Case((offset >> 2) + word), m.If(slave.write):
                        m.d.sync += register[32 * word : 32 * word + 32].eq(slave.write_data)
            with m.Default():
                m.d.comb += error.eq(~Cat(self._inside(name, slave.write_addr) for name in self._windows).any())

    def _read(self, m: Module) -> None:
        """Read multiplexer over pairs of words, capture of counters' high words, token window."""
        slave = self._slave
        tokens = {name: self._windows[name] for name in (row_register("tokens", r) for r in range(self.config.rows))}
        words: dict[int, Value] = {}
        captured_pairs = set()
        for register in self.map:
            value = self._values[register.name]
            for word in range(register.bits // 32):
                words[register.offset // 4 + word] = value[32 * word : 32 * word + 32]
            if register.bits == 64 and register.access == "r":
                captured_pairs.add(register.offset // 8)

        pair = slave.read_addr[3:]
        low, high = Signal(32, name="low"), Signal(32, name="high")
        high_kept, kept_pair = Signal(32, name="high_kept"), Signal(len(pair), name="kept_pair")
        known, captured = Signal(name="known"), Signal(name="captured")
        with m.If(slave.read), m.Switch(pair):
            for index in sorted({word // 2 for word in words}):
                with m.Case(index):
                    m.d.comb += low.eq(words.get(2 * index, Const(0, 32)))
                    m.d.comb += high.eq(words.get(2 * index + 1, Const(0, 32)))
                    m.d.comb += known.eq(Mux(slave.read_addr[2], 2 * index + 1 in words, 2 * index in words))
                    m.d.comb += captured.eq(index in captured_pairs)
            with m.Default():
                m.d.comb += known.eq(Cat(self._inside(name, slave.read_addr) for name in self._windows).any())
        result, unknown = Signal(32, name="result"), Signal(name="unknown")
        from_tokens = Signal(len(tokens), name="from_tokens")  # the window that was read, if any
        with m.If(slave.read):
            inside = Cat(self._inside(name, slave.read_addr) for name in tokens)
            m.d.sync += [from_tokens.eq(inside), unknown.eq(~known)]
            with m.If(~slave.read_addr[2]):
                m.d.sync += result.eq(low)
                with m.If(captured):
                    m.d.sync += [high_kept.eq(high), kept_pair.eq(pair)]
            with m.Else():
                m.d.sync += result.eq(high)
                with m.If(captured & (kept_pair == pair)):
                    m.d.sync += [result.eq(high_kept), kept_pair.eq(0)]  # pair 0 is no counter
        m.d.comb += [slave.read_data.eq(result), slave.read_error.eq(unknown)]
        for i, (name, memory) in enumerate(tokens.items()):
            m.d.comb += memory.read_addr[2].eq(slave.read_addr[2:] - (self.map.window(name).offset >> 2))
            with m.If(from_tokens[i]):
                m.d.comb += slave.read_data.eq(memory.read_data[2])
