"""The speed program: its exit code follows the required figure."""

import pytest

from sim.rtl import speed


@pytest.mark.parametrize(("required", "code"), [("0", 0), ("100e3", 0), ("300e3", 1)])
def test_required_speed_is_the_exit_code(monkeypatch, capsys, required, code):
    monkeypatch.setattr(speed, "build_board", lambda config: config)
    monkeypatch.setattr(speed, "measure", lambda built, cycles: {"core": built.name, "cycles_per_s": 200_000})
    assert speed.main(["--require", required]) == code
    bar = f", required {float(required):,.0f}" if float(required) else ""
    assert capsys.readouterr().out.splitlines()[-1] == f"figure: 200,000 cycles/s, core 16x4{bar}"
    assert speed.main(["--require", required, "--json"]) == code
    assert capsys.readouterr().out.splitlines() == ['{"core": "16x4", "cycles_per_s": 200000}']
