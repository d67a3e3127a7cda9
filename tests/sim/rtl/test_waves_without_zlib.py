"""Waves on a machine without the headers of zlib: the stand-in makes valid streams and the same FST contents."""

import ctypes
import subprocess
import zlib

import pytest

import sim.rtl.verilator as verilator
from sim.rtl.toolchain import find_toolchain
from sim.rtl.verilator import QUICK_COMPILE_FLAGS, build_library

COUNTER = """
module counter(input clk, output reg [31:0] value);
  initial value = 0;
  always @(posedge clk) value <= value * 1664525 + 1013904223;
endmodule
"""
HARNESS = """
#include "Vmodel.h"
#include "verilated_fst_c.h"
extern "C" void run(unsigned cycles, const char* path) {
    VerilatedContext context;
    context.traceEverOn(true);
    Vmodel top{&context, "top"};
    VerilatedFstC waves;
    top.trace(&waves, 99);
    waves.open(path);
    for (unsigned i = 0; i < 2 * cycles; ++i) { top.clk = i & 1; top.eval(); waves.dump(i); }
    waves.close();
}
"""
PACK = """
#include "zlib.h"
extern "C" uLong pack(Bytef* target, uLong room, const Bytef* data, uLong size) {
    return compress2(target, &room, data, size, 9) == Z_OK ? room : 0;
}
extern "C" uLong bound(uLong size) { return compressBound(size); }
"""
GEOMETRY, CHANGES = 3, (1, 5, 8)  # types of FST blocks


@pytest.fixture(scope="module")
def packer(tmp_path_factory):
    """The stand-in alone, with Python's zlib as judge."""
    folder = tmp_path_factory.mktemp("pack")
    (folder / "zlib.h").write_text((verilator._HERE / "zlib.h").read_text())
    (folder / "pack.cpp").write_text(PACK)
    command = [str(find_toolchain().cxx), *QUICK_COMPILE_FLAGS, "-Wall", "-I.", "-shared", "-o", "pack.so", "pack.cpp"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    library = ctypes.CDLL(str(folder / "pack.so"))
    for function in (library.pack, library.bound):
        function.restype = ctypes.c_ulong
    library.pack.argtypes = [ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong]
    library.bound.argtypes = [ctypes.c_ulong]

    def pack(data, room=None):
        target = ctypes.create_string_buffer(library.bound(len(data)))
        packed = library.pack(target, len(target) if room is None else room, data, len(data))
        return target.raw[:packed]

    return pack


@pytest.mark.parametrize("size", [0, 1, 65534, 65535, 65536, 131070, 300_000])
def test_streams_are_valid(packer, size):
    data = bytes(i * i >> 3 & 255 for i in range(size))
    packed = packer(data)
    assert zlib.decompress(packed) == data
    with pytest.raises(zlib.error):  # twin
        zlib.decompress(packed[:-1] + bytes([packed[-1] ^ 1]))
    assert packer(data, room=len(packed) - 1) == b""


def write_waves(path):
    library = build_library(
        "counter-trace",
        verilog=COUNTER,
        top="counter",
        sources={"harness.cpp": HARNESS},
        compile_flags=QUICK_COMPILE_FLAGS,
        trace=True,
    )
    ctypes.CDLL(str(library)).run(ctypes.c_uint(500), str(path).encode())
    return library


def number(data, at):
    return int.from_bytes(data[at : at + 8], "big")


def unpacked(data, size):
    return zlib.decompress(data) if len(data) != size else data


def contents(path):
    """Signal sizes and times of an FST file, and how many blocks it has; every block must end where the next begins."""
    data, at, found, count = path.read_bytes(), 0, {}, 0
    while at < len(data):
        kind, length = data[at], number(data, at + 1)
        block, end = data[at + 1 : at + 1 + length], at + 1 + length
        assert length >= 8 and end <= len(data)
        if kind == GEOMETRY:
            found["sizes"] = unpacked(block[24:], number(block, 8))
        elif kind in CHANGES:
            size, packed = number(block, length - 24), number(block, length - 16)
            found["times"] = unpacked(block[length - 24 - packed : length - 24], size)
            found["time count"] = number(block, length - 8)
        at, count = end, count + 1
    return found | {"blocks": count}


def test_waves_have_the_same_contents(tmp_path, monkeypatch):
    monkeypatch.setattr(verilator, "_has_zlib", lambda tools: False)
    without = write_waves(tmp_path / "without.fst")
    found = contents(tmp_path / "without.fst")
    assert found["time count"] == 1000
    assert found["times"] == bytes([0] + [1] * 999)
    monkeypatch.undo()
    if not verilator._has_zlib(find_toolchain()):
        pytest.skip("zlib.h is missing here, so there is nothing to compare with")
    assert write_waves(tmp_path / "with.fst") != without
    assert contents(tmp_path / "with.fst") == found
    assert (tmp_path / "without.fst").stat().st_size > (tmp_path / "with.fst").stat().st_size
