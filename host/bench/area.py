"""Area and depth of a core, judged: against the committed baseline and against the bars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from host.compiler.core_choice import chosen_core
from host.errors import BadInput
from hw.gpt2.config import core_config
from sim.rtl.build import export_board
from sim.synth.baseline import BaselineError, baseline_file, grown, read_baseline, write_baseline
from sim.synth.estimate import estimate
from sim.synth.limits import GPT2_64X16, exceeded
from sim.synth.report import module_levels, report

__all__ = ["judged_area"]


def judged_area(
    core: str, config_name: str, rows: int | None, update: bool, jobs: int, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """The report of ``sim.synth.report`` for a core, with a verdict.

    Parameters
    ----------
    core : str
        ``gpt2``.
    config_name : str
        A named core or a JSON file.
    rows : int or None
        Tokens that share a pass over the weights; None: as many as the named core has.
    update : bool
        Write the figures as the new baseline.
    jobs : int
        Modules synthesised at a time.
    progress : callable
        Takes (what, done, total).

    Adds ``core``, ``config``, ``rows``, ``exceeded`` (bars that are not held; only the 64x16 core with one row has
    some), ``grown`` (what takes more than in the baseline), ``baseline`` (which one, or why none), ``as_wanted``.
    Raises ConfigError for sizes that cannot be built, BadInput for a damaged baseline.
    """
    config = chosen_core(config_name, rows)
    export = export_board(config)
    estimated = estimate(export, jobs, progress)
    body = report(estimated, export)
    path = baseline_file(core, config.name)
    if update:
        write_baseline(path, body, f"ringfly synth {core} --core {config.name} --update")
    try:
        kept = read_baseline(path)
    except BaselineError as error:
        raise BadInput(str(error), value=str(path), hint="Give --update.") from error
    comparable = kept is not None and kept["area_source"] == body["area_source"]
    more = grown(body, kept) if kept is not None and comparable else []
    bars = exceeded(body["totals"], module_levels(estimated), GPT2_64X16) if config == core_config("64x16") else []
    if kept is None:
        against = f"none ({path.name} does not exist)"
    elif not comparable:
        against = f"not compared: {path.name} was {kept['area_source']}"
    else:
        against = path.name
    judged = {"exceeded": bars, "grown": more, "baseline": against, "as_wanted": not (bars or more)}
    return {"core": core, "config": config.name, "rows": config.rows, **judged, **body}
