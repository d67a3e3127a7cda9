"""Functional executor: the same programs as the gateware, bit for bit, at the speed of the host."""

from .board import FunctionalBoard

__all__ = ["FunctionalBoard"]
