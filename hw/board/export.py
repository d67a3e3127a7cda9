"""Verilog of a kernel or of any component, with shared modules elaborated once, and a map of signal names."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping

from amaranth.back import verilog
from amaranth.hdl import Fragment, Instance
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring

from hw.bus.shared import ByName, flat_ports

__all__ = ["Export", "export_verilog"]

_ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME_MAP_FORMAT = "ringfly-names/1"
_SOURCE_ATTRIBUTE = re.compile(r'^ *\(\* src = "[^"]*" \*\)\n', re.MULTILINE)  # memories keep theirs: absolute paths


@dataclasses.dataclass(frozen=True)
class Export:
    """Verilog text, name of the top module, and the name map (see :meth:`names_json`)."""

    text: str
    top: str
    name_map: Mapping[str, object]

    @property
    def sha256(self) -> str:
        """SHA-256 of the text, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def instances(self) -> Mapping[str, str]:
        """Path in the top of every instance of a shared module, and that module's name."""
        instances = self.name_map["instances"]
        assert isinstance(instances, dict)
        return instances

    def names_json(self) -> str:
        """The name map as JSON.

        ``modules``: for the top and for each shared module, signal by signal, ``path`` (Amaranth hierarchy and signal
        name), ``verilog`` (path in the Verilog), ``bits``, ``source`` (file and line that made the signal).
        ``instances``: path in the top to the name of the shared module that stands there.
        """
        return json.dumps(self.name_map, indent=1) + "\n"


def export_verilog(top: wiring.Component, shared: Mapping[str, wiring.Component], name: str = "top") -> Export:
    """Convert ``top`` and every shared module inside it.

    Parameters
    ----------
    top : component
        Its ports are named by :func:`hw.bus.shared.flat_ports`.
    shared : mapping from module name to component
        The patterns of all :class:`hw.bus.shared.Shared` below ``top``, nested ones included.
    name : str
        Name of the top module.

    The text depends on the design alone: no file names, dates or addresses. Raises ValueError if an instance of a
    shared module has no pattern in ``shared`` or a pattern is not used.
    """
    texts, modules = [], {}
    instances: dict[str, str] = {}
    used: set[str] = set()
    for module, component in [*sorted(shared.items()), (name, top)]:
        fragment = Fragment.get(component, ByName())
        ports = {
            port: (value, PortDirection.Input if is_input else PortDirection.Output)
            for port, (value, is_input) in flat_ports(component).items()
        }
        found = dict(_instances(fragment, ()))
        used |= set(found.values())
        if component is top:
            instances = {".".join((name, *path)): kind for path, kind in found.items()}
        text, signals = verilog.convert_fragment(fragment, ports, module, strip_internal_attrs=True)
        texts.append(_SOURCE_ATTRIBUTE.sub("", text))
        modules[module] = [
            {
                "path": ".".join((*path[:-1], signal.name)),
                "verilog": ".".join(path),
                "bits": len(signal),
                "source": _source(signal.src_loc),
            }
            for signal, path in signals.items()
        ]
    missing, unused = sorted(used - set(shared)), sorted(set(shared) - used)
    if missing or unused:
        raise ValueError(
            f"export of {name}: shared modules without a pattern: {missing}; patterns that nothing uses: {unused}; "
            "shared_modules() of the core must name exactly the modules it instantiates"
        )
    names = {"format": NAME_MAP_FORMAT, "top": name, "modules": modules, "instances": instances}
    return Export("\n".join(texts), name, names)


def _instances(fragment: Fragment, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for index, (child, name, _) in enumerate(fragment.subfragments):
        here = (*path, name if name is not None else f"U${index}")
        if isinstance(child, Instance):
            if not child.type.startswith("$"):
                yield here, child.type
        else:
            yield from _instances(child, here)


def _source(location: tuple[str, int]) -> str:
    """``file:line``: the file from the repository's root or from the installed package on, else its name alone."""
    path = pathlib.Path(location[0])
    if "site-packages" in path.parts:
        path = pathlib.Path(*path.parts[len(path.parts) - path.parts[::-1].index("site-packages") :])
    elif path.is_relative_to(_ROOT):
        path = path.relative_to(_ROOT)
    else:
        path = pathlib.Path(path.name)
    return f"{path.as_posix()}:{location[1]}"
