"""What a user asks for, checked before anything is compiled or built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from host.driver.run_request import MAX_STOP_IDS
from host.errors import BadInput
from hw.board.gpt2_map import MAX_BOARDS
from hw.gpt2.config import CoreConfig
from sw.models.gpt2_config import GPT2Config
from sw.models.seeded_weights import SeededCheckpoint
from sw.models.tokenizer import Tokenizer
from sw.models.weights import WeightTensors

if TYPE_CHECKING:
    from sim.devices.link_timing import LinkTiming

__all__ = [
    "BOARD_EXECUTORS",
    "EXECUTORS",
    "check_arguments",
    "check_boards",
    "check_executor",
    "check_memory",
    "check_rows",
    "check_weights",
    "chosen_context",
    "chosen_stop_ids",
    "encode_prompt",
    "encode_prompts",
    "tokenizer_of",
]

BOARD_EXECUTORS = ("rtl", "functional")  # what runs a compiled program
EXECUTORS = (*BOARD_EXECUTORS, "torch")


def check_executor(executor: str, known: Sequence[str] = EXECUTORS) -> None:
    """Raise BadInput for an executor that is not `known`."""
    _check_known("executor", executor, {name: name for name in known})


def check_memory(memory: str) -> None:
    """Raise BadInput for a memory that `sim.devices.named` does not know."""
    from sim.devices.named import MEMORIES

    _check_known("memory", memory, {name: f"{name} ({what})" for name, what in MEMORIES.items()})


def _check_known(what: str, name: str, known: Mapping[str, str]) -> None:
    """Raise BadInput unless `name` is among the `known`, which come with what the hint calls them."""
    if name not in known:
        raise BadInput(
            f"unknown {what} {name!r}",
            kind=f"unknown_{what}",
            value=name,
            expected=list(known),
            hint="Use one of: " + ", ".join(known.values()) + ".",
        )


def check_arguments(executor: str, max_new_tokens: int, timeout_s: float) -> None:
    """Raise BadInput for an unknown executor, no tokens wanted, or no time."""
    check_executor(executor)
    if max_new_tokens < 1:
        raise BadInput(f"max-new-tokens must be 1 or more, got {max_new_tokens}", value=max_new_tokens, expected=">= 1")
    if not timeout_s > 0:
        raise BadInput(f"timeout-s must be above 0, got {timeout_s}", value=timeout_s, expected="> 0")


def check_boards(
    executor: str, boards: int, links: LinkTiming | None = None, cards: Sequence[str] = (), rows: int = 1
) -> None:
    """Raise BadInput for a number of boards that none has, several of a core with `rows`, cables or cards without
    boards that have them."""
    if not 1 <= boards <= MAX_BOARDS:
        raise BadInput(f"boards must be 1 to {MAX_BOARDS}, got {boards}", value=boards, expected=f"1 to {MAX_BOARDS}")
    if executor not in BOARD_EXECUTORS and (boards > 1 or cards):
        raise BadInput(
            f"executor {executor} has no boards",
            value=executor,
            expected=" or ".join(BOARD_EXECUTORS),
            hint="Leave --boards and --card out, or choose another executor.",
        )
    if boards > 1 and rows > 1:
        raise BadInput(
            f"a core with {rows} rows has no ring: it works alone, not with {boards} boards",
            kind="rows_on_ring",
            value={"boards": boards, "rows": rows},
            expected="one board, or one row",
            hint="Leave --boards out, or --rows.",
        )
    if links is not None and (executor != "rtl" or boards == 1):
        raise BadInput(
            "there are no cables to describe: only several boards of executor rtl have them",
            value={"executor": executor, "boards": boards},
            expected="--executor rtl with --boards 2 to 8",
            hint="Leave --hop-ns, --link-seed and --frame-error-rate out, or give --boards.",
        )
    if cards and (len(cards) != boards or len(set(cards)) != boards):
        raise BadInput(
            f"{boards} board{'s need' if boards > 1 else ' needs'} as many different cards, got {', '.join(cards)}",
            value=list(cards),
            expected=f"{boards} different names, or none",
            hint="Give --card once a board.",
        )


def check_rows(executor: str, rows: int | None, core: CoreConfig) -> None:
    """Raise BadInput for `rows` that an executor has not, or others than those of the core description `core`."""
    if rows is None:
        return
    if executor not in BOARD_EXECUTORS:
        raise BadInput(
            f"executor {executor} has no rows",
            value=executor,
            expected=" or ".join(BOARD_EXECUTORS),
            hint="Leave --rows out, or choose another executor.",
        )
    if rows != core.rows:
        raise BadInput(f"core {core.name} has {core.rows} rows, asked for {rows}", value=rows, expected=core.rows)


def check_weights(executor: str, weights: str | None, core: CoreConfig) -> None:
    """Raise BadInput for `weights` of a core where `executor` has none, or others than those of the core `core`."""
    if weights is None:
        return
    if executor not in BOARD_EXECUTORS:
        raise BadInput(
            f"executor {executor} has no core whose weights could be {weights}",
            value=executor,
            expected=" or ".join(BOARD_EXECUTORS),
            hint="Leave --weights out, or choose another executor.",
        )
    if weights != core.weights:
        raise BadInput(
            f"core {core.name} has {core.weights} weights, asked for {weights}", value=weights, expected=core.weights
        )


def tokenizer_of(model_dir: str | Path, weights: WeightTensors) -> Tokenizer:
    """The tokenizer beside a checkpoint. BadInput for seeded weights, CheckpointError if there is no usable one."""
    if isinstance(weights, SeededCheckpoint):
        raise BadInput(
            f"{weights.label} has no tokenizer, so it takes no text",
            kind="no_tokenizer",
            value=str(model_dir),
            expected="a checkpoint directory with tokenizer.json",
            hint="Run it on token ids: `ringfly compile`, then `ringfly sim --prompt-ids`.",
        )
    return Tokenizer(model_dir)


def encode_prompt(tokenizer: Tokenizer, model: GPT2Config, prompt: str, limit: int) -> list[int]:
    """Token ids of the prompt. BadInput if it is empty, longer than `limit`, or not of this vocabulary."""
    ids = tokenizer.encode(prompt)
    if not ids:
        raise BadInput(
            "the prompt is empty",
            kind="empty_prompt",
            value=prompt,
            expected="at least one token",
            hint="Give some text to continue.",
        )
    vocabulary = model.vocab_size
    outside = [token for token in ids if token >= vocabulary]
    if outside:
        raise BadInput(
            f"tokenizer.json gives token id {outside[0]}, the model has {vocabulary} ids",
            kind="wrong_tokenizer",
            value=outside[0],
            expected=f"0 to {vocabulary - 1}",
            hint="Use the tokenizer.json that was saved with the checkpoint.",
        )
    if len(ids) > limit:
        raise BadInput(
            f"the prompt has {len(ids)} tokens, the cache holds {limit} positions",
            kind="prompt_too_long",
            value=len(ids),
            expected=limit,
            hint="Shorten the prompt, or use a model and core with a longer context.",
        )
    return ids


def encode_prompts(tokenizer: Tokenizer, model: GPT2Config, prompts: Sequence[str], limit: int) -> list[list[int]]:
    """Token ids of one or more prompts. Errors as of `encode_prompt`; of several prompts the message has the number."""
    if not prompts:
        raise BadInput("there is no prompt", kind="no_prompt", value=0, expected="at least one")
    found = []
    for number, prompt in enumerate(prompts):
        try:
            found.append(encode_prompt(tokenizer, model, prompt, limit))
        except BadInput as error:
            if len(prompts) > 1:
                error.message = f"prompt {number}: {error.message}"
            raise
    return found


def chosen_stop_ids(stop_ids: Sequence[int] | None, model: GPT2Config) -> tuple[int, ...]:
    """The given stop ids, or the model's end-of-text. BadInput if there are more than the core compares."""
    if stop_ids is None:
        end = model.eos_token_id
        return () if end is None else (end,)
    if len(stop_ids) > MAX_STOP_IDS:
        raise BadInput(f"{len(stop_ids)} stop ids, the core compares {MAX_STOP_IDS}", value=len(stop_ids))
    return tuple(stop_ids)


def chosen_context(context: int | None, model: GPT2Config, core_context: int) -> int:
    """Positions of the cache. BadInput if the model or the core has fewer than asked for."""
    limit = min(model.n_positions, core_context)
    if context is None:
        return limit
    if not 1 <= context <= limit:
        raise BadInput(
            f"context must lie in 1 to {limit}, got {context}: the model has {model.n_positions} positions, "
            f"the core holds {core_context}",
            value=context,
            expected=f"1 to {limit}",
        )
    return context
