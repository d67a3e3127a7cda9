"""What the kernel's control and a core say to each other."""

from __future__ import annotations

import re

from amaranth.lib import data
from amaranth.lib.wiring import In, Member, Out

from hw.board.gpt2_map import LINK_PORTS, STALL_CAUSES, gpt2_register_map
from hw.bus.axi_stream import AxiStreamSignature
from hw.gpt2.config import CoreConfig
from hw.link.frame import BEAT_BYTES

__all__ = ["ADDRESS_BITS", "core_members", "link_members", "run_config_layout"]

ADDRESS_BITS = 34  # byte addresses of the U280's HBM and DDR
_BITS = {
    "position": 16,
    "prompt_end": 16,
    "flags": 2,
    "stop_count": 3,
    "context_limit": 16,
    "width": 16,
    "eps_term": 80,
    "vocab": 20,  # 2^16 strips of up to 16 lanes
    "layers": 8,
    "heads": 8,
    "key_words": 8,
    "value_strips": 8,
    "embed_strips": 16,
    "logits_rows": 16,
    "ring_boards": 4,
    "ring_board": 3,
    "ring_run": 8,
    "ring_key": 64,
    "token_offset": 20,
    "seed": 64,
    "sampling": 55,
}
_ROW_BITS = 28
_ROW_SUFFIX = re.compile(r"_[1-3]$")  # of a register that belongs to one row of a batch


def run_config_layout(config: CoreConfig) -> data.StructLayout:
    """The registers that a run takes its parameters from: a field for each ``rw`` register of the map.

    A field is as wide as the core's use of it: rows and row strides 28 bits, memory bases 34, token ids and fp32
    words 32. Higher bits of the register are not stored and read as zero, but for position, prompt_end,
    max_new_tokens and context_limit, which are checked in full at start.
    """
    fields: dict[str, int] = {}
    for register in gpt2_register_map(config):
        if register.access != "rw" or register.name == "ctrl":
            continue
        name = _ROW_SUFFIX.sub("", register.name)
        if register.name.startswith("hbm"):
            bits = ADDRESS_BITS
        elif name.endswith(("_base", "_layer_rows", "_head_rows")):
            bits = _ROW_BITS
        elif name == "batch_rows":
            bits = config.rows
        else:
            bits = _BITS.get(name, 32)
        fields[register.name] = bits
    return data.StructLayout(fields)


def core_members(config: CoreConfig) -> dict[str, Member]:
    """Members of a core towards control, seen from the core (its memory ports come on top).

    Members
    -------
    ``run`` : 1 while the kernel is in state RUN. When it falls the core takes no further step and empties itself.
    ``error`` : the register, from the cycle on in which ``run`` falls.
    ``cfg`` : the run registers, constant while ``run`` is 1 and until ``drained``.
    ``instr_addr``/``instr_data``, ``desc_addr``/``desc_data`` : instruction and access memory; data one cycle after
        the address.
    ``token_addr_core``/``token_data_core``, ``token_addr_reader``/``token_data_reader`` : token memory, two readers,
        likewise; ``token_row_core``, ``token_row_reader`` : of which row.
    ``tokens_valid`` : row 0's tokens[0 .. tokens_valid) are valid; follows ``token_write`` by one cycle, when the
        token can be read.
    ``token_write``, ``token_write_row``, ``token_write_addr``, ``token_write_data`` : append a token.
    ``finish`` : pulse, the run ended as the program wants. ``fail`` : pulse with ``fail_code`` (ErrorCode) and
        ``fail_info``.
    ``drained`` : no read or write is outstanding and all pipelines are empty; looked at only while ``run`` is 0.
    ``tile`` : a tile or parameter row was issued in this cycle; ``stall`` : else why not, an index into STALL_CAUSES.
    ``dump_*``, ``link_*`` : state for people, as in the register map.
    """
    members = {
        "run": In(1),
        "error": In(8),
        "cfg": In(run_config_layout(config)),
        "instr_addr": Out(range(config.instructions)),
        "instr_data": In(128),
        "desc_addr": Out(range(config.descriptors)),
        "desc_data": In(128),
        "token_addr_core": Out(range(config.context + 1)),
        "token_row_core": Out(range(config.rows)),
        "token_data_core": In(32),
        "token_row_reader": Out(range(config.rows)),
        "token_addr_reader": Out(range(config.context + 1)),
        "token_data_reader": In(32),
        "tokens_valid": In(16),
        "token_write": Out(1),
        "token_write_row": Out(range(config.rows)),
        "token_write_addr": Out(16),
        "token_write_data": Out(32),
        "finish": Out(1),
        "fail": Out(1),
        "fail_code": Out(8),
        "fail_info": Out(32),
        "drained": Out(1),
        "tile": Out(1),
        "stall": Out(range(len(STALL_CAUSES))),
    }
    for register in gpt2_register_map(config):
        if register.name.startswith(("dump_", "link_")) and register.access == "r":
            members[register.name] = Out(32)
    return members


def link_members() -> dict[str, Member]:
    """The two QSFP ports, seen from the kernel: ``link_q_up`` (channel up), ``link_q_tx``, ``link_q_rx``."""
    members: dict[str, Member] = {}
    for q in range(LINK_PORTS):
        members |= {
            f"link_{q}_up": In(1),
            f"link_{q}_tx": Out(AxiStreamSignature(8 * BEAT_BYTES, ready=True)),
            f"link_{q}_rx": In(AxiStreamSignature(8 * BEAT_BYTES, ready=False)),
        }
    return members
