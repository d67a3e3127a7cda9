"""A component that is elaborated once and instantiated many times by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from amaranth.hdl import ClockSignal, DomainRenamer, Instance, Module, ResetSignal, Value, ValueCastable
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hw.bus.synchronizers import marked_async_ff_sync, marked_ff_sync

__all__ = ["ByName", "Shared", "flat_ports"]


class ByName:
    """Platform of ``hw.board.export``: tells :class:`Shared` to become an instance, and marks clock crossings."""

    get_ff_sync = staticmethod(marked_ff_sync)
    get_async_ff_sync = staticmethod(marked_async_ff_sync)


def flat_ports(component: wiring.Component) -> dict[str, tuple[Value, bool]]:
    """Ports of a component in the order of its signature: name to (value, is it an input).

    Names are the member paths joined by ``_``, as Vitis expects of a kernel (``m_axi_0_araddr``). Raises ValueError if
    two paths give the same name.
    """
    ports: dict[str, tuple[Value, bool]] = {}
    for path, member, value in component.signature.flatten(component):
        if isinstance(value, ValueCastable):
            value = value.as_value()
        name = "_".join(map(str, path))
        if name in ports or name in ("clk", "rst"):
            raise ValueError(f"two ports of {type(component).__name__} would be named {name!r}; rename a member")
        ports[name] = (value, member.flow == In)
    return ports


class Shared(wiring.Component):
    """One of several identical modules: same members as ``component``, which is the module that all of them are.

    Amaranth elaborates every submodule anew, so sixteen equal lanes take sixteen times as long as one and give sixteen
    modules. In an export by ``hw.board.export`` this component becomes ``name(clk, rst, ports)`` and the module of that
    name is elaborated once. Everywhere else (Amaranth's simulator, plain Verilog conversion) it is the module itself.

    Parameters
    ----------
    name : str
        Verilog module name; the same name must always stand for equal components.
    component : wiring.Component
        All its behaviour follows from its ports and clock domains. Several ``Shared`` may take the same object as their
        pattern only in exports; simulation needs one object each.
    domains : mapping from str to str
        Each clock domain of the component and the domain that stands for it where the instance is. The module's ports
        are ``clk`` and ``rst`` for ``sync``, ``<domain>_clk`` and ``<domain>_rst`` for others.

    Members
    -------
    Those of ``component``.

    Timing: that of ``component``.
    """

    def __init__(
        self, name: str, component: wiring.Component, domains: Mapping[str, str] = MappingProxyType({"sync": "sync"})
    ) -> None:
        self.module_name = name
        self.component = component
        self.domains = dict(domains)
        super().__init__(component.signature)

    def elaborate(self, platform):
        mine, inner = flat_ports(self), flat_ports(self.component)
        if isinstance(platform, ByName):
            self.component._MustUse__silence = True  # elaborated by the export, or an equal one is
            ports = {
                ("i_" if is_input else "o_") + name: value for name, (value, is_input) in mine.items() if len(value)
            }
            for inside, outside in self.domains.items():
                prefix = "i_" if inside == "sync" else f"i_{inside}_"
                ports |= {f"{prefix}clk": ClockSignal(outside), f"{prefix}rst": ResetSignal(outside)}
            return Instance(self.module_name, **ports)
        m = Module()
        m.submodules.shared = DomainRenamer(self.domains)(self.component)
        for name, (value, is_input) in mine.items():
            m.d.comb += inner[name][0].eq(value) if is_input else value.eq(inner[name][0])
        return m
