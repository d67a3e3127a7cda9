"""Memory map of the GPT-2 kernel (AXI-Lite, 64 KiB; 128 KiB for a core with several rows)."""

from __future__ import annotations

import enum

from hw.bus.registers import Register, RegisterMap, Window
from hw.gpt2.config import CoreConfig

__all__ = [
    "IDENTITY",
    "INTERFACE_VERSION",
    "LINK_COUNTERS",
    "LINK_PORTS",
    "MAX_BOARDS",
    "ROW_REGISTERS",
    "SAMPLING_REGISTERS",
    "STALL_CAUSES",
    "STALL_MEANINGS",
    "ErrorCode",
    "Flags",
    "RunState",
    "gpt2_register_map",
    "row_register",
]

IDENTITY = 0x52464C59  # "RFLY"
INTERFACE_VERSION = 0x0002_0001  # major << 16 | minor; the host refuses another major

STALL_MEANINGS = {
    "token": "at a token boundary, waiting for the arg-max",
    "instruction": "no decoded instruction at hand",
    "writer": "keys or values of the layer before are still being written",
    "statistics": "statistics unit still busy with the vector before",
    "params": "parameter rows follow each other too closely",
    "accumulator": "same accumulator used less than its latency ago",
    "score_room": "all score rows wait for the exponential",
    "softmax": "probabilities or their sum are not ready",
    "norm": "LayerNorm scalars are not ready",
    "operand": "an activation word is not complete",
    "link": "another board's strips, sums or arg-max have not arrived",
    "new_kv": "the current token's key or value is not complete",
    "result": "destination strip has an older result under way",
    "send": "the queue toward the other boards is full",
    "stream": "memory has not delivered",
    "drain": "run is ending: reads, writes and pipelines empty",
}
"""Why the matrix unit did not issue a tile in a cycle, in order of priority."""

STALL_CAUSES = tuple(STALL_MEANINGS)

MAX_BOARDS = 8
LINK_PORTS = 2  # 0 left, 1 right
LINK_COUNTERS = {
    "frames_sent": "frames sent, each counted once",
    "frames_received": "frames received",
    "frames_dropped": "frames dropped for a wrong CRC, length or sequence number",
    "resends": "times that it went back to send again",
}
"""Counters of each port and what they count."""


class ErrorCode(enum.IntEnum):
    """Contents of the register ``error``."""

    NONE = 0
    CANCELLED = 1  # the host asked
    ILLEGAL = 2  # unknown operation; info = instruction index
    NAN_LOGITS = 3  # info = position
    READ = 4  # RRESP not OKAY; info = channel
    WRITE = 5  # BRESP not OKAY; info = channel
    START = 6  # start registers out of range; info = position
    LINK_DOWN = 7  # info = port (0 left, 1 right) whose cable is dead
    NO_HELLO = 8  # info: bit per port, no neighbour has begun this run within link_limit
    RING_VERSION = 9  # info = port << 31 | the neighbour's interface version
    RING_ORDER = 10  # info = port << 31 | the neighbour's ring_boards << 8 | its ring_board
    RING_PROGRAM = 11  # info = port whose neighbour has another core or ring_key
    PEER_SILENT = 12  # info = mask of silent boards, or (1 + strip address waited for) << 8
    PEER_FAILED = 13  # info = board << 8 | its error


class RunState(enum.IntEnum):
    """Contents of the register ``state``."""

    IDLE = 0
    RUN = 1
    DRAIN = 2
    RESET = 3


class Flags(enum.IntFlag):
    """Bits of the register ``flags``."""

    WRITE_LOGITS = 1
    BATCH = 2  # each row is a request of its own (docs/rows.md)


ROW_REGISTERS = {
    "position": "first position to process",
    "prompt_end": "tokens[0 .. prompt_end) are given; > position",
    "max_new_tokens": "tokens to generate, >= 1",
    "stop_count": "stop ids in use, 0 to 4",
    **{f"stop_{i}": "stop id" for i in range(4)},
    "key_base": "first row of the keys",
    "value_base": "first row of the values",
    "logits_base": "first row of the logits region",
}
"""Registers that a request of a batch has for itself; row 0's have no suffix."""

SAMPLING_REGISTERS = {
    "seed": "seed of the sampling",
    "sampling": "0: arg-max; else 1/temperature as mantissa (40 bits) | exponent << 40 (6 bits) | top_k << 48",
}
"""Likewise, of 64 bits each."""


