"""The GPT-2 kernel of an Alveo U280: control, core, one AXI4-Lite slave, one AXI4 master for each memory port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from amaranth.hdl import ClockDomain, DomainRenamer, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from hw.board.control import Gpt2Control
from hw.board.core_interface import ADDRESS_BITS, core_members, link_members
from hw.board.gpt2_map import LINK_PORTS, STALL_CAUSES, RunState
from hw.board.resets import CrossedResets
from hw.bus.axi import Axi4Signature, AxiLiteSignature
from hw.gpt2.config import CoreConfig

__all__ = ["Core", "U280Top"]


class Core(Protocol):
    """A core as the kernel sees it: members of ``core_members``, ``m_axi`` (array of Axi4Signature), shared modules."""

    def shared_modules(self) -> Mapping[str, wiring.Component]:
        """Module name to pattern of every ``Shared`` inside."""


class U280Top(wiring.Component):
    """The kernel with the ports that Vitis wants.

    Parameters
    ----------
    config : CoreConfig
    core : callable from config to a core
        Default: ``hw.gpt2.core.Gpt2Core``.

    Members
    -------
    ``ap_clk``, ``ap_rst_n`` : clock of core and registers; its reset, active low, sampled by the clock.
    ``ap_clk_2``, ``ap_rst_n_2`` : the same of the memory ports. Either reset resets both sides, so that the FIFOs
        between them start empty; each must last some cycles of both clocks.
    ``s_axi_control`` : registers (``hw.board.gpt2_map``). ``m_axi`` : the memory ports.
    ``link_0_clk``, ``link_1_clk`` : user clocks of the Aurora cores at the left and the right port; ``link_q_up``
        (channel up), ``link_q_tx``, ``link_q_rx`` : their streams. Only for cores with a ring; a board alone may leave
        them open.
    ``probe_state``, ``probe_tile``, ``probe_stall`` : RunState, whether a tile is issued in this cycle, and if none is,
        why (index into STALL_CAUSES); for simulators, left open on a card.

    Attributes
    ----------
    shared : mapping from module name to component, for ``hw.board.export``.

    Timing: the core is held in reset by ``ap_rst_n`` and for some cycles at the end of each run; the reset is a reset
    of its clock domain, so that it also reaches modules that are instances. The memory ports are not reset between
    runs: they are empty then.
    """

    def __init__(self, config: CoreConfig, core: Callable[[CoreConfig], Core] | None = None):
        if core is None:
            from hw.gpt2.core import Gpt2Core

            core = Gpt2Core
        self.config = config
        self.control = Gpt2Control(config)
        self.core = core(config)
        self.shared = dict(self.core.shared_modules())
        super().__init__(
            {
                "ap_clk": In(1),
                "ap_rst_n": In(1),
                "ap_clk_2": In(1),
                "ap_rst_n_2": In(1),
                "s_axi_control": In(AxiLiteSignature((self.control.map.size - 1).bit_length())),
                "m_axi": Out(Axi4Signature(ADDRESS_BITS, config.port_bits, 1)).array(config.channels),
                **(link_members() | {f"link_{q}_clk": In(1) for q in range(LINK_PORTS)} if config.has_ring else {}),
                "probe_state": Out(RunState),
                "probe_tile": Out(1),
                "probe_stall": Out(range(len(STALL_CAUSES))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        control, core = self.control, self.core
        sync = ClockDomain("sync")
        core_domain = ClockDomain("core", local=True)
        kernel, port = ClockDomain("kernel", local=True), ClockDomain("port", local=True)
        sync.clk = core_domain.clk = kernel.clk = self.ap_clk  # one clock, so nothing crosses
        port.clk = self.ap_clk_2
        m.domains += [sync, core_domain, kernel, port]
        m.submodules.resets = resets = CrossedResets()
        m.d.comb += [
            resets.ap_rst_n.eq(self.ap_rst_n),
            resets.ap_rst_n_2.eq(self.ap_rst_n_2),
            kernel.rst.eq(resets.kernel),
            sync.rst.eq(resets.kernel),
            core_domain.rst.eq(resets.kernel | control.core_reset),
            port.rst.eq(resets.port),
        ]
        m.submodules.control = control
        m.submodules.core = DomainRenamer("core")(core)
        wiring.connect(m, wiring.flipped(self.s_axi_control), control.s_axi_control)
        for name, member in core_members(self.config).items():
            ours, theirs = getattr(control.core, name), getattr(core, name)
            m.d.comb += theirs.eq(ours) if member.flow == In else ours.eq(theirs)
        if self.config.has_ring:
            self._links(m, kernel)
        for inner, outer in zip(core.m_axi, self.m_axi, strict=True):
            wiring.connect(m, inner, wiring.flipped(outer))
        m.d.comb += [
            self.probe_state.eq(control.state),
            self.probe_tile.eq(core.tile),
            self.probe_stall.eq(core.stall),
        ]
        return m

    def _links(self, m: Module, kernel: ClockDomain) -> None:
        """Clock domains of the two ports, and their streams."""
        for q in range(LINK_PORTS):
            domain = ClockDomain(f"link_{q}", local=True)
            m.domains += domain
            domain.clk = getattr(self, f"link_{q}_clk")
            reset = Signal(name=f"link_{q}_reset")
            m.submodules[f"link_{q}_reset"] = FFSynchronizer(kernel.rst, reset, o_domain=f"link_{q}")
            m.d.comb += [domain.rst.eq(reset), getattr(self.core, f"link_{q}_up").eq(getattr(self, f"link_{q}_up"))]
            for stream in (f"link_{q}_tx", f"link_{q}_rx"):
                wiring.connect(m, getattr(self.core, stream), wiring.flipped(getattr(self, stream)))
