"""The registers by which a request samples: written at every start, so that nothing of an earlier run stays."""

from __future__ import annotations

from host.driver.batch_request import BatchRequest
from host.driver.gpt2_kernel import Gpt2Kernel
from hw.board.gpt2_map import row_register
from hw.gpt2.row import sampling_layout
from hw.gpt2.sampled_token import BoardSampling

DRAWN = [BoardSampling(2**64 - 1, 64, 2**39 + 5, -16), None, BoardSampling(3, 0, 2**40 - 1, 16), None]
LIMIT_S = 30.0


def _registers(kernel: Gpt2Kernel, row: int) -> tuple[int, int]:
    return kernel.get(row_register("seed", row)), kernel.get(row_register("sampling", row))


def test_each_row_has_its_own_and_none_stays(rows_kernel: Gpt2Kernel) -> None:
    requests = [BatchRequest([1 + row], 2, row=row, sampling=drawn) for row, drawn in enumerate(DRAWN)]
    rows_kernel.start_batch(requests)
    rows_kernel.wait_batch(LIMIT_S)
    assert [_registers(rows_kernel, row) for row in range(4)] == [
        (0, 0) if drawn is None else (drawn.seed, drawn.register) for drawn in DRAWN
    ]
    rows_kernel.start_batch([BatchRequest([1], 2, row=row) for row in range(4)])
    rows_kernel.wait_batch(LIMIT_S)
    assert [_registers(rows_kernel, row) for row in range(4)] == [(0, 0)] * 4


def test_a_sequence_takes_those_of_row_0(rows_kernel: Gpt2Kernel) -> None:
    for drawn in (DRAWN[0], None):
        rows_kernel.start([1, 2], 2, row=3, sampling=drawn)
        rows_kernel.wait(LIMIT_S)
        assert _registers(rows_kernel, 0) == ((0, 0) if drawn is None else (drawn.seed, drawn.register))


def test_the_register_has_the_layout_of_the_gateware() -> None:
    for drawn in filter(None, DRAWN):
        fields = sampling_layout().from_bits(drawn.register)
        named = (fields.inverse_mantissa, fields.inverse_exponent, fields.top_k)
        assert named == (drawn.inverse_mantissa, drawn.inverse_exponent, drawn.top_k)
        assert BoardSampling.of_registers(drawn.seed, drawn.register) == drawn
    assert BoardSampling.of_registers(5, 0) is None
