"""The kernel's state dump in words: where it is and what every unit waits for."""

from __future__ import annotations

from collections.abc import Mapping

from hw.board.gpt2_map import STALL_CAUSES, ErrorCode, RunState

__all__ = ["STATE_REGISTERS", "error_words", "state_words"]

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
    "new_kv": "the current token's keys or values",
    "result": "an older result for the same strip",
    "stream": "memory (weights, keys or values)",
    "drain": "the end of reads, writes and pipelines",
}
_UNITS = ("writer", "statistics", "softmax", "arg-max")

_ERROR_WORDS = {
    ErrorCode.NONE: "no error",
    ErrorCode.CANCELLED: "cancelled by the host",
    ErrorCode.ILLEGAL: "unknown operation in instruction {info}",
    ErrorCode.NAN_LOGITS: "a logit is NaN at position {info}",
    ErrorCode.READ: "memory answered a read on port {info} with an error",
    ErrorCode.WRITE: "memory answered a write on port {info} with an error",
    ErrorCode.START: "start registers out of range (position {info})",
}


def error_words(error: int, info: int) -> str:
    """The registers ``error`` and ``error_info`` as a phrase."""
    try:
        return _ERROR_WORDS[ErrorCode(error)].format(info=info)
    except ValueError:
        return f"unknown error code {error} (detail {info})"


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
    if "tokens_valid" in dump:
        parts.append(f"{dump['tokens_valid']} tokens valid")
    return "; ".join(parts)
