"""The core that a user names: one of the known ones, or a JSON file of a core description."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from hw.gpt2.config import CORE_CONFIGS, ROWS, WEIGHTS, ConfigError, CoreConfig, core_config

__all__ = ["chosen_core"]

_PORT_BITS = (256, 512)


def chosen_core(text: str, rows: int | None = None, weights: str | None = None) -> CoreConfig:
    """The core called `text`, for example ``16x4``, or described by the file `text`, which must end in ``.json``.

    With `rows` it is the core of so many rows: that of ``16x4`` and 4 is ``16x4r4``. With `weights` it is the core of
    such weights: that of ``16x4`` and ``int8`` is ``16x4i8``.
    Raises ConfigError: for a name of sizes that do not divide, the violated constraints; for rows or weights that no
    core has, or others than the name or file says; else the known names.
    """
    core = _named(text)
    if weights is not None and weights not in WEIGHTS:
        raise ConfigError(f"weights must be fp16 or int8, got {weights!r}")
    if core.has_int8 and weights == "fp16":
        raise ConfigError(f"core {core.name} has int8 weights, asked for fp16: leave one of the two out")
    if rows in (None, core.rows) and weights in (None, core.weights):
        return core
    base = dataclasses.replace(core, name=core.name.removesuffix("i8"), weights="fp16") if core.has_int8 else core
    base = _with_rows(base, rows)
    if core.has_int8 or weights == "int8":
        return dataclasses.replace(base, name=f"{base.name}i8", weights="int8")
    return base


def _with_rows(core: CoreConfig, rows: int | None) -> CoreConfig:
    if rows is None or rows == core.rows:
        return core
    if rows not in ROWS:
        raise ConfigError(f"rows must be {', '.join(map(str, ROWS[:-1]))} or {ROWS[-1]}, got {rows}")
    if core.rows > 1:
        raise ConfigError(f"core {core.name} has {core.rows} rows, asked for {rows}: leave one of the two out")
    wanted = dataclasses.replace(core, rows=rows)
    known = (of_name for of_name in CORE_CONFIGS.values() if dataclasses.replace(of_name, name=core.name) == wanted)
    return next(known, dataclasses.replace(wanted, name=f"{core.name}r{rows}"))


def _named(text: str) -> CoreConfig:
    if text in CORE_CONFIGS:
        return core_config(text)
    if text.endswith(".json"):
        return _from_file(Path(text))
    sizes = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    if sizes:
        tile, lanes = map(int, sizes.groups())
        port_bits = next((bits for bits in _PORT_BITS if tile * 16 == bits), _PORT_BITS[0])
        CoreConfig(
            name=text, tile=tile, lanes=lanes, channels=max(1, tile * lanes * 16 // port_bits), port_bits=port_bits
        )
    return core_config(text)


def _from_file(path: Path) -> CoreConfig:
    try:
        return CoreConfig.from_json(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"core description {path} cannot be read: {error.strerror}") from None
    except ConfigError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no core description: {error}; `CoreConfig.to_json` writes one") from None
