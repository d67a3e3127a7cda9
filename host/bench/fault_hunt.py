"""Builds gateware with a seeded fault and asks the checks of `sim.rtl.detection` whether they notice it."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from host.compiler import compile_model
from hw.gpt2.config import CoreConfig
from sim.rtl.build import compile_board
from sim.rtl.detection import ModelRun, inspect
from sim.rtl.fault_patch import Fault
from sim.rtl.faults import core_of, export_with_fault
from sim.rtl.verilator import QUICK_COMPILE_FLAGS
from sw.models.gpt2 import GPT2, GPT2Config
from sw.train.save import save_model

__all__ = ["Hunted", "hunt", "small_model_run"]

MODEL_SEED = 1
MODEL = GPT2Config(n_layer=2, n_head=3, n_embd=48, n_positions=40, vocab_size=90)
PROMPT = (7, 3, 88, 41, 0)


@dataclasses.dataclass(frozen=True)
class Hunted:
    """What the checks said about one fault.

    Members: `fault`; `check` and `detail`: the first check that failed and what it saw, or None; `seconds` for building
    and checking.
    """

    fault: Fault
    check: str | None
    detail: str | None
    seconds: float

    @property
    def as_wanted(self) -> bool:
        """A fault is noticed, an equivalent change is not."""
        return (self.check is None) == self.fault.equivalent


def hunt(faults: Sequence[Fault], core: CoreConfig, say: Callable[[str], object]) -> Iterator[Hunted]:
    """Build and check each fault in turn; `say` takes a line of progress.

    Raises FaultError, ToolMissingError, BuildError.
    """
    with small_model_run(core) as model:
        for number, fault in enumerate(faults, 1):
            say(f"{number} of {len(faults)}: {fault.name}, building")
            start = time.monotonic()
            shown = core_of(fault, core)
            built = compile_board(shown, export_with_fault(fault, shown), compile_flags=QUICK_COMPILE_FLAGS)
            say(f"{number} of {len(faults)}: {fault.name}, checking")
            finding = inspect(built, model if shown == core else None)  # the model is compiled for `core`
            seconds = round(time.monotonic() - start, 1)
            check, detail = (finding.check, finding.detail) if finding else (None, None)
            yield Hunted(fault, check, detail, seconds)


@contextlib.contextmanager
def small_model_run(core: CoreConfig) -> Iterator[ModelRun]:
    """A random model of 3 heads and width 48 that is run until its cache is full."""
    torch.manual_seed(MODEL_SEED)
    model = GPT2(MODEL)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "wpe" not in name:
                parameter.mul_(8)  # far from flat, so that every unit matters
    with tempfile.TemporaryDirectory(prefix="ringfly-") as folder:
        save_model(model, Path(folder))
        program, image = compile_model(folder, core, Path(folder) / "program")
        yield ModelRun(program, image, PROMPT, MODEL.n_positions)
