"""Compiler: a GPT-2 checkpoint and a core description to a program and a memory image."""

from host.compiler.compile import compile_model, model_digest, plan_program
from host.compiler.core_choice import chosen_core
from host.compiler.errors import CompileError, Problem
from host.compiler.explain import explain
from host.compiler.shape import Shape

__all__ = [
    "CompileError",
    "Problem",
    "Shape",
    "chosen_core",
    "compile_model",
    "explain",
    "model_digest",
    "plan_program",
]
