"""Judging generated tokens by PyTorch fp32, run once over prompt + our tokens (DESIGN section 5).

Each of our tokens must be the reference's arg-max, or be within 4 x the RMS error of its logit: a near tie, listed with
position, both tokens and the gap. So a tie never ends the check.
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

    Members: `near_ties`; `wrong`: positions whose gap is above `threshold`, in the same form; `rms_error` of our logits
    and `rms_source`, where that figure comes from; `tokens`: how many were judged.
    """

    tokens: int
    rms_error: float
    rms_source: str
    near_ties: tuple[NearTie, ...]
    wrong: tuple[NearTie, ...]

    @property
    def threshold(self) -> float:
        """Largest gap that still counts as a tie."""
        return TIE_ERRORS * self.rms_error

    @property
    def verdict(self) -> str:
        """``equal``, ``near_tie(n)`` or ``wrong``."""
        if self.wrong:
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
) -> Comparison:
    """Judge greedy `tokens` that followed `prompt`.

    Parameters
    ----------
    reference : callable
        Token ids [n] -> fp32 logits [n, vocab] of every position.
    rms_error, rms_source
        RMS error of our logits, and where it was measured; or None to measure it on `logits`.
    logits : array
        Our logits [len(tokens), vocab], from which each token was chosen.

    Raises BadInput if there is neither a figure nor logits.
    """
    first = len(prompt) - 1
    judged = reference([*prompt, *tokens[:-1]])[first:]
    if rms_error is None:
        if logits is None:
            raise BadInput("the comparison needs the RMS error of the logits, or the logits", kind="no_rms_error")
        rms_error, rms_source = rms(logits - judged), f"this run, {len(tokens)} positions"
    ties: list[NearTie] = []
    wrong: list[NearTie] = []
    for step, (row, ours) in enumerate(zip(judged, tokens, strict=True)):
        best = int(np.argmax(row))
        if best == ours:
            continue
        gap = float(row[best]) - float(row[ours])
        found = NearTie(first + 1 + step, int(ours), best, gap)
        (ties if gap <= TIE_ERRORS * rms_error else wrong).append(found)
    return Comparison(len(tokens), rms_error, rms_source, tuple(ties), tuple(wrong))


def rms(error: npt.NDArray[np.float32]) -> float:
    """Root of the mean square, summed in float64; 0 for an empty array."""
    return float(np.sqrt(np.mean(np.square(error, dtype=np.float64)))) if error.size else 0.0


def stored_rms_error(model_digest: str, core_digest: str, folder: Path = RESULTS) -> tuple[float, str] | None:
    """(RMS error, file) of an accuracy record of this very model and core in `results/`, or None."""
    for path in sorted(folder.glob("accuracy_*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        wanted = (ACCURACY_FORMAT, model_digest, core_digest)
        if (record.get("format"), record.get("model_digest"), record.get("core_digest")) == wanted:
            return float(record["core"]["rms_error"]), f"{path.name}, {record['positions']} held-out positions"
    return None
