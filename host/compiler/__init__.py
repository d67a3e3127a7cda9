"""Compiler: a GPT-2 checkpoint and a core description to a program and a memory image for each board."""

from host.compiler.compile import compile_model, plan_program
from host.compiler.core_choice import chosen_core
from host.compiler.errors import CompileError, Problem
from host.compiler.explain import explain
from host.compiler.model_choice import chosen_model, chosen_shape, chosen_sizes, fitting_shape
from host.compiler.ring import CompiledRing, PartitionCost, PlannedRing, compile_ring, plan_ring
from host.compiler.shape import Shape

__all__ = [
    "CompileError",
    "CompiledRing",
    "PartitionCost",
    "PlannedRing",
    "Problem",
    "Shape",
    "chosen_core",
    "chosen_model",
    "chosen_shape",
    "chosen_sizes",
    "compile_model",
    "compile_ring",
    "explain",
    "fitting_shape",
    "plan_program",
    "plan_ring",
]
