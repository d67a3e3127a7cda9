"""Judging generated tokens by PyTorch fp32, run once over prompt + our tokens (DESIGN section 5).

Each of our tokens must be the reference's arg-max, or be within 4 x the RMS error of its logit: a near tie, listed with
position, both tokens and the gap. So a tie never ends the check.

The RMS error is that of an accuracy record. Without one it is measured on the very logits that are judged, but never
more than PyTorch's own in half precision on the same positions: a broken core must not widen its own tolerance.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from host.errors import BadInput

__all__ = ["Comparison", "NearTie", "compare", "rms", "stored_rms_error"]

TIE_ERRORS = 4.0  # a gap below so many RMS errors is a near tie
# An RMS error above so many of PyTorch fp16's own is a fault. Measured on gpt2-tiny, 256 positions: the core has
# 0.77 of it overall, at most 1.2 over 8 positions in a row and 2.6 on a single one.
SUSPECT_ERRORS = 4.0
# Stands for PyTorch fp16's RMS error, in RMS logits, where PyTorch overflows in fp16: a unit of fp16's last place
# (gpt2-tiny has 0.57 of that, random models up to 0.87).
ASSUMED_HALF_ERROR = 2.0**-10
ACCURACY_FORMAT = "ringfly-accuracy/1"
RESULTS = Path(__file__).resolve().parents[2] / "results"
Logits = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class NearTie:
    """One token that is not the reference's arg-max but within the threshold.

    Members: `position` of the token in prompt + generated; `ours`, `reference`: token ids; `gap`: reference logit of
    its arg-max minus that of our token.
    """

    position: int
    ours: int
    reference: int
    gap: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Outcome of a check.

    Members: `near_ties`; `wrong`: positions whose gap is above `threshold`, in the same form; `rms_error`, from which
    `threshold` follows, and `rms_source`, where that figure comes from; `tokens`: how many were judged; `suspicion`:
    why our logits as a whole cannot be right, or None.
    """

    tokens: int
    rms_error: float
    rms_source: str
    near_ties: tuple[NearTie, ...]
    wrong: tuple[NearTie, ...]
    suspicion: str | None = None

    @property
    def threshold(self) -> float:
        """Largest gap that still counts as a tie."""
        return TIE_ERRORS * self.rms_error

    @property
    def verdict(self) -> str:
        """``equal``, ``near_tie(n)`` or ``wrong``."""
        if self.wrong or self.suspicion:
            return "wrong"
        return f"near_tie({len(self.near_ties)})" if self.near_ties else "equal"


def compare(
    reference: Callable[[Sequence[int]], Logits],
    prompt: Sequence[int],
    tokens: Sequence[int],
    *,
    rms_error: float | None = None,
    rms_source: str = "given",
    logits: Logits | None = None,
    half: Callable[[Sequence[int]], Logits] | None = None,
    half_name: str = "fp16",
) -> Comparison:
    """Judge greedy `tokens` that followed `prompt`.

    Parameters
    ----------
    reference : callable
        Token ids [n] -> fp32 logits [n, vocab] of every position.
    rms_error, rms_source
        RMS error of our logits, and where it was measured; or None to measure it on `logits`, bounded by `half`.
    logits : array
        Our logits [len(tokens), vocab], from which each token was chosen.
    half : callable
        As `reference`, computed by PyTorch in half precision, or with weights rounded as the core's are; `half_name`
        says which: ``fp16`` or ``int8``.

    Raises BadInput if there is neither a figure nor both logits and `half`.
    """
    first = len(prompt) - 1
    sequence = [*prompt, *tokens[:-1]]
    judged = reference(sequence)[first:]
    suspicion = None
    if rms_error is None:
        if logits is None or half is None:
            raise BadInput(
                "the comparison needs the RMS error of the logits, or the logits and PyTorch's in half precision",
                kind="no_rms_error",
            )
        rms_error, rms_source, suspicion = _bounded_error(logits, judged, half(sequence)[first:], half_name)
    ties: list[NearTie] = []
    wrong: list[NearTie] = []
    for step, (row, ours) in enumerate(zip(judged, tokens, strict=True)):
        best = int(np.argmax(row))
        if best == ours:
            continue
        gap = float(row[best]) - float(row[ours])
        found = NearTie(first + 1 + step, int(ours), best, gap)
        (ties if gap <= TIE_ERRORS * rms_error else wrong).append(found)
    return Comparison(len(tokens), rms_error, rms_source, tuple(ties), tuple(wrong), suspicion)


def _bounded_error(logits: Logits, judged: Logits, half: Logits, half_name: str) -> tuple[float, str, str | None]:
    """(RMS error, its source, suspicion): the smaller error of our logits and of `half`, both against `judged`."""
    own, bound, bound_source = rms(logits - judged), rms(half - judged), f"PyTorch {half_name}"
    if not np.isfinite(bound):
        bound, bound_source = ASSUMED_HALF_ERROR * rms(judged), f"assumed for PyTorch {half_name}, which overflows"
    figures = f"{own:.3g} on this run's {len(judged)} positions; {bound_source}: {bound:.3g}"
    suspicion = None
    if not own <= SUSPECT_ERRORS * bound:  # NaN is suspect too
        suspicion = f"the logits' RMS error is more than {SUSPECT_ERRORS:g} times that of {half_name}: {figures}"
    return (own if own < bound else bound), f"the smaller of {figures}", suspicion


def rms(error: npt.NDArray[np.float32]) -> float:
    """Root of the mean square, summed in float64; 0 for an empty array."""
    return float(np.sqrt(np.mean(np.square(error, dtype=np.float64)))) if error.size else 0.0


def stored_rms_error(
    model_digest: str, core_digest: str, folder: Path = RESULTS, *, boards: int = 1
) -> tuple[float, str] | None:
    """(RMS error, file) of an accuracy record of this very model, core and number of boards in `results/`, or None."""
    for path in sorted(folder.glob("accuracy_*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        wanted = (ACCURACY_FORMAT, model_digest, core_digest, boards)
        found = (record.get("format"), record.get("model_digest"), record.get("core_digest"), record.get("boards", 1))
        if found == wanted:
            return float(record["core"]["rms_error"]), f"{path.name}, {record['positions']} held-out positions"
    return None
