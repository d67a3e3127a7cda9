"""A component that is elaborated once and instantiated many times by name."""

from __future__ import annotations

from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal, Value, ValueCastable
from amaranth.lib import wiring
from amaranth.lib.wiring import In

__all__ = ["ByName", "Shared", "flat_ports"]


class ByName:
    """Platform that tells :class:`Shared` to become an instance; ``hw.board.export`` elaborates with it."""


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
        Has no clock domain but ``sync``, all its behaviour follows from its ports. Several ``Shared`` may take the same
        object as their pattern only in exports; simulation needs one object each.

    Members
    -------
    Those of ``component``.

    Timing: that of ``component``.
    """

    def __init__(self, name: str, component: wiring.Component) -> None:
        self.module_name = name
        self.component = component
        super().__init__(component.signature)

    def elaborate(self, platform):
        mine, inner = flat_ports(self), flat_ports(self.component)
        if isinstance(platform, ByName):
            self.component._MustUse__silence = True  # elaborated by the export, or an equal one is
            ports = {
                ("i_" if is_input else "o_") + name: value for name, (value, is_input) in mine.items() if len(value)
            }
            return Instance(self.module_name, i_clk=ClockSignal(), i_rst=ResetSignal(), **ports)
        m = Module()
        m.submodules.shared = self.component
        for name, (value, is_input) in mine.items():
            m.d.comb += inner[name][0].eq(value) if is_input else value.eq(inner[name][0])
        return m
