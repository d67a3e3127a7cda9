"""The kernel's state dump in words: where it is and what every unit waits for."""

from __future__ import annotations

from collections.abc import Mapping

from host.driver.xclbin_info import version_text
from hw.board.gpt2_map import STALL_CAUSES, ErrorCode, RunState, row_register

__all__ = ["PORT_WORDS", "STATE_REGISTERS", "awaited_words", "error_words", "state_registers", "state_words"]

STATE_REGISTERS = (
    "state",
    "error",
    "error_info",
    "start_count",
    "done_count",
    "tokens_valid",
    "dump_instruction",
    "dump_descriptor",
    "dump_position",
    "dump_layer",
    "dump_stall",
    "dump_fifo",
    "dump_reads",
    "dump_writes",
    "dump_committed",
    "dump_units",
    "dump_ring",
    "link_status",
)

_STALL_WORDS = {
    "token": "the arg-max of the token before",
    "instruction": "a decoded instruction",
    "writer": "keys or values of the layer before to be written",
    "statistics": "the statistics unit",
    "params": "room between parameter rows",
    "accumulator": "an accumulator whose last addition is still under way",
    "score_room": "a free score row",
    "softmax": "probabilities or their sum",
    "norm": "the LayerNorm scalars",
    "operand": "an activation word",
    "link": "another board",
    "new_kv": "the current token's keys or values",
    "result": "an older result for the same strip",
    "send": "room in the queue toward the other boards",
    "stream": "memory (weights, keys or values)",
    "drain": "the end of reads, writes and pipelines",
}
_UNITS = ("writer", "statistics", "softmax", "arg-max")
PORT_WORDS = ("left", "right")
"""Names of a board's two ring ports by number."""

_ERROR_WORDS = {
    ErrorCode.NONE: "no error",
    ErrorCode.CANCELLED: "cancelled by the host",
    ErrorCode.ILLEGAL: "unknown operation in instruction {info}",
    ErrorCode.NAN_LOGITS: "a logit is NaN at position {position}{of_row}",
    ErrorCode.READ: "memory answered a read on port {info} with an error",
    ErrorCode.WRITE: "memory answered a write on port {info} with an error",
    ErrorCode.START: "start registers out of range (position {info})",
    ErrorCode.LINK_DOWN: "the cable at its {port} port is dead",
    ErrorCode.NO_HELLO: "no board has begun this run at its {ports}",
    ErrorCode.RING_VERSION: "the board at its {top_port} port has interface version {version}",
    ErrorCode.RING_ORDER: "at its {top_port} port is board {neighbour} of {boards}, which does not belong there",
    ErrorCode.RING_PROGRAM: "the board at its {port} port has another core or a program of another plan",
    ErrorCode.PEER_SILENT: "it waits in vain for {awaited}",
    ErrorCode.PEER_FAILED: "board {origin} failed: {cause}",
}


def state_registers(rows: int) -> tuple[str, ...]:
    """Names of the registers of a state dump of a core with so many rows."""
    return (*STATE_REGISTERS, *(row_register("tokens_valid", row) for row in range(1, rows)))


def error_words(error: int, info: int) -> str:
    """The registers ``error`` and ``error_info`` as a phrase."""
    try:
        return _ERROR_WORDS[ErrorCode(error)].format(**_error_details(info))
    except ValueError:
        return f"unknown error code {error} (detail {info})"


def _error_details(info: int) -> dict[str, object]:
    """What the phrases of `_ERROR_WORDS` call the parts of ``error_info`` (docs/ring.md section 5, docs/rows.md)."""
    ports = [name for number, name in enumerate(PORT_WORDS) if info >> number & 1]
    code = info & 0xFF
    return {
        "info": info,
        "position": info & 0xFF_FFFF,
        "of_row": f" of row {info >> 24}" if info >> 24 else "",
        "port": PORT_WORDS[info & 1],
        "top_port": PORT_WORDS[info >> 31 & 1],
        "ports": f"{' and '.join(ports)} port{'s' if len(ports) > 1 else ''}",
        "version": version_text(info & 0x7FFF_FFFF),
        "neighbour": info & 0xFF,
        "boards": info >> 8 & 0xFF,
        "awaited": awaited_words(info),
        "origin": info >> 8,
        "cause": ErrorCode(code).name if code in set(ErrorCode) else f"error {code}",
    }


def awaited_words(info: int) -> str:
    """What a board with error PEER_SILENT waits for."""
    strip, silent = info >> 8, [board for board in range(8) if info >> board & 1]
    if strip:
        return f"strip {strip - 1} of another board"
    return f"the sums or arg-max of board{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent)) or '?'}"


def state_words(dump: Mapping[str, int]) -> str:
    """One sentence from a state dump (registers by name, see :data:`STATE_REGISTERS`); absent registers are skipped."""
    parts = []
    if "state" in dump:
        state = dump["state"]
        parts.append(f"state {RunState(state).name.lower()}" if state in set(RunState) else f"state {state}")
    if dump.get("error"):
        parts.append(error_words(dump["error"], dump.get("error_info", 0)))
    for name, text in (
        ("dump_position", "position {}"),
        ("dump_layer", "layer {}"),
        ("dump_instruction", "instruction {}"),
        ("dump_descriptor", "access descriptor {}"),
    ):
        if name in dump:
            parts.append(text.format(dump[name]))
    if "dump_stall" in dump:
        cause = dump["dump_stall"]
        known = cause < len(STALL_CAUSES)
        parts.append(f"waits for {_STALL_WORDS[STALL_CAUSES[cause]]}" if known else f"stall cause {cause}")
    if "dump_fifo" in dump:
        parts.append(f"read FIFOs hold {dump['dump_fifo'] & 0xFFFF} to {dump['dump_fifo'] >> 16} rows")
    if "dump_reads" in dump:
        parts.append(f"{dump['dump_reads']} read beats and {dump.get('dump_writes', 0)} write responses outstanding")
    if "dump_committed" in dump:
        parts.append(f"{dump['dump_committed']} layer instances have keys and values in memory")
    if "dump_units" in dump:
        busy = [unit for bit, unit in enumerate(_UNITS) if dump["dump_units"] >> bit & 1]
        parts.append(f"busy units: {', '.join(busy) or 'none'}")
    parts += _ring_words(dump)
    if "tokens_valid" in dump:
        others = [f"{value} of row {name[-1]}" for name, value in dump.items() if name.startswith("tokens_valid_")]
        parts.append(", ".join([f"{dump['tokens_valid']} tokens valid", *others]))
    return "; ".join(parts)


def _ring_words(dump: Mapping[str, int]) -> list[str]:
    """What the board waits for from other boards, and ports whose cable is dead; nothing of a board that has none."""
    parts, ring = [], dump.get("dump_ring", 0)
    missing = ", ".join(str(board) for board in range(8) if ring >> 8 + board & 1) or "?"
    waits = ("the neighbours' hello", f"sums of boards {missing}", f"the arg-max of boards {missing}")
    parts += [f"waits for {what}" for bit, what in enumerate(waits) if ring >> bit & 1]
    if ring >> 16:
        parts.append(f"waits for strip {(ring >> 16) - 1} of another board")
    link = dump.get("link_status", 0)
    if link >> 4 & 1 or ring & 1:  # else there may be no cables at all
        parts += [
            f"the cable at its {name} port is dead" for port, name in enumerate(PORT_WORDS) if link >> 2 + port & 1
        ]
    return parts
