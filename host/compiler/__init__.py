"""Compiler: a GPT-2 checkpoint and a core description to a program and a memory image."""

from host.compiler.compile import compile_model, plan_program
from host.compiler.core_choice import chosen_core
from host.compiler.errors import CompileError, Problem
from host.compiler.explain import explain
from host.compiler.model_choice import chosen_model, chosen_shape, chosen_sizes, fitting_shape
from host.compiler.shape import Shape

__all__ = [
    "CompileError",
    "Problem",
    "Shape",
    "chosen_core",
    "chosen_model",
    "chosen_shape",
    "chosen_sizes",
    "compile_model",
    "explain",
    "fitting_shape",
    "plan_program",
]
