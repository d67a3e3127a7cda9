"""Core configurations: what cannot be built is refused with every violated constraint; the JSON form comes back."""

import dataclasses

import pytest

from hw.gpt2.config import CORE_CONFIGS, ConfigError, CoreConfig, core_config

SMALL = core_config("16x4")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lanes": 32}, ["lanes (32) must divide tile (16)"]),
        ({"tile": 48}, ["tile must be 8, 16, 32 or 64, got 48"]),
        ({"channels": 8}, ["channels x port_bits must be tile x lanes x 16 = 1024, got 8 x 256 = 2048"]),
        ({"context": 4096}, ["context must be 1 to 4095, got 4096"]),
        ({"context": 1000}, ["context must be a multiple of tile (16), got 1000"]),
        ({"act_words": 1 << 20}, ["act_words must be 1 to 4096", "strip addresses must fit 16 bits"]),
        ({"new_key_words": 0, "guard_bits": 9}, ["new_key_words must be 1 to 1024", "guard_bits must be 0 to 8"]),
        ({"instructions": 256.5}, ["whole numbers", "instructions = 256.5"]),
        ({"rows": True}, ["whole numbers", "rows = True"]),
        ({"param_depth": 64}, ["param_depth (64) must hold acc_depth strips"]),
        ({"score_rows": 128}, ["score_rows must hold the context: 1024 / 4 lanes, got 128"]),
        ({"score_rows": 300}, ["score_rows must be a power of two, got 300"]),
        ({"fifo_words": 180}, ["fifo_words must be a power of two, got 180"]),
        ({"fifo_words": 16}, ["fifo_words must be 32 to 4096, got 16"]),
    ],
)
def test_what_cannot_be_built_is_refused(change, words):
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(SMALL, **change)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("config", CORE_CONFIGS.values(), ids=lambda config: config.name)
def test_json_comes_back_and_the_digest_follows_every_field(config):
    assert CoreConfig.from_json(config.to_json()) == config
    assert CoreConfig.from_json(config.to_json()).digest == config.digest
    assert dataclasses.replace(config, guard_bits=3).digest != config.digest


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"format_version":2', '"format_version":1', "version 1, this Ringfly reads 2"),
        ('"lanes":4', '"lanes":4,"colour":1', "colour"),
    ],
)
def test_another_format_is_refused(old, new, words):
    with pytest.raises(ConfigError, match=words):
        CoreConfig.from_json(SMALL.to_json().replace(old, new))


def test_unknown_core_lists_the_known_ones():
    with pytest.raises(ConfigError, match="16x4, 64x16"):
        core_config("8x8")
