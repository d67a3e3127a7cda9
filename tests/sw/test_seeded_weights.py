"""Seeded weights are a pure function of (seed, name), look like GPT-2's initialisation, and load into transformers."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
import torch

from sw.errors import ModelError
from sw.models import seeded_weights
from sw.models.checkpoint import state_dict
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.named_sizes import NAMED_SIZES
from sw.models.seeded_weights import BLOCK, SeededCheckpoint
from sw.models.weights import expected_shapes

SMALL = GPT2Config(n_layer=3, n_head=4, n_embd=64, n_positions=40, vocab_size=211)
PARAMETERS = {  # as transformers counts the released models
    "gpt2-124m": 124_439_808,
    "gpt2-345m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt2-1.5b-dfx": 1_438_683_648,  # XL without one head
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_named_sizes_are_the_published_ones(name: str) -> None:
    config = NAMED_SIZES[name]
    assert set(PARAMETERS) == set(NAMED_SIZES)
    assert sum(math.prod(shape) for shape in expected_shapes(config).values()) == PARAMETERS[name]
    assert config.head_size == 64 and config.n_inner == 4 * config.n_embd
    assert (config.n_positions, config.vocab_size, config.eos_token_id) == (1024, 50257, 50256)


def test_a_tensor_is_the_same_in_every_order_and_as_often_as_wanted() -> None:
    first, second = SeededCheckpoint(SMALL, 5), SeededCheckpoint(SMALL, 5)
    forward = {name: first.tensor(name) for name in first.names}
    backward = {name: second.tensor(name) for name in reversed(second.names)}
    assert all(np.array_equal(forward[name], backward[name]) for name in forward)
    forward["wpe.weight"][:] = 0  # an array of the caller's own
    assert np.array_equal(first.tensor("wpe.weight"), backward["wpe.weight"])
    # twins: another seed, another name
    assert not np.array_equal(SeededCheckpoint(SMALL, 6).tensor("wpe.weight"), backward["wpe.weight"])
    assert not np.array_equal(backward["h.0.mlp.c_fc.weight"], backward["h.1.mlp.c_fc.weight"])


def test_blocks_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(SMALL, vocab_size=BLOCK // 64 * 2 + 3)
    threaded = SeededCheckpoint(config, 1).tensor("wte.weight")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    alone = SeededCheckpoint(config, 1).tensor("wte.weight").reshape(-1)
    assert np.array_equal(threaded.reshape(-1), alone)
    assert not np.array_equal(alone[:BLOCK], alone[BLOCK : 2 * BLOCK])
    # a block comes from its own generator
    key = f"{seeded_weights.GENERATOR}\n1\nwte.weight"
    block = seeded_weights.keyed_generator(key, 1).standard_normal(BLOCK, np.float32) * np.float32(0.02)
    assert np.array_equal(alone[BLOCK : 2 * BLOCK], block)


def test_the_stream_is_the_recorded_one() -> None:
    """Another NumPy stream would be another model under the same digest: then GENERATOR must change."""
    weights = SeededCheckpoint(SMALL, 1)
    joined = hashlib.sha256(b"".join(weights.tensor(name).tobytes() for name in weights.names)).hexdigest()
    assert joined == "3c4d2a5420285163090995d9db5ee793481065779dbb0d93041d8af1bdabc156"
    assert weights.digest() == "0f286d388d141ecdd6d7dfc337f20f2838633e4eecbb93b2c9a31d9a6d3cbea5"


def test_digest_names_generator_configuration_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = SeededCheckpoint(SMALL, 1).digest()
    assert digest == SeededCheckpoint(SMALL, 1, "another name").digest()
    assert digest != SeededCheckpoint(SMALL, 2).digest()
    assert digest != SeededCheckpoint(dataclasses.replace(SMALL, layer_norm_epsilon=1e-6), 1).digest()
    monkeypatch.setattr(seeded_weights, "GENERATOR", "another")
    assert digest != SeededCheckpoint(SMALL, 1).digest()


def test_values_are_gpt2s_initialisation_with_a_spread() -> None:
    weights = SeededCheckpoint(dataclasses.replace(SMALL, n_embd=256), 3)
    for name in weights.names:
        values = weights.tensor(name)
        assert values.dtype == np.float32 and values.flags.c_contiguous
        gain = name.endswith("weight") and values.ndim == 1
        wanted = 0.1 if gain else 0.02 / math.sqrt(6) if name.endswith("c_proj.weight") else 0.02
        few = 6 / math.sqrt(values.size)  # six sigma of mean and deviation
        assert abs(values.mean() - (1.0 if gain else 0.0)) < few * wanted, name
        assert abs(values.std() / wanted - 1) < few, name
        assert np.all(values != 0) and float(np.abs(values).max()) <= (weights.largest_magnitude or 0)


def test_memory_is_the_tensor_alone() -> None:
    config = dataclasses.replace(SMALL, n_embd=512, vocab_size=20_000)
    weights = SeededCheckpoint(config, 1)
    tracemalloc.start()
    try:
        size = weights.tensor("wte.weight").nbytes
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 4 * 512 * 20_000 and size <= peak < size + 1_000_000


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, True, "1"])
def test_a_bad_seed_is_named(seed: object) -> None:
    with pytest.raises(ModelError, match="seed") as caught:
        SeededCheckpoint(SMALL, seed)  # type: ignore[arg-type]
    assert caught.value.kind == "bad_seed" and caught.value.value == seed


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        SeededCheckpoint(SMALL).tensor("h.3.ln_1.weight")


def test_transformers_and_our_model_agree_on_seeded_weights() -> None:
    transformers = pytest.importorskip("transformers")
    weights = SeededCheckpoint(SMALL, 7)
    sizes = {name: getattr(SMALL, name) for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    rest = theirs.load_state_dict(state_dict(weights, "transformer."), strict=False)
    assert rest.missing_keys == ["lm_head.weight"] and not rest.unexpected_keys  # tied to wte
    ids = torch.tensor([np.random.default_rng(1).integers(0, 211, 30).tolist()])
    with torch.no_grad():
        wanted = theirs(ids).logits
        assert torch.allclose(GPT2.from_weights(weights)(ids), wanted, atol=1e-5)
        # twins: another seed; biases and gains as the plain initialisation has them
        assert not torch.allclose(GPT2.from_weights(SeededCheckpoint(SMALL, 8))(ids), wanted, atol=1e-2)
        plain = GPT2.from_weights(weights)
        for name, parameter in plain.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        assert not torch.allclose(plain(ids), wanted, atol=1e-2)


def test_nothing_here_imports_torch() -> None:
    code = (
        "import sys; from sw.models.seeded_weights import SeededCheckpoint;"
        "from sw.models.named_sizes import NAMED_SIZES;"
        "import sw.models.key_values; SeededCheckpoint(NAMED_SIZES['gpt2-xl']).tensor('h.47.ln_2.bias');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert subprocess.run([sys.executable, "-c", "import sys, torch; " + code], timeout=60).returncode == 1  # twin


@pytest.mark.slow
def test_345m_is_made_in_seconds() -> None:
    weights = SeededCheckpoint(NAMED_SIZES["gpt2-345m"], 1)
    start = time.monotonic()
    assert sum(weights.tensor(name).size for name in weights.names) == PARAMETERS["gpt2-345m"]
    print(f"figure: gpt2-345m generated in {time.monotonic() - start:.1f} s")
