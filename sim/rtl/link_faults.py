"""Seeded faults of the link ports, and the program that exports a faulty port or node.

Started as ``python -m sim.rtl.link_faults`` with a JSON request on standard input; the Verilog goes to standard output.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from sim.rtl.fault_patch import Fault, FaultError, install
from sim.rtl.fresh_process import run_fresh

__all__ = ["LINK_FAULTS", "faulty_node", "faulty_port"]

_EXPORT_LIMIT_S = 300.0
_RECEIVER, _TRANSMITTER, _PORT = "hw.link.receiver", "hw.link.transmitter", "hw.link.port"

# `caught_by` names a check of sim/rtl/link_checks.py.
LINK_FAULTS = (
    Fault(
        "crc_not_checked",
        _RECEIVER,
        "good.eq(crc_ok & word.whole",
        "good.eq(word.whole",
        "frames with changed bits are taken",
        "bad cable",
    ),
    Fault(
        "sequence_not_compared",
        _RECEIVER,
        "follows.eq(trailer.seq == self.expected),",
        "follows.eq(1),",
        "frames behind a lost one, and repeated ones, are taken",
        "bad cable",
    ),
    Fault(
        "ack_of_bad_frame",
        _RECEIVER,
        "self.heard.eq(ends & good),",
        "self.heard.eq(ends),",
        "acknowledgements and credits of frames with a wrong CRC count",
        "bad cable",
    ),
    Fault(
        "repeated_frame_overwrites",
        _RECEIVER,
        "(beats < MAX_BEATS) & ~full),",
        "(beats < MAX_BEATS)),",
        "with all slots full, a frame that was taken before overwrites the oldest one",
        "full slots",
    ),
    Fault(
        "credit_too_many",
        _TRANSMITTER,
        "(in_use <= SLOTS - _NEEDS[region])",
        "(in_use <= SLOTS + 1 - _NEEDS[region])",
        "a frame is sent without a receive slot for it",
        "good cable",
    ),
    Fault(
        "local_takes_last_slot",
        _TRANSMITTER,
        "_NEEDS = {LOCAL: 2,",
        "_NEEDS = {LOCAL: 1,",
        "local frames leave no slot for those in transit: a ring can lock up",
        "credits",
    ),
    Fault(
        "comparison_without_wrap",
        _TRANSMITTER,
        "overtaken = (again - acked)[:8] < (self.heard_ack - acked)[:8]",
        "overtaken = again < self.heard_ack",
        "an acknowledgement across 255 counts as one of older frames",
        "good cable",
    ),
    Fault(
        "retry_one_frame_late",
        _TRANSMITTER,
        "m.d.link += again.eq(acked)",
        "m.d.link += again.eq(acked + 1)",
        "after a silence the oldest frame is not sent again",
        "bad cable",
    ),
    Fault(
        "slot_freed_when_sent",
        _TRANSMITTER,
        "with m.If(walked != acked):",
        "with m.If(walked != again):",
        "frames are overwritten before they are acknowledged",
        "good cable",
    ),
    Fault(
        "resend_of_other_frame",
        _TRANSMITTER,
        "read.addr.eq(again),",
        "read.addr.eq(acked),",
        "all frames that are sent again are the oldest one",
        "bad cable",
    ),
    Fault(
        "credit_before_read",
        _PORT,
        "transmitter.freed.eq(receiver.freed),",
        "transmitter.freed.eq(receiver.expected),",
        "a receive slot counts as free when its frame is taken",
        "good cable",
    ),
    Fault(
        "next_frame_read_early",
        _PORT,
        "read.addr.eq(Cat(self.read_entry, popped.count[:_SLOT_BITS])),",
        "read.addr.eq(Cat(self.read_entry, oldest[:_SLOT_BITS])),",
        "the last entry that is read with pop is that of the next frame",
        "good cable",
    ),
    Fault(
        "crc_not_restarted",
        "hw.link.frame_crc",
        "Mux(last, start, _crc_of_beat(total))",
        "Mux(last, _crc_of_beat(total), _crc_of_beat(total))",
        "the CRC goes on from the frame before, which the far end may have lost",
        "bad cable",
    ),
    Fault(
        "kernel_half_not_reset",
        "hw.link.channel_reset",
        "self.kernel.eq(reached), answer.eq(self.kernel)]",
        "self.kernel.eq(0), answer.eq(reached)]",
        "the core's half of a port goes on while its channel is down",
        "channel down",
    ),
    Fault(
        "ack_sooner",
        _TRANSMITTER,
        "WORD_AFTER = 24",
        "WORD_AFTER = 40",
        "an idle port says so a little more often",
        "nothing",
    ),
)


def faulty_port(fault: Fault, entry_bits: int) -> str:
    """Verilog of a port with the fault in it. Raises FaultError if it cannot be made (within five minutes)."""
    return _faulty("port", fault, entry_bits)


def faulty_node(fault: Fault, entry_bits: int) -> str:
    """Verilog of a ring node with the fault in it, likewise."""
    return _faulty("node", fault, entry_bits)


def _faulty(design: str, fault: Fault, entry_bits: int) -> str:
    request = {"design": design, "fault": dataclasses.asdict(fault), "entry_bits": entry_bits}
    what = f"fault {fault.name}: the faulty {design}"
    return run_fresh("sim.rtl.link_faults", request, what, _EXPORT_LIMIT_S, FaultError)


def _export(request: dict) -> str:
    """Install the fault, then import and elaborate the design: in this order, so not at the top of this module."""
    install(Fault(**request["fault"]))
    from sim.rtl.link_pair import port_verilog
    from sim.rtl.node_ring import node_verilog

    return {"port": port_verilog, "node": node_verilog}[request["design"]](request["entry_bits"])


if __name__ == "__main__":
    sys.stdout.write(_export(json.load(sys.stdin)))
