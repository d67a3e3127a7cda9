"""The speed program: its exit code follows the required figures."""

import json

import pytest

from sim.rtl import speed


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--require", "0"], 0),
        (["--require", "100e3"], 0),
        (["--require", "300e3"], 1),
        (["--build-limit-s", "60"], 0),
        (["--build-limit-s", "0"], 1),
    ],
)
def test_required_figures_are_the_exit_code(monkeypatch, capsys, arguments, code):
    asked = []
    monkeypatch.setattr(speed, "build_board", lambda config, flat: asked.append(flat) or config)
    monkeypatch.setattr(speed, "measure", lambda built, cycles: {"core": built.name, "cycles_per_s": 200_000})
    assert speed.main(arguments) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith("figure: 200,000 cycles/s, core 16x4")
    assert speed.main([*arguments, "--flat", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["flat"] is True
    assert asked == [False, True]