def row_register(name: str, row: int) -> str:
    """Name of a register or window of a row: ``name``, for rows behind the first ``name_ROW``."""
    return f"{name}_{row}" if row else name


def _row_registers(rows: int) -> list[Register]:
    """Registers of rows 1 and on, and the mask of rows; none for a core with one."""
    if rows == 1:
        return []
    registers = [Register("batch_rows", 0x1A4, 32, "rw", "rows that take part in a batch, a bit each")]
    for row in range(1, rows):
        first = 0x600 + 0x80 * (row - 1)
        for i, (name, what) in enumerate(ROW_REGISTERS.items()):
            registers.append(Register(row_register(name, row), first + 4 * i, 32, "rw", f"batch, row {row}: {what}"))
        for i, (name, what) in enumerate(SAMPLING_REGISTERS.items()):
            at = first + 0x48 + 8 * i
            registers.append(Register(row_register(name, row), at, 64, "rw", f"batch, row {row}: {what}"))
        what = f"batch: row {row}'s tokens[0 .. tokens_valid_{row}) are valid"
        registers.append(Register(row_register("tokens_valid", row), first + 0x40, 32, "r", what))
    return registers


def gpt2_register_map(config: CoreConfig) -> RegisterMap:
    """The map of a core. ``rw`` registers are sampled at start and must not change during a run."""
    registers: list[Register] = [
        Register("ctrl", 0x000, 32, "rw", "bit 0 start (write 1), 1 done (until next start), 2 idle, 3 ready"),
        Register("identity", 0x010, 32, "r", "0x52464C59"),
        Register("interface_version", 0x014, 32, "r", "major << 16 | minor"),
        Register("config_digest", 0x018, 64, "r", "first 8 bytes of the core config's SHA-256, big-endian"),
        Register("core_shape", 0x020, 32, "r", "tile | lanes << 8 | channels << 16 | rows << 24"),
        Register("start_count", 0x028, 32, "r", "starts accepted since reset"),
        Register("done_count", 0x02C, 32, "r", "runs ended since reset: a done cannot be lost"),
        Register("error", 0x030, 32, "r", "why the last run ended early, 0 = it did not"),
        Register("error_info", 0x034, 32, "r", "detail of the error"),
        Register("cancel", 0x038, 32, "w", "any write ends the run"),
        Register("state", 0x03C, 32, "r", "0 idle, 1 run, 2 drain, 3 reset"),
        Register("cycles", 0x040, 64, "r", "cycles of the last run, from start to done"),
        Register("tokens_valid", 0x048, 32, "r", "tokens[0 .. tokens_valid) are valid; grows while it runs"),
        Register("tiles", 0x050, 64, "r", "tiles issued in the last run (parameter rows included)"),
        Register("first_token_cycles", 0x058, 64, "r", "cycles from start to the run's first new token, 0 before it"),
        Register(
            "link_status",
            0x060,
            32,
            "r",
            "bits 0, 1: channel up at port 0 (left), 1 (right); 2, 3: port dead; 4: joined",
        ),
        *(
            Register(f"link_{port}_{name}", 0x070 + 16 * port + 4 * i, 32, "r", f"port {port}: {what}, modulo 2^16")
            for port in range(LINK_PORTS)
            for i, (name, what) in enumerate(LINK_COUNTERS.items())
        ),
        Register("position", 0x100, 32, "rw", "first position to process"),
        Register("prompt_end", 0x104, 32, "rw", "tokens[0 .. prompt_end) are given; > position"),
        Register("max_new_tokens", 0x108, 32, "rw", "tokens to generate, >= 1"),
        Register("flags", 0x10C, 32, "rw", "bit 0: write each step's logits to memory; 1: batch"),
        Register("stop_count", 0x110, 32, "rw", "stop ids in use, 0 to 4"),
        *(Register(f"stop_{i}", 0x114 + 4 * i, 32, "rw", "stop id") for i in range(4)),
        Register("context_limit", 0x124, 32, "rw", "positions of the cache; the run ends when it is full"),
        Register("width", 0x128, 32, "rw", "d, elements of the residual vector"),
        Register("eps_term", 0x130, 96, "rw", "round(epsilon * d^2 * 2^48), 80 bits kept"),
        Register("score_scale", 0x13C, 32, "rw", "fp32 factor of the scores, 1/sqrt(head size)"),
        Register("vocab", 0x140, 32, "rw", "logits that take part in the arg-max"),
        Register("layers", 0x144, 32, "rw", "layer instances per token (iterations of the loop that holds attention)"),
        Register("heads", 0x148, 32, "rw", "heads whose keys and values are written"),
        Register("key_words", 0x14C, 32, "rw", "words of T per key, ceil(head size / T)"),
        Register("value_strips", 0x150, 32, "rw", "strips of N per value, head size / N"),
        Register("weight_base", 0x158, 32, "rw", "row where the weight stream of a token starts"),
        Register("position_base", 0x15C, 32, "rw", "first row of the position embedding"),
        Register("token_base", 0x160, 32, "rw", "first row of the token embedding"),
        Register("embed_strips", 0x164, 32, "rw", "rows per block of T positions or tokens (d / N)"),
        Register("key_base", 0x168, 32, "rw", "first row of the keys"),
        Register("key_layer_rows", 0x16C, 32, "rw", "key rows per layer"),
        Register("key_head_rows", 0x170, 32, "rw", "key rows per head"),
        Register("value_base", 0x174, 32, "rw", "first row of the values"),
        Register("value_layer_rows", 0x178, 32, "rw", "value rows per layer"),
        Register("value_head_rows", 0x17C, 32, "rw", "value rows per head"),
        Register("logits_base", 0x180, 32, "rw", "first row of the logits region"),
        Register("logits_rows", 0x184, 32, "rw", "rows per position of the logits region"),
        Register("ring_boards", 0x188, 32, "rw", "boards that share the model, 1 to 8; 0 counts as 1"),
        Register("ring_board", 0x18C, 32, "rw", "place of this board in the ring, from 0"),
        Register(
            "ring_run", 0x190, 32, "rw", "number of the run, the same on all boards, another one each time; 8 bits kept"
        ),
        Register("link_limit", 0x194, 32, "rw", "cycles to wait for other boards before an error; 0: for ever"),
        Register("ring_key", 0x198, 64, "rw", "the same on all boards that run parts of one plan"),
        Register("token_offset", 0x1A0, 32, "rw", "token id of this board's first logit"),
        *(
            Register(f"hbm{c}", 0x200 + 8 * c, 64, "rw", f"byte address of row 0 on memory port {c}")
            for c in range(config.channels)
        ),
        *(
            Register(f"stall_{cause}", 0x400 + 8 * i, 64, "r", f"cycles of the last run without a tile: {meaning}")
            for i, (cause, meaning) in enumerate(STALL_MEANINGS.items())
        ),
        *(
            Register(name, 0x500 + 4 * i, 32, "r", f"state dump: {doc}")
            for i, (name, doc) in enumerate(
                (
                    ("dump_instruction", "index of the instruction at issue"),
                    ("dump_descriptor", "index of the access descriptor"),
                    ("dump_position", "position being processed"),
                    ("dump_layer", "layer being processed"),
                    ("dump_stall", "cause of the last cycle without a tile (index into the stall list)"),
                    ("dump_fifo", "fewest rows in any read FIFO | most << 16"),
                    ("dump_reads", "rows commanded to the memory ports and not taken from their FIFOs"),
                    ("dump_writes", "write responses outstanding over all ports"),
                    ("dump_committed", "layer instances whose keys and values are in memory"),
                    ("dump_units", "bit per busy unit: 0 writer, 1 statistics, 2 softmax, 3 arg-max"),
                    (
                        "dump_ring",
                        "bit 0: waits for hello, 1: sums, 2: arg-max; 15:8: boards missing; 31:16: 1 + strip awaited",
                    ),
                )
            )
        ),
        *(Register(name, 0x1A8 + 8 * i, 64, "rw", what) for i, (name, what) in enumerate(SAMPLING_REGISTERS.items())),
        *_row_registers(config.rows),
    ]
    windows = (
        *(
            Window(
                row_register("tokens", row),
                0x4000 if row == 0 else 0x10000 + 0x4000 * (row - 1),
                config.context + 1,
                32,
                4,
                "rw",
                "token id of each position: the token ring" if row == 0 else f"batch: tokens of row {row}",
            )
            for row in range(config.rows)
        ),
        Window("instructions", 0x8000, config.instructions, 128, 16, "w", "instruction words"),
        Window("descriptors", 0xC000, config.descriptors, 128, 16, "w", "access descriptors"),
    )
    size = 0x10000 if config.rows == 1 else 0x20000
    return RegisterMap(f"gpt2_{config.name}", size, tuple(registers), windows)
