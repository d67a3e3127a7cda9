"""Arithmetic of the cores: pipelines and sequential units, each with its integer golden model in the same module.

Rules that hold for every unit and its golden model, which agree bit for bit:

* fp16 is stored with subnormals. In fp32 a subnormal operand counts as zero of the same sign, and a result below
  2**-126 becomes zero of the same sign; this is decided after rounding with unbounded exponent.
* There are no infinities. An operand with exponent field 255 (fp32) or 31 (fp16) is NaN; overflow and NaN both give the
  canonical NaN, 0x7FC00000 or 0x7E00.
* Rounding is to nearest, ties to even, once per operation.
* Zeros have signs as in IEEE 754: x + (-x) = +0, -0 + -0 = -0, the sign of a product is the exclusive or of its
  operands' signs.
* Pipelines run freely in domain `sync`, take operands every cycle, and have no reset and no handshake. `latency` is the
  number of registers between input and output; logic behind the last register may drive the output, so the outputs of
  cycle t + latency belong to the inputs of cycle t.
* Sequential units take their operands with `start`; `done` follows `latency` cycles later, whatever the operands.

Golden models are compiled by numba (`golden_njit`), work on integer bit patterns, and may be called from other compiled
code. They must not be given uint64 there: numba turns mixed uint64 and int64 into float64.
"""
