"""Plain PYNQ on a simulated Alveo U280: run a compiled program, let it write its logits into buffers of our own.

Usage: python examples/plain_pynq.py PROGRAM_DIR TOKEN_ID...     (PROGRAM_DIR is what `ringfly compile` wrote)
"""

import pathlib
import sys

import numpy as np
from pynq import Overlay, allocate

from host.driver.sim_device import SimU280Device  # also binds our driver to the kernel
from host.driver.xclbin import cached_xclbin
from hw.board.program import Program
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board

folder, prompt = pathlib.Path(sys.argv[1]), [int(token) for token in sys.argv[2:]]
core = Program.load(folder)[0].core

device = SimU280Device(RtlBoard(build_board(core)))  # a real card differs in this line only
overlay = Overlay(str(cached_xclbin(core)), device=device)
gpt2, registers = overlay.gpt2_0, overlay.gpt2_0.register_map
gpt2.load(folder)

shape = (int(registers.context_limit), int(registers.logits_rows), core.port_bytes // 4)
logits = [allocate(shape, np.float32, target=getattr(overlay, f"HBM{c}")) for c in range(core.channels)]
registers.logits_base = (logits[0].device_address - int(registers.hbm0)) // core.port_bytes

gpt2.write(gpt2.map.window("tokens").offset, np.array(prompt, np.uint32).tobytes())
registers.position, registers.prompt_end, registers.max_new_tokens, registers.flags = 0, len(prompt), 8, 1
registers.seed, registers.sampling = 0, 0  # always the most probable token
registers.CTRL.AP_START = 1
print("new tokens:", *gpt2.wait(timeout_s=60).tokens, f"in {int(registers.cycles)} cycles")

for buffer in logits:
    buffer.invalidate()
first = np.stack([np.array(buffer[len(prompt) - 1]) for buffer in logits], axis=1).ravel()
print("logits of the first:", first[:4], "arg-max", first[: int(registers.vocab)].argmax())
device.close()
