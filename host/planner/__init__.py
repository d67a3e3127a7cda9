"""Planner: how a GPT-2 is split over the boards of a ring, chosen by cost, and the plan that says so."""

from host.planner.partition import COLUMN_STEP, Partition
from host.planner.plan import PLAN_FILE, Estimate, Plan, PlannedBoard
from host.planner.search import Cost, choose_partition

__all__ = [
    "COLUMN_STEP",
    "PLAN_FILE",
    "Cost",
    "Estimate",
    "Partition",
    "Plan",
    "PlannedBoard",
    "choose_partition",
]
