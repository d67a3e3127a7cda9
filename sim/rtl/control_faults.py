"""Seeded faults of the kernel's control: registers, run state machine, counters."""

from __future__ import annotations

from sim.rtl.fault_patch import Fault

__all__ = ["CONTROL_FAULTS"]

CONTROL_FAULTS = (
    Fault(
        "done_lost",
        "hw.board.control",
        "done_count.eq(done_count + 1)]",
        "done_count.eq(done_count + done)]",
        "the end of a run is not counted, so a host that starts the next run at once never learns of it",
        "control",
    ),
    Fault(
        "cycle_counter_stops_in_reset",
        "hw.board.control",
        'with m.Elif(~self._idle):\n            m.d.sync += counters["cycles"]',
        'with m.Elif(~self._idle & ~self.core_reset):\n            m.d.sync += counters["cycles"]',
        "the cycles of the reset at the end of a run are not counted",
        "counters",
    ),
    Fault(
        "error_kept_from_last_run",
        "hw.board.control",
        "error.eq(ErrorCode.NONE), error_info.eq(0), quiet.eq(0)]",
        "error_info.eq(0), quiet.eq(0)]",
        "start does not clear the error of the run before",
        "control",
    ),
    Fault(
        "token_valid_early",
        "hw.board.control",
        "tokens_valid[r].eq(core.token_write_addr + 1)",
        "tokens_valid[r].eq(core.token_write_addr + 2)",
        "a token counts as valid before it is written",
        "control",
    ),
    Fault(
        "cancel_ignored",
        "hw.board.control",
        "with m.If(core.finish | core.fail | self._cancel):",
        "with m.If(core.finish | core.fail):",
        "cancel is recorded but does not end the run",
        "control",
    ),
    Fault(
        "control_same_counter_otherwise",
        "hw.board.control",
        'counters["cycles"].eq(counters["cycles"] + 1)',
        'counters["cycles"].eq(counters["cycles"] - ((1 << 64) - 1))',
        "adds one as 2^64 - 1 subtracted",
        "nothing",
    ),
)
