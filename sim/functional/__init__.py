"""Functional executor: the same programs as the gateware, bit for bit, at the speed of the host."""

from .board import FunctionalBoard
from .ring import FunctionalRing

__all__ = ["FunctionalBoard", "FunctionalRing"]
