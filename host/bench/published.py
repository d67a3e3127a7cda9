"""A figure that somebody published about a model on an accelerator, with everything needed to compare it.

The figures themselves are in `host.bench.published_figures`. None of them was measured or simulated here.
"""

from __future__ import annotations

import dataclasses
import enum

from host.bench.streamed_work import HALF_BITS, token_bytes
from sw.models.named_sizes import NAMED_SIZES

__all__ = ["Basis", "Published", "Quantity"]


class Quantity(enum.StrEnum):
    """What a figure is of."""

    TOTAL_MS = "total_ms"
    """Latency of prompt and all output tokens."""
    FIRST_TOKEN_MS = "first_token_ms"
    """Latency of the prompt up to the first new token."""
    STEP_MS = "ms_per_step"
    """One token step in steady decode."""
    DECODE_RATE = "decode_tokens_per_s"
    """Tokens a second in decode, the prompt's time left out."""
    RATE_WITH_PROMPT = "tokens_per_s_with_prompt"
    """Output tokens over a time that includes the prompt."""
    BANDWIDTH_FRACTION = "bandwidth_fraction"
    """Part of the memory's peak bandwidth that is used, as the authors say."""
    SYNC_FRACTION = "exposed_sync_fraction"
    """Part of a step in which boards wait for each other."""
    LUT_FRACTION = "lut_fraction"
    """Part of the device's LUTs that is taken."""
    DSP_FRACTION = "dsp_fraction"
    """Part of its DSPs."""
    BRAM_FRACTION = "bram_fraction"
    """Part of its block RAMs."""
    POWER_W = "power_w_per_device"
    """Power of one device at work."""
    PRICE_USD = "price_usd_per_device"
    """Price of one device alone."""


class Basis(enum.StrEnum):
    """How a figure came about."""

    MEASURED = "measured on the device by its authors"
    THIRD_PARTY = "measured on the device by others"
    SIMULATED = "simulated by its authors"
    CLAIMED = "stated by its authors without the measurement"
    DERIVED = "derived by arithmetic from published figures"
    EXTRAPOLATED = "extrapolated by whoever tabulated it"


_WITH_PROMPT = (Quantity.TOTAL_MS, Quantity.FIRST_TOKEN_MS, Quantity.RATE_WITH_PROMPT)


@dataclasses.dataclass(frozen=True)
class Published:
    """One figure.

    Parameters
    ----------
    system : what was built; the name that tables use.
    citation : the work that the figure is from.
    read_from : where it was read, if not in the work itself; a re-tabulation may carry its own conditions.
    device, devices : the board, part of a board or GPU, and how many of them.
    devices_a_board : parts that one board has, if a device is a part of it.
    model : a name of `sw.models.named_sizes.NAMED_SIZES` where it is one of these sizes, else the authors' name.
    precision : of weights and activations, in the authors' words.
    weight_bits : bits of a weight, for bytes per token.
    quantity, value : what, and how much in the unit that the quantity's name ends with (fractions from 0 to 1).
    basis : how the figure came about.
    conditions : everything else that a reader must know before comparing.
    length : (prompt, output) tokens of figures that depend on them.
    attended : positions attended in the step, where the source says.
    peak_gb_s : theoretical memory bandwidth of one device in GB/s, where the source names it.
    weight_bytes : bytes of the weights of a model that is not of a named size, where the source says.

    Raises ValueError for a quantity without the length that it depends on.
    """

    system: str
    citation: str
    device: str
    model: str
    precision: str
    weight_bits: float
    quantity: Quantity
    value: float
    basis: Basis
    conditions: str
    devices: int = 1
    devices_a_board: int = 1
    read_from: str = "the work itself"
    length: tuple[int, int] | None = None
    attended: int | None = None
    peak_gb_s: float | None = None
    weight_bytes: float | None = None

    def __post_init__(self) -> None:
        if self.prompt_included and self.length is None:
            raise ValueError(f"{self.system}: {self.quantity} depends on the lengths of prompt and output: give them")

    @property
    def prompt_included(self) -> bool:
        """Whether the time that the figure is of, or divides by, includes the prompt."""
        return self.quantity in _WITH_PROMPT

    @property
    def boards(self) -> int:
        """Boards or GPUs that the devices are, one of which may be used in part."""
        return -(-self.devices // self.devices_a_board)

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.quantity in (Quantity.DECODE_RATE, Quantity.RATE_WITH_PROMPT)

    @property
    def step_ms(self) -> float | None:
        """Milliseconds of a decode step where the figure is one or is a decode rate."""
        if self.quantity == Quantity.STEP_MS:
            return self.value
        return 1000 / self.value if self.quantity == Quantity.DECODE_RATE else None

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes that a decode step has to read, by the same rule as for our own figures: precision x parameters + K/V.

        K/V are fp16 for fp16 weights, else one byte. None where the figure is not of a decode step or the model's size
        is not known. Without a stated number of attended positions that of a [64:64] run's middle, 96, counts.
        """
        if self.step_ms is None:
            return None
        attended = 96 if self.attended is None else self.attended
        if self.length is not None:
            attended = self.length[0] + self.length[1] // 2
        kv_bits = HALF_BITS if self.weight_bits >= HALF_BITS else 8
        if self.model in NAMED_SIZES:
            return token_bytes(NAMED_SIZES[self.model], attended, weight_bits=int(self.weight_bits), kv_bits=kv_bits)
        return self.weight_bytes

    @property
    def implied_bandwidth_fraction(self) -> float | None:
        """Part of the peak that bytes per token over the step's time come to; None where either is not known."""
        if self.step_ms is None or self.peak_gb_s is None or self.bytes_per_token is None:
            return None
        return self.bytes_per_token / (self.step_ms * 1e-3) / (self.peak_gb_s * 1e9 * self.devices)

    @property
    def label(self) -> str:
        """System, precision and number of devices, for tables and pictures."""
        several = "" if self.devices == 1 else f" x {self.devices}"
        return f"{self.system}, {self.device}{several}, {self.precision}"

    def facts(self) -> dict[str, object]:
        """The figure with all conditions, for `--json`."""
        own = dataclasses.asdict(self)
        own |= {"quantity": self.quantity.value, "basis": self.basis.value, "source": f"published by {self.citation}"}
        return own | {
            "prompt_included": self.prompt_included,
            "bytes_per_token": self.bytes_per_token,
            "implied_bandwidth_fraction": self.implied_bandwidth_fraction,
        }
