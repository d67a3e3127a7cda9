"""The published GPT-2 sizes by name, and DFX's variant; their weights come from a seed (`sw.models.seeded_weights`).

Source: Radford et al. (2019), table 2, as OpenAI released them (vocabulary 50,257, 1,024 positions, heads of 64); the
model that papers call 345M has 355 million parameters. `gpt2-1.5b-dfx`: Hong et al., "DFX" (MICRO 2022), table 1, which
took one of XL's 25 heads away so that the heads divide by four boards.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sw.models.gpt2_config import GPT2Config

__all__ = ["NAMED_SIZES"]

VOCABULARY, POSITIONS, END_OF_TEXT = 50257, 1024, 50256


def _gpt2(n_layer: int, n_head: int, n_embd: int) -> GPT2Config:
    return GPT2Config(
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        n_positions=POSITIONS,
        vocab_size=VOCABULARY,
        eos_token_id=END_OF_TEXT,
        bos_token_id=END_OF_TEXT,
    )


NAMED_SIZES: Mapping[str, GPT2Config] = MappingProxyType(
    {
        "gpt2-124m": _gpt2(12, 12, 768),
        "gpt2-345m": _gpt2(24, 16, 1024),
        "gpt2-774m": _gpt2(36, 20, 1280),
        "gpt2-xl": _gpt2(48, 25, 1600),
        "gpt2-1.5b-dfx": _gpt2(48, 24, 1536),
    }
)
"""Configuration of every size by its name."""
