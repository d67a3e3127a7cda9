"""Operands and comparisons shared by the tests of `hw.numerics`."""

import numpy as np
import pytest

from sim.rtl.unit import VerilatedUnit


class Vectors:
    """Corners and stratified random numbers, as bit patterns."""

    @staticmethod
    def fp16_corners() -> np.ndarray:
        """fp16 bit patterns (uint16): zeros, subnormals, ends of the normals, ones, infinity, NaN, both signs."""
        magnitudes = [
            0,
            1,
            2,
            0x3FE,
            0x3FF,
            0x400,
            0x401,
            0x7FF,
            0x3BFF,
            0x3C00,
            0x3C01,
            0x4000,
            0x5555,
            0x7BFE,
            0x7BFF,
        ]
        magnitudes += [0x7C00, 0x7C01, 0x7E00, 0x7FFF]
        return np.array(magnitudes + [0x8000 | m for m in magnitudes], np.uint16)

    @staticmethod
    def fp32_corners() -> np.ndarray:
        """fp32 bit patterns (uint32): every kind of exponent with every kind of fraction, both signs."""
        exponents = [
            0,
            1,
            2,
            24,
            25,
            64,
            100,
            101,
            102,
            103,
            112,
            113,
            114,
            126,
            127,
            128,
            129,
            130,
            140,
            142,
            143,
            150,
        ]
        exponents += [151, 152, 190, 191, 230, 252, 253, 254, 255]
        fractions = [
            0,
            1,
            2,
            0xFFF,
            0x1000,
            0x1001,
            0x3FFFFF,
            0x400000,
            0x400001,
            0x7FEFFF,
            0x7FF000,
            0x7FFFFE,
            0x7FFFFF,
        ]
        bits = np.array([e << 23 | f for e in exponents for f in fractions], np.uint32)
        return np.concatenate([bits, bits | np.uint32(1 << 31)])

    @staticmethod
    def stratified(rng: np.random.Generator, exponents: range, count: int, signs=(0, 1)) -> np.ndarray:
        """`count` random fp32 bit patterns (uint32) for each biased exponent and sign."""
        parts = [
            np.uint32(sign << 31 | exponent << 23) | rng.integers(0, 1 << 23, count).astype(np.uint32)
            for exponent in exponents
            for sign in signs
        ]
        return np.concatenate(parts)

    @staticmethod
    def random_fp16(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Finite fp16 bit patterns (uint16), all exponents alike."""
        bits = rng.integers(0, 1 << 16, shape).astype(np.uint16)
        return np.where((bits & 0x7C00) == 0x7C00, bits & np.uint16(0x83FF), bits)

    @staticmethod
    def packed(mask: np.ndarray) -> np.ndarray:
        """Booleans (cycles, width) as uint8 rows, bit i of a row being column i."""
        return np.packbits(mask, axis=1, bitorder="little")


@pytest.fixture(scope="session")
def vectors() -> type[Vectors]:
    return Vectors


@pytest.fixture(scope="session")
def pipeline_output():
    """A function (component, inputs) -> outputs: the rows sent through a Verilated pipeline, its latency removed."""

    def run(component, inputs):
        unit = VerilatedUnit(component)
        try:
            return unit.stream(inputs, component.latency)
        finally:
            unit.close()

    return run


@pytest.fixture
def ties_away(monkeypatch):
    """A function (module) that breaks the rounding of a unit: ties go away from zero instead of to even."""

    def apply(module):
        monkeypatch.setattr(module, "rounded_up", lambda keep, half, sticky: half)

    return apply
