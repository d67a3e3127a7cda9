"""PYNQ driver of the GPT-2 kernel: load a program, run it (`host.driver.run_control`), read what it left in memory."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from host.driver.program_memory import copy_image, program_bytes
from host.driver.request_caches import RequestCaches
from host.driver.run_control import RunControl
from host.driver.u280_platform import KERNEL_VLNV
from host.errors import BadInput, VersionMismatch
from hw.board.gpt2_map import row_register
from hw.board.program import MemoryImage, Program, ProgramError

__all__ = ["CANCEL_S", "Gpt2Kernel"]

CANCEL_S = 10.0  # close() waits that long for a cancelled run


class Gpt2Kernel(RunControl):
    """``overlay.gpt2_0``. One caller's thread at a time.

    Attributes
    ----------
    core : CoreConfig
        The core that the xclbin describes (see KernelRegisters for access by register name).
    program : Program or None
        What is loaded.
    buffers : list
        The program's buffer (uint8, all that it uses of a channel) in each channel's bank.
    poll_s : float
        Pause between two polls of a run, in seconds.

    Raises VersionMismatch on creation if the kernel is not the one of its xclbin.
    """

    bindto: ClassVar[list[str]] = [KERNEL_VLNV]

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__(description)
        self.buffers: list[Any] = []
        self._ports = {name: entry["memory"] for name, entry in description["registers"].items() if "memory" in entry}

    # Program

    def load(self, source: pathlib.Path | str | tuple[Program, MemoryImage], *, verify: bool = True) -> Program:
        """Load a program folder (or a program and its image) into board memory and registers.

        ``verify`` checks the image files against the hashes in ``program.json``. Raises BadInput for a folder that
        cannot be used, VersionMismatch for a program of another core, DeviceBusy during a run, BankFull.
        """
        self._require_idle()
        try:
            program, image = source if isinstance(source, tuple) else Program.load(pathlib.Path(source))
            if verify:
                image.verify()
        except ProgramError as error:
            folder = None if isinstance(source, tuple) else str(source)
            raise BadInput(str(error), kind="bad_program", value=folder) from None
        self._check_core(program, image)
        self.program, self.buffers, self._caches = None, [], RequestCaches(None)
        self._prepared, self._run = None, None
        hook = getattr(self.device, "load_program", None)
        if hook is not None:
            buffers = hook(program, image)
        else:
            banks = [self.device.get_memory_by_name(self._ports[f"hbm{c}"]) for c in range(self.core.channels)]
            buffers = copy_image(image, program_bytes(program, image), banks)
            for name, words in (("instructions", program.instructions), ("descriptors", program.descriptors)):
                if words:
                    data = b"".join(word.to_bytes(16, "little") for word in words)
                    self.mmio.write(self.map.window(name).offset, data)
            for name, value in program.registers.items():
                self.set(name, value)
        for channel, buffer in enumerate(buffers):
            self.set(f"hbm{channel}", buffer.device_address)
        self.program, self.buffers = program, buffers
        self._caches = RequestCaches(program)
        return program

    # Results

    def read_logits(self, position: int, row: int = 0) -> npt.NDArray[np.float32]:
        """fp32 logits of a decode step, shape (vocab,), of the last run on the row's cache, which must have had
        ``write_logits``. Raises BadInput."""
        program = self._loaded()
        self._caches.require(row)
        have = self._caches.logits[row]
        if position not in have:
            raise BadInput(
                f"no logits of position {position}" + (f" of row {row}" if self.core.rows > 1 else ""),
                value=position,
                expected=f"{have.start} to {have.stop - 1}" if len(have) else "none",
                hint="Start with write_logits=True; logits exist for decode steps of the last run.",
            )
        registers, port_bytes = program.registers, self.core.port_bytes
        base = registers[row_register("logits_base", row)]
        first = (base + position * registers["logits_rows"]) * port_bytes
        size = registers["logits_rows"] * port_bytes
        channels = [self._channel(c, first, size).reshape(-1, port_bytes) for c in range(self.core.channels)]
        words = np.stack(channels, axis=1)  # port word j lies on channel j % C, row j / C
        return words.reshape(-1).view("<f4")[: registers["vocab"]].astype(np.float32)

    def kv_hash(self) -> str:
        """SHA-256 over all key and value regions, whole, in channel order (within a channel in order of offset)."""
        regions = [region for region in self._loaded().regions if region.kind in ("keys", "values")]
        digest = hashlib.sha256()
        for region in sorted(regions, key=lambda item: (item.channel, item.offset)):
            digest.update(self._channel(region.channel, region.offset, region.bytes).data)
        return digest.hexdigest()

    def close(self, limit_s: float | None = None) -> None:
        """End a run that is under way (see :meth:`stop`) and give the program's buffers back; may be called again."""
        if self.buffers:
            self.stop(CANCEL_S if limit_s is None else limit_s)
        for buffer in self.buffers:
            buffer.freebuffer()
        self.program, self.buffers, self._run = None, [], None

    def __enter__(self) -> Gpt2Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_core(self, program: Program, image: MemoryImage) -> None:
        if program.core.digest != self.core.digest:
            raise VersionMismatch(
                f"the program is for core {program.core.name} (digest {program.core.digest[:16]}), "
                f"the kernel is core {self.core.name} (digest {self.core.digest[:16]})",
                value=program.core.digest,
                expected=self.core.digest,
                hint="Compile the model for this core, or load the program's xclbin.",
            )
        for what, have, fits in (
            ("instructions", len(program.instructions), self.core.instructions),
            ("access descriptors", len(program.descriptors), self.core.descriptors),
        ):
            if have > fits:
                raise BadInput(f"the program has {have} {what}, the core holds {fits}", value=have, expected=fits)
        if len(image.files) != self.core.channels:
            raise BadInput(
                f"the image has {len(image.files)} channel files, the core has {self.core.channels} memory ports",
                value=len(image.files),
                expected=self.core.channels,
            )

    def _channel(self, channel: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        part = self.buffers[channel][offset : offset + size]
        part.invalidate()
        return np.array(part, np.uint8)  # a plain array, not a buffer
