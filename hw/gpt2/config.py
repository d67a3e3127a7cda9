"""The one frozen description of a GPT-2 core from which gateware, executors and compiler take their sizes."""

from __future__ import annotations

import dataclasses
import hashlib
import json

__all__ = ["CORE_CONFIGS", "ROWS", "WEIGHTS", "ConfigError", "CoreConfig", "core_config"]

FORMAT_VERSION = 2


class ConfigError(ValueError):
    """A core configuration that cannot be built; the message lists every violated constraint."""


ROWS = (1, 2, 4)
"""Tokens that can share one pass over the weights."""
WEIGHTS = ("fp16", "int8")
"""Formats of the weights."""

# Limits that come from the widths of instruction fields, registers and the memory map.
_RANGES = (
    ("channels", 1, 32),
    ("context", 1, 4095),
    ("act_words", 1, 4096),
    ("prob_words", 1, 1024),
    ("new_key_words", 1, 1024),
    ("new_value_strips", 1, 4096),
    ("residual_strips", 1, 1 << 14),
    ("param_depth", 1, 1024),
    ("score_rows", 1, 4096),
    ("fifo_words", 32, 4096),
    ("core_clock_mhz", 1, 1000),
    ("port_clock_mhz", 1, 1000),
)


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclasses.dataclass(frozen=True)
class CoreConfig:
    """Sizes of one GPT-2 core.

    Parameters
    ----------
    name : str
        ``TILExLANES``, for example ``16x4``; with ``rR`` behind it for R rows, ``i8`` for int8 weights.
    tile : int
        T, fp16 products per lane and cycle; power of two, 8 to 64.
    lanes : int
        N, output columns per cycle; power of two, divides ``tile``.
    channels : int
        HBM pseudo-channels; a multiple of ``lanes``; ``channels * port_bits == tile * lanes * 16``.
    port_bits : int
        Data width of one memory port, 256 or 512.
    context : int
        Positions that score buffer and token memory hold; a multiple of ``tile``.
    rows : int
        R, tokens that share one pass over the weights: 1, 2 or 4, at most ``lanes`` (docs/rows.md).
    weights : str
        Format of the weights of MM: ``fp16`` or ``int8`` (docs/int8.md).
    guard_bits : int
        G of the dot tile (see ``hw.numerics.dot``).
    acc_depth : int
        fp32 accumulators per lane; strips that can be open at once.
    param_depth : int
        Strips whose bias and column sum each lane holds.
    act_words : int
        Words of T fp16 of the activation memory.
    residual_strips : int
        Leading strips of the activation memory that are mirrored beside the drain unit.
    prob_words : int
        Words of T fp16 of the probability memory (softmax output).
    new_key_words, new_value_strips : int
        Current token's keys (words of T) and values (strips of N) kept on chip.
    score_rows : int
        Rows of N scores that can wait for the exponential pass, over all heads; a power of two, at least context / N.
    fifo_words : int
        Rows that each channel's read FIFO holds; a power of two. A refresh of the memory is bridged by what exceeds the
        reads in flight: 180 rows or more (gpt2_core_sketch section 4).
    instructions, descriptors : int
        Depth of the instruction and access memories (128-bit words).
    slr_stages : int
        Extra registers on the wide paths between the lanes and the rest: operands and weights there, results back; and
        on the way of the pop to the read FIFOs. The few control bits of a lane are taken from the tag of the stage that
        they belong to; synthesis may retime them.
    core_clock_mhz, port_clock_mhz : int
        Assumed clocks of the core and of the memory ports (``ap_clk`` and ``ap_clk_2``). Simulation keeps their ratio.
    """

    name: str
    tile: int
    lanes: int
    channels: int
    port_bits: int
    context: int = 1024
    rows: int = 1
    weights: str = "fp16"
    guard_bits: int = 4
    acc_depth: int = 128
    param_depth: int = 256
    act_words: int = 512
    residual_strips: int = 256
    prob_words: int = 512
    new_key_words: int = 64
    new_value_strips: int = 256
    score_rows: int = 512
    fifo_words: int = 512
    instructions: int = 256
    descriptors: int = 64
    slr_stages: int = 0
    core_clock_mhz: int = 200
    port_clock_mhz: int = 225

    def __post_init__(self) -> None:
        problems: list[str] = []
        texts = ("name", "weights")
        wrong = [f for f in dataclasses.fields(self) if f.name not in texts and type(getattr(self, f.name)) is not int]
        if wrong:
            got = ", ".join(f"{f.name} = {getattr(self, f.name)!r}" for f in wrong)
            raise ConfigError(f"core {self.name!r} cannot be built: sizes must be whole numbers, got {got}")

        def need(ok: bool, text: str) -> None:
            if not ok:
                problems.append(text)

        need(_power_of_two(self.tile) and 8 <= self.tile <= 64, f"tile must be 8, 16, 32 or 64, got {self.tile!r}")
        need(_power_of_two(self.lanes) and self.lanes >= 2, f"lanes must be a power of two >= 2, got {self.lanes!r}")
        if not problems:
            need(self.tile % self.lanes == 0, f"lanes ({self.lanes}) must divide tile ({self.tile})")
            need(self.channels % self.lanes == 0, f"lanes ({self.lanes}) must divide channels ({self.channels})")
            need(
                self.channels * self.port_bits == self.tile * self.lanes * 16,
                f"channels x port_bits must be tile x lanes x 16 = {self.tile * self.lanes * 16}, "
                f"got {self.channels} x {self.port_bits} = {self.channels * self.port_bits}",
            )
            need(
                self.context % self.tile == 0 and self.context >= self.tile,
                f"context must be a multiple of tile ({self.tile}), got {self.context!r}",
            )
            need(
                self.strip_addresses <= 1 << 16,
                f"strip addresses must fit 16 bits, the memories have {self.strip_addresses} strips",
            )
            need(
                self.lanes * 32 <= self.port_bits,
                f"a strip of fp32 logits ({self.lanes} x 32 bits) must fit a port word of {self.port_bits} bits",
            )
        need(self.port_bits in (256, 512), f"port_bits must be 256 or 512, got {self.port_bits!r}")
        need(_power_of_two(self.channels), f"channels must be a power of two, got {self.channels!r}")
        for field, low, high in _RANGES:
            value = getattr(self, field)
            need(low <= value <= high, f"{field} must be {low} to {high}, got {value!r}")
        need(self.rows in ROWS, f"rows must be 1, 2 or 4, got {self.rows!r}")
        need(self.rows <= max(self.lanes, 1), f"rows must be at most lanes ({self.lanes}), got {self.rows!r}")
        need(self.weights in WEIGHTS, f"weights must be fp16 or int8, got {self.weights!r}")
        need(
            not self.has_int8 or self.lanes < 1 or self.strips_per_word >= 2,
            f"int8 weights need a word of two strips or more: tile {self.tile}, lanes {self.lanes}",
        )
        need(0 <= self.guard_bits <= 8, f"guard_bits must be 0 to 8, got {self.guard_bits!r}")
        for field in ("acc_depth", "param_depth", "residual_strips", "score_rows", "fifo_words"):
            need(_power_of_two(getattr(self, field)), f"{field} must be a power of two, got {getattr(self, field)!r}")
        need(self.acc_depth <= 256, f"acc_depth must be at most 256, got {self.acc_depth!r}")
        need(self.acc_depth <= self.param_depth, f"param_depth ({self.param_depth}) must hold acc_depth strips")
        need(
            self.lanes < 1 or self.score_rows * self.lanes >= self.context,
            f"score_rows must hold the context: {self.context} / {self.lanes} lanes, got {self.score_rows!r}",
        )
        need(self.fifo_words >= 32, f"fifo_words must be at least 32 (two bursts), got {self.fifo_words!r}")
        need(0 <= self.slr_stages <= 8, f"slr_stages must be 0 to 8, got {self.slr_stages!r}")
        need(1 <= self.instructions <= 512, f"instructions must be 1 to 512, got {self.instructions!r}")
        need(1 <= self.descriptors <= 64, f"descriptors must be 1 to 64, got {self.descriptors!r}")
        if problems:
            raise ConfigError(f"core {self.name!r} cannot be built: " + "; ".join(problems))

    @property
    def strips_per_word(self) -> int:
        """Strips of N results that make one activation word of T."""
        return self.tile // self.lanes

    @property
    def channels_per_lane(self) -> int:
        """Memory channels that feed one lane."""
        return self.channels // self.lanes

    @property
    def port_bytes(self) -> int:
        """Bytes of one channel word."""
        return self.port_bits // 8

    @property
    def param_strips(self) -> int:
        """Strips covered by one parameter row: T/2 fp32 values per lane."""
        return self.tile // 2

    @property
    def has_int8(self) -> bool:
        """Whether the weights of MM are int8, so that a row of them serves two strips."""
        return self.weights == "int8"

    @property
    def mm_strips(self) -> int:
        """Strips that one row of an MM's weights serves."""
        return 2 if self.has_int8 else 1

    @property
    def has_ring(self) -> bool:
        """Whether the core can share a model with other boards: one row, and a link's word of 32 bytes is no more
        than one of T."""
        return self.tile >= 16 and self.rows == 1

    @property
    def link_entry_bits(self) -> int:
        """Bits that core and ring exchange in a cycle: at most a word of T."""
        return min(512, self.tile * 16)

    # Strip address space of destinations: activation memory, then new keys, then new values.
    @property
    def new_key_base(self) -> int:
        """First strip address of the new-key buffer."""
        return self.act_words * self.strips_per_word

    @property
    def new_value_base(self) -> int:
        """First strip address of the new-value buffer."""
        return self.new_key_base + self.new_key_words * self.strips_per_word

    @property
    def strip_addresses(self) -> int:
        """Size of the strip address space."""
        return self.new_value_base + self.new_value_strips

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, with the format version.

        ``weights`` stands there only if they are not fp16: so cores from before there were others keep their digest.
        """
        data = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        if not self.has_int8:
            del data["weights"]
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CoreConfig:
        """Read :meth:`to_json`'s text. Raises ConfigError for another format version or unknown fields."""
        data = json.loads(text)
        version = data.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise ConfigError(f"core config format version {version!r}, this Ringfly reads {FORMAT_VERSION}")
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ConfigError(f"unknown core config fields: {', '.join(unknown)}")
        return cls(**data)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


