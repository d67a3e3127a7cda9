"""PyTorch's own GPT-2 as judge of a decode step, shared by the tests of full-size models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import DynamicCache, GPT2LMHeadModel
from transformers import GPT2Config as JudgeConfig

from sw.models.key_values import KeyValues, stacked
from sw.models.weights import WeightTensors

Logits = npt.NDArray[np.float32]
Judge = Callable[[KeyValues, int], Logits]


def _judge(weights: WeightTensors, half: bool) -> Judge:
    sizes = {k: v for k, v in dataclasses.asdict(weights.config).items() if k in JudgeConfig().to_dict()}
    with torch.device("meta"):
        model = GPT2LMHeadModel(JudgeConfig(**sizes, attn_implementation="sdpa"))
    kind = torch.float16 if half else torch.float32
    state = {f"transformer.{name}": torch.from_numpy(weights.tensor(name)).to(kind) for name in weights.names}
    state["lm_head.weight"] = state["transformer.wte.weight"]
    model.load_state_dict(state, assign=True)
    model.eval()

    def logits(cache: KeyValues, token: int) -> Logits:
        keys, values = (torch.from_numpy(array).to(kind) for array in stacked(cache))
        past = DynamicCache()
        for layer in range(weights.config.n_layer):
            past.update(keys[layer][None], values[layer][None], layer)
        position = torch.tensor([[cache.positions]])
        with torch.inference_mode():
            out = model(torch.tensor([[token]]), cache=past, position_ids=position)
        found: Logits = out.logits[0, -1].float().numpy()
        return found

    return logits


@pytest.fixture(scope="session")
def step_judge() -> Callable[[WeightTensors, bool], Judge]:
    """(weights, half) -> `transformers`' model on them; (cache, token) -> its fp32 logits of `token` behind `cache`.

    ``half``: computed in fp16 with SDPA. A model holds all its weights until it is dropped.
    """
    return _judge
