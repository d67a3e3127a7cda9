"""Rings that are broken on purpose, functional and on gateware: a clear error, boards released, and the next run works.

Fault-free runs stand beside each of them: they are the twins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from host.driver.sim_device import SimU280Device
from host.errors import RingFault
from host.runtime.appliance import Appliance, open_appliance
from host.runtime.board_models import BoardModels, open_boards
from host.runtime.program_folders import Programs, compile_programs
from hw.gpt2.config import CORE_CONFIGS

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
CORE = CORE_CONFIGS["16x4"]
BOARDS, PROMPT, TOKENS, LIMIT_S = 3, [5, 17, 3], 3, 300.0
Opened = tuple[Appliance, BoardModels, list[int]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return compile_programs(TINY, CORE, tmp_path_factory.mktemp("ring") / "ring", BOARDS, context=32)


def _run(appliance: Appliance) -> list[int]:
    appliance.start(PROMPT, TOKENS)
    return list(appliance.wait(LIMIT_S).tokens)


def _opened(executor: str, programs: Programs) -> Iterator[Opened]:
    with open_boards(executor, CORE, BOARDS) as models, open_appliance(models.boards, CORE) as appliance:
        appliance.load(programs)
        devices = [kernel.device for kernel in appliance.kernels]
        yield appliance, models, _run(appliance)
    assert not set(devices) & set(SimU280Device._open)


@pytest.fixture(scope="module", params=["functional", "rtl"])
def ring(request: pytest.FixtureRequest, programs: Programs) -> Iterator[Opened]:
    """A ring with its programs, and the tokens of a good run."""
    yield from _opened(request.param, programs)


@pytest.fixture(scope="module")
def gateware(programs: Programs) -> Iterator[Opened]:
    yield from _opened("rtl", programs)


def _fails(appliance: Appliance) -> RingFault:
    with pytest.raises(RingFault) as caught:
        _run(appliance)
    assert caught.value.exit_code == 3
    print(f"{caught.value.kind}: {caught.value}")
    return caught.value


def test_boards_in_the_wrong_order(ring: Opened) -> None:
    appliance, _, good = ring
    for board, place in ((1, 2), (2, 1)):
        appliance.kernels[board].set("ring_board", place)
    error = _fails(appliance)
    assert error.kind == "ring_order" and " answers board " in error.message and "port 1 (right)" in str(error)
    for board in (1, 2):
        appliance.kernels[board].set("ring_board", board)
    assert _run(appliance) == good


def test_a_program_of_another_plan(ring: Opened) -> None:
    appliance, _, good = ring
    key = appliance.kernels[2].get("ring_key")
    appliance.kernels[2].set("ring_key", key ^ 1)
    error = _fails(appliance)
    assert error.kind == "ring_program" and "board 2 (sim-u280-2) port" in error.message
    appliance.kernels[2].set("ring_key", key)
    assert _run(appliance) == good


def test_a_board_that_does_not_begin(ring: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    appliance, _, good = ring
    with monkeypatch.context() as patch:
        patch.setattr(appliance.kernels[1], "launch", lambda: None)
        error = _fails(appliance)
    assert error.kind == "no_hello" and "board 1 (sim-u280-1) port" in error.message
    assert _run(appliance) == good


@pytest.mark.parametrize("drops_channel", [True, False])
@pytest.mark.parametrize(("board", "port"), [(1, 1), (0, 0)])
def test_a_cable_that_is_cut_in_a_run(board: int, port: int, drops_channel: bool, gateware: Opened) -> None:
    appliance, models, good = gateware
    ring = models.boards[0].ring  # type: ignore[attr-defined]
    appliance.start(PROMPT, TOKENS)
    assert appliance.running()
    ring.cut(board, port, drops_channel=drops_channel)
    with pytest.raises(RingFault) as caught:
        appliance.wait(LIMIT_S)
    left = board if port else (board - 1) % BOARDS
    right = (left + 1) % BOARDS
    ends = f"board {left} (sim-u280-{left}) port 1 (right) and board {right} (sim-u280-{right}) port 0 (left)"
    print(caught.value)
    assert caught.value.kind == "link_down" and f"the cable between {ends} is dead" in caught.value.message
    assert not any(kernel.running() for kernel in appliance.kernels)
    error = _fails(appliance)  # still cut
    assert error.kind == "link_down" and f"the cable between {ends} is dead" in error.message
    ring.mend(board, port)
    assert _run(appliance) == good
