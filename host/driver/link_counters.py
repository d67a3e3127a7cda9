"""What a board's ring ports counted in one run, of any length."""

from __future__ import annotations

from host.driver.kernel_registers import KernelRegisters

__all__ = ["LinkCounters"]

_WRAP = 1 << 16  # the kernel's counters count modulo this


class LinkCounters:
    """Counters of both ports of `kernel` from now on.

    The kernel's counters run through 2^16 and begin anew only with its reset: :meth:`update` must be called before any
    of them has gone round once (a port sends less than 30,000 frames a millisecond).
    """

    def __init__(self, kernel: KernelRegisters) -> None:
        self._kernel = kernel
        self._last = kernel.link_counters()
        self.ports: list[dict[str, int]] = [dict.fromkeys(port, 0) for port in self._last]

    def update(self) -> None:
        """Add what was counted since the last look."""
        now = self._kernel.link_counters()
        for total, before, after in zip(self.ports, self._last, now, strict=True):
            for name in total:
                total[name] += (after[name] - before[name]) % _WRAP
        self._last = now