_NAMED = (
    CoreConfig(name="16x4", tile=16, lanes=4, channels=4, port_bits=256),
    CoreConfig(name="64x16", tile=64, lanes=16, channels=32, port_bits=512, score_rows=256, slr_stages=2),
)


def _name(base: str, rows: int, weights: str) -> str:
    """Name of the core that is ``base`` with so many rows and such weights."""
    return base + (f"r{rows}" if rows > 1 else "") + ("i8" if weights == "int8" else "")


CORE_CONFIGS = {
    (name := _name(base.name, rows, weights)): dataclasses.replace(base, name=name, rows=rows, weights=weights)
    for base in _NAMED
    for weights in WEIGHTS
    for rows in ROWS
}
"""The cores that a user can name."""


def core_config(name: str, rows: int = 1, weights: str = "fp16") -> CoreConfig:
    """A named core; ``rows`` and ``weights`` add to its name: 16x4, 4 and int8 are ``16x4r4i8``.

    Raises ConfigError that lists what is known.
    """
    if weights not in WEIGHTS:
        raise ConfigError(f"weights must be fp16 or int8, got {weights!r}")
    named = _name(name, rows, weights)
    try:
        return CORE_CONFIGS[named]
    except KeyError:
        raise ConfigError(f"unknown core {named!r}; known cores: {', '.join(CORE_CONFIGS)}") from None
