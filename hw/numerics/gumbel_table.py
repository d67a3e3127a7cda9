"""Tables of the Gumbel numbers: ln(m) on [1, 2), and ln(-ln(1-v)/v) on [0, 1/2).

Built with exact decimal arithmetic, so the bits do not depend on the platform's libm.
"""

from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import numpy.typing as npt

from .cubic_table import UNIT_BITS, cubic_rows

__all__ = ["SEGMENTS", "ln2_multiples", "logarithm_ratio_rows", "logarithm_rows"]

SEGMENTS = 256


def _ratio(v: Decimal) -> Decimal:
    """ln(-ln(1-v)/v), which is v/2 + 5*v**2/24 + ..."""
    return (-(1 - v).ln() / v).ln()


@cache
def logarithm_rows() -> npt.NDArray[np.int64]:
    """Array (4, 256) as of `cubic_rows`: ln(m) for m in [1, 2)."""
    return cubic_rows(Decimal.ln, Decimal(1), Decimal(1), SEGMENTS)


@cache
def logarithm_ratio_rows() -> npt.NDArray[np.int64]:
    """Array (4, 256) as of `cubic_rows`: ln(-ln(1-v)/v) for v in [0, 1/2)."""
    return cubic_rows(_ratio, Decimal(0), Decimal("0.5"), SEGMENTS)


@cache
def ln2_multiples(first: int, count: int) -> npt.NDArray[np.int64]:
    """Array (count,): first*ln(2), (first + 1)*ln(2) ... in units of 2**-43, to nearest."""
    with localcontext() as context:
        context.prec = 45
        unit = Decimal(2).ln() * 2**UNIT_BITS
        return np.array([int((unit * i).to_integral_value()) for i in range(first, first + count)], np.int64)
