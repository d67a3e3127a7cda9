"""Banks and buffers of the simulated card: addresses, views, frees, and the errors of wrong use."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

from host.driver.pynq_import import pynq
from host.driver.sim_device import SimU280Device
from host.errors import BadInput, BadPointer, BankFull
from hw.board.board_model import BANK_BYTES


@pytest.fixture
def card(double):
    device = SimU280Device(double)
    yield device
    device.close()


@pytest.fixture
def ol(card, xclbin):
    return pynq.Overlay(str(xclbin), device=card)


def test_round_trip_between_host_and_board(ol, double):
    buffer = pynq.allocate((3, 5), np.float16, target=ol.HBM1)
    assert buffer.device_address // BANK_BYTES == 1
    assert buffer.device_address % 4096 == 0
    assert buffer.physical_address == buffer.device_address
    buffer[:] = np.arange(15).reshape(3, 5)
    place = buffer.device_address - BANK_BYTES
    assert double.read_memory(1, place, 30) != buffer.tobytes()  # not yet
    buffer.flush()
    assert double.read_memory(1, place, 30) == buffer.tobytes()
    double.write_memory(1, place + 28, np.float16(99).tobytes())
    assert buffer[2, 4] == 14
    buffer.invalidate()
    assert buffer[2, 4] == 99


def test_views_sync_their_part_only(ol, double):
    buffer = pynq.allocate((64,), "u4", target=ol.HBM0)
    buffer[:] = 1
    buffer.flush()
    buffer[:] = 2
    part = buffer[8:16]
    assert part.device_address == buffer.device_address + 32
    part.flush()
    part.view("u1").flush()
    buffer.invalidate()
    assert list(np.flatnonzero(buffer == 2)) == list(range(8, 16))
    buffer[:] = 3
    buffer[4:12:3].flush()  # strided: words 4 to 10
    buffer.invalidate()
    assert list(np.flatnonzero(buffer == 3)) == list(range(4, 11))
    buffer[::-1].flush()
    buffer[0:0].flush()


def test_results_and_copies_are_no_board_buffers(ol):
    buffer = pynq.allocate((8,), "u4", target=ol.HBM0)
    for array in (buffer + 1, buffer.copy(), buffer.astype("f4"), buffer[[1, 2]]):
        assert array.device_address is None
        with pytest.raises(BadPointer, match="not a buffer of the board"):
            array.flush()
        with pytest.raises(BadPointer):
            array.invalidate()
    assert buffer.device_address is not None


def test_buffers_never_overlap_and_are_given_back(ol):
    bank = ol.HBM0
    buffers = [bank.allocate((size,), "u1") for size in (1, 4096, 4097, 10, 100_000)]
    spans = sorted((buffer.bo.offset, buffer.bo.end) for buffer in buffers)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert (bank.num_buffers, bank.mem_used) == (5, 1 + 4096 + 4097 + 10 + 100_000)
    hole = buffers[2].bo.offset
    buffers[2].freebuffer()
    again = bank.allocate((8192,), "u1")
    assert again.bo.offset == hole  # the hole is used again
    with bank.allocate((5,)) as inner:
        assert bank.num_buffers == 6
    with pytest.raises(BadPointer, match="was freed"):
        inner.flush()
    view = buffers[0][:]
    address = buffers[0].device_address
    del buffers, again, inner
    gc.collect()
    assert (bank.num_buffers, view.device_address) == (1, address)  # a view keeps its buffer
    del view
    gc.collect()
    assert bank.num_buffers == 0


def test_full_banks_say_how_much_there_is(ol):
    bank = ol.HBM3
    half = bank.allocate((BANK_BYTES // 2,), "u1")
    with pytest.raises(BankFull, match=rf"HBM\[3\] has no room for {BANK_BYTES} bytes: .* {BANK_BYTES // 2} in use"):
        bank.allocate((BANK_BYTES // 4,), "u4")
    rest = bank.allocate((BANK_BYTES // 2,), "u1")
    with pytest.raises(BankFull):
        bank.allocate((1,), "u1")
    assert half.device_address != rest.device_address


def test_a_buffer_where_the_program_goes(ol, tiny):
    everything = ol.HBM0.allocate((BANK_BYTES,), "u1")
    with pytest.raises(BankFull, match=r"the program needs the first \d+ bytes of HBM\[0\]"):
        ol.gpt2_0.load(tiny.folder)
    everything.freebuffer()
    ol.gpt2_0.load(tiny.folder)


def test_banks_by_name_and_without_target(ol, card):
    assert not hasattr(ol, "HBM4")  # port of no 16x4 core
    with pytest.raises(BadInput, match=r"4 memory banks \(HBM0 to HBM3\)"):
        pynq.allocate((4,), target=card)
    with pytest.raises(BadInput, match=r"no bank 'HBM\[9\]' in use"):
        card.get_memory_by_name("HBM[9]")
    assert card.get_memory_by_name("HBM[2]") is ol.HBM2


def test_no_memory_before_an_overlay(card):
    with pytest.raises(BadInput, match="before an overlay is loaded"):
        card.allocate((4,), "u4")


@pytest.mark.parametrize("shape", [(-1,), "ab", (1.5, None)])
def test_impossible_shapes(ol, shape):
    with pytest.raises(BadInput, match="cannot allocate"):
        ol.HBM0.allocate(shape)


def test_unknown_dtype(ol):
    with pytest.raises(BadInput, match="cannot allocate"):
        ol.HBM0.allocate((4,), "no such type")


def test_scalar_shape_and_empty_buffers(ol):
    assert ol.HBM0.allocate(6).shape == (6,)
    empty = ol.HBM0.allocate((0, 4))
    empty.flush()
    assert empty.size == 0


def test_probe_lists_open_cards(card):
    assert card in SimU280Device._probe_()
    card.close()
    assert card not in SimU280Device._probe_()
