"""Table of GPT-2's GELU gate: the tail T(x) = 1 - G(x) on [0, 8) as 512 line segments of 36 bits.

Built with exact decimal arithmetic, so the bits do not depend on the platform's libm.
"""

from decimal import Decimal, localcontext

import numpy as np

__all__ = ["BASE_BITS", "SCALES", "SEGMENTS", "SEGMENTS_PER_UNIT", "SLOPE_BITS", "SLOPE_SHIFTS", "gelu_table"]

SEGMENTS = 512
SEGMENTS_PER_UNIT = 64
BASE_BITS = 21
SLOPE_BITS = 15


def _tail(x: Decimal) -> Decimal:
    """T(x) = 0.5*(1 - tanh(z)) = 1/(1 + exp(2z)), z = sqrt(2/pi)*(x + 0.044715*x**3)."""
    pi = Decimal("3.14159265358979323846264338327950288419716939937510")
    z = (2 / pi).sqrt() * (x + Decimal("0.044715") * x**3)
    return 1 / (1 + (2 * z).exp())


def _build() -> tuple[np.ndarray, np.ndarray, tuple[int, ...], tuple[int, ...]]:
    with localcontext() as context:
        context.prec = 45
        step = Decimal(1) / SEGMENTS_PER_UNIT
        points = [_tail(i * step) for i in range(SEGMENTS + 1)]
        middles = [_tail((i + Decimal("0.5")) * step) for i in range(SEGMENTS)]
        bases, slopes, scales, shifts = [], [], [], []
        for first in range(0, SEGMENTS, SEGMENTS_PER_UNIT):
            # a chord is shifted by half its largest error, so that the error is the same at the ends and in the middle
            lines = []
            for i in range(first, first + SEGMENTS_PER_UNIT):
                bend = middles[i] - (points[i] + points[i + 1]) / 2
                lines.append((points[i] + bend / 2, points[i] - points[i + 1]))
            scale = max(s for s in range(80) if max(line[0] for line in lines) * 2**s < 2**BASE_BITS - 1)
            steepest = max(line[1] for line in lines)
            shift = min(q for q in range(-8, 24) if steepest * Decimal(2) ** (scale - q) < 2**SLOPE_BITS - 1)
            scales.append(scale)
            shifts.append(shift)
            bases += [int((base * 2**scale).to_integral_value()) for base, _ in lines]
            slopes += [int((slope * Decimal(2) ** (scale - shift)).to_integral_value()) for _, slope in lines]
    return np.array(bases, np.int64), np.array(slopes, np.int64), tuple(scales), tuple(shifts)


_BASES, _SLOPES, SCALES, SLOPE_SHIFTS = _build()


def gelu_table() -> tuple[np.ndarray, np.ndarray]:
    """Return (bases, slopes): int64 arrays (512,); in segment i, T = (base - slope * 2**shift * t) * 2**-scale."""
    return _BASES.copy(), _SLOPES.copy()
