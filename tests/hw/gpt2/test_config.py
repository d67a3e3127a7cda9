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
        ({"rows": 3}, ["rows must be 1, 2 or 4, got 3"]),
        ({"rows": 4, "lanes": 2, "channels": 2}, ["rows must be at most lanes (2), got 4"]),
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
    known = r"16x4, 16x4r2, 16x4r4, 16x4i8, 16x4r2i8, 16x4r4i8, 64x16, .*64x16i8, 64x16r2i8, 64x16r4i8"
    for unknown in ("8x8", "8x8i8", "16x4i8r2"):
        with pytest.raises(ConfigError, match=f"unknown core '{unknown}'; known cores: {known}"):
            core_config(unknown)


def test_rows_are_told_by_the_name_or_beside_it():
    for base in ("16x4", "64x16"):
        assert core_config(base).rows == 1 and core_config(base).has_ring
        for rows in (2, 4):
            config = core_config(base, rows)
            assert config == core_config(f"{base}r{rows}")
            assert config == dataclasses.replace(core_config(base), name=f"{base}r{rows}", rows=rows)
            assert not config.has_ring
    with pytest.raises(ConfigError, match="unknown core '16x4r3'"):
        core_config("16x4", 3)


def test_int8_weights_are_told_by_the_name_or_beside_it():
    for base in ("16x4", "64x16"):
        for rows, name in ((1, f"{base}i8"), (2, f"{base}r2i8"), (4, f"{base}r4i8")):
            config = core_config(name)
            assert config == core_config(base, rows, "int8") == CORE_CONFIGS[name]
            assert config == dataclasses.replace(core_config(base, rows), name=name, weights="int8")
            assert config.has_ring == (rows == 1)
    with pytest.raises(ConfigError, match="fp16 or int8, got 'int4'"):
        core_config("16x4", weights="int4")


def test_int8_weights_need_their_own_programs():
    config = core_config("16x4", 2, "int8")
    assert (config.name, config.rows, config.weights, config.mm_strips) == ("16x4r2i8", 2, "int8", 2)
    assert CoreConfig.from_json(config.to_json()) == config
    assert config.digest != core_config("16x4", 2).digest and core_config("16x4").mm_strips == 1
    for change, words in (({"weights": "int4"}, "fp16 or int8, got 'int4'"), ({"lanes": 16}, "two strips or more")):
        with pytest.raises(ConfigError, match=words):
            dataclasses.replace(config, **change)


def test_a_core_that_programs_were_made_for_keeps_its_digest():
    """A program names its core by the digest: programs from before there were rows and int8 weights still run."""
    assert core_config("16x4").digest.startswith("f678cf49158f2134")
    assert core_config("64x16").digest.startswith("65f8fe73ea8fc6cc")
