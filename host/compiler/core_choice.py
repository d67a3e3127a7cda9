"""The core that a user names: one of the known ones, or a JSON file of a core description."""

from __future__ import annotations

import re
from pathlib import Path

from hw.gpt2.config import CORE_CONFIGS, ConfigError, CoreConfig, core_config

__all__ = ["chosen_core"]

_PORT_BITS = (256, 512)


def chosen_core(text: str) -> CoreConfig:
    """The core called `text`, for example ``16x4``, or described by the file `text`, which must end in ``.json``.

    Raises ConfigError: for a name of sizes that do not divide, the violated constraints; else the known names.
    """
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
