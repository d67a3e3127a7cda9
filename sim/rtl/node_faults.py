"""Seeded faults of the ring node; ``sim.rtl.link_faults.faulty_node`` exports a node with one of them."""

from __future__ import annotations

from sim.rtl.fault_patch import Fault

__all__ = ["NODE_FAULTS"]

_NODE, _PORT, _TRANSMITTER = "hw.link.node", "hw.link.port", "hw.link.transmitter"

# `caught_by` names a check of sim/rtl/node_checks.py.
NODE_FAULTS = (
    Fault(
        "hops_not_counted",
        _NODE,
        "port.push_header.hops.eq(head.header.hops - 1)",
        "port.push_header.hops.eq(head.header.hops)",
        "a frame that goes on goes on for ever",
        "frames",
    ),
    Fault(
        "one_hop_too_many",
        _NODE,
        "port.push_header.hops.eq(reach[q] - 1)",
        "port.push_header.hops.eq(reach[q])",
        "frames reach one board more than they should, which gets them twice",
        "frames",
    ),
    Fault(
        "farthest_board_always_right",
        _NODE,
        "m.d.kernel += turn.eq(~turn)",
        "m.d.kernel += turn.eq(0)",
        "the farthest board of an even ring is always reached the same way",
        "frames",
    ),
    Fault(
        "bus_taken_by_both",
        _NODE,
        "(port.room_local & ~passing[q] & ",
        "(port.room_local & ",
        "an entry of the core is lost where a passing one is written",
        "frames",
    ),
    Fault(
        "local_first_into_the_last_slot",
        _TRANSMITTER,
        "(in_use <= SLOTS - _NEEDS[region]) & window)",
        "(in_use <= SLOTS - 1) & window & ((region == LOCAL) | (self.pushed[LOCAL] == sent[LOCAL])))",
        "local frames go before those in transit and leave no slot for them: a ring locks up",
        "saturation",
    ),
    Fault(
        "next_run_not_awaited",
        _NODE,
        "m.d.comb += take.eq(ours & room)",
        "m.d.comb += take.eq(room)",
        "frames of the next run are taken in this one and lost",
        "successive runs",
    ),
    Fault(
        "begun_frame_dropped",
        _NODE,
        "with m.If(port.frame_valid & (index != 0)):",
        "with m.If(port.frame_valid & (index != 0) & self.active & ours):",
        "the slot of a frame that is half read when its run breaks is freed, and the next frame read from the middle",
        "broken runs",
    ),
    Fault(
        "broken_run_passes_on",
        _NODE,
        ", stale=~ours[p])",
        ")",
        "frames of a broken run follow HELLO of the next run, and nobody takes them",
        "broken runs",
    ),
    Fault(
        "transit_overtakes_hello",
        _NODE,
        "with m.Elif(port.empty):",
        "with m.Else():",
        "frames in transit reach a board before its neighbour's HELLO and are dropped as left over",
        "broken runs",
    ),
    Fault(
        "left_over_not_dropped",
        _NODE,
        "m.d.comb += drop.eq(1)",
        "m.d.comb += drop.eq(0)",
        "frames of a broken run stay in their slots, and HELLO of the next run behind them",
        "broken runs",
    ),
    Fault(
        "next_frame_from_the_middle",
        _NODE,
        "m.d.kernel += index.eq(0)  # the rest",
        "m.d.kernel += index.eq(index)  # the rest",
        "after a cut in the middle of a frame the next one is read from there on",
        "cut cables",
    ),
    Fault(
        "dead_port_holds_up",
        _NODE,
        "needed.eq((reach[q] != 0) & ((send.kind == FrameKind.HELLO) | ~skip))",
        "needed.eq(reach[q] != 0)",
        "frames towards a cut cable wait, and with them those that go the other way",
        "lost cable",
    ),
    Fault(
        "ports_not_in_turns",
        _NODE,
        "m.d.comb += chosen.eq(Mux(able[0] & able[1], ~before, able[1]))",
        "m.d.comb += chosen.eq(Mux(able[0] & able[1], 0, able[1]))",
        "frames from the right wait as long as others come from the left",
        "saturation",
    ),
    Fault(
        "delivery_buffer_overwritten",
        _NODE,
        "with m.If(~spare_valid):",
        "with m.If(comes):",
        "an entry that waits behind one that the core does not take is lost to the next",
        "frames",
    ),
    Fault(
        "room_a_push_late",
        _PORT,
        "Mux(pushed.increment, used != SLOTS - 1, used != SLOTS)",
        "used != SLOTS",
        "two frames of one entry that follow each other take the last slot",
        "saturation",
    ),
    Fault(
        "control_reads_further_ahead",
        _NODE,
        "READ_AHEAD = 4",
        "READ_AHEAD = 6",
        "more entries are between the slots and the core",
        "nothing",
    ),
)
