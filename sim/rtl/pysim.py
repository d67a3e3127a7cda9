"""A component in Amaranth's own simulator, with a limit on the simulated cycles: for unit tests of protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator

__all__ = ["run_testbench"]

Testbench = Callable[[Any], Awaitable[None]]

_UNIT_S = 1e-9


def run_testbench(
    component: Elaboratable,
    main: Testbench,
    *,
    background: Iterable[Testbench] = (),
    cycles: int,
    clocks: Mapping[str, tuple[int, int]] | None = None,
    progress: Callable[[], str] = lambda: "no end",
) -> None:
    """Clock ``component`` until ``main`` returns.

    Parameters
    ----------
    main : testbench (takes a simulator context) whose end is the end of the run.
    background : testbenches that run beside it and need not end.
    cycles : limit, in cycles of domain ``sync``; when it is reached, AssertionError says ``progress()`` and the limit.
    clocks : period and time of the first rising edge of each clock domain, in a common unit; default ``sync`` alone.
    """
    simulator = Simulator(component)
    for domain, (period, phase) in (clocks or {"sync": (1000, 500)}).items():
        simulator.add_clock(period * _UNIT_S, phase=phase * _UNIT_S, domain=domain)
    ended = False

    async def to_the_end(ctx: Any) -> None:
        nonlocal ended
        await main(ctx)
        ended = True

    async def watchdog(ctx: Any) -> None:
        for _ in range(cycles):
            await ctx.tick()
            if ended:
                return
        raise AssertionError(f"{progress()} within {cycles} cycles")

    for testbench in background:
        simulator.add_testbench(testbench, background=True)
    simulator.add_testbench(to_the_end)
    simulator.add_testbench(watchdog)
    simulator.run()
