"""Random legal core programs: made from a seed, run on any board, counted by the dependencies they exercise."""

from .hazards import hazard_table, legal_cells, program_cells, table_text
from .random_case import CaseResult, RandomCase, random_case, run_case
from .ring_case import RingCase, random_ring_case, ring_sizes, run_ring_case
from .sensitivity import is_sensitive

__all__ = [
    "COMMITTED_SEEDS",
    "CaseResult",
    "RandomCase",
    "RingCase",
    "hazard_table",
    "is_sensitive",
    "legal_cells",
    "program_cells",
    "random_case",
    "random_ring_case",
    "ring_sizes",
    "run_case",
    "run_ring_case",
    "table_text",
]

COMMITTED_SEEDS = tuple(seed for seed in range(201) if seed != 196)
"""The 200 seeds of the regression on core 16x4; seed 196 meets a stop id at once and shows too little."""
