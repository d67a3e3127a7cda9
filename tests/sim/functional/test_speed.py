"""The speed program of the functional executor: what it counts, its exit code. The bar itself is `make bench`'s."""

from __future__ import annotations

import pytest

from sim.functional import speed


def test_a_rate_is_products_by_seconds() -> None:
    result = {name: float(str(value)) for name, value in speed.measure("64x16", positions=1).items() if name != "core"}
    products = result["positions"] * result["macs_per_position"]
    assert result["macs_per_position"] == 14_680_064
    assert products / result["seconds_best_of_3"] == pytest.approx(result["mac_per_second"], rel=0.01)


@pytest.mark.parametrize(("required", "code"), [("200e6", 0), ("300e6", 1)])
def test_required_rate_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], required: str, code: int
) -> None:
    monkeypatch.setattr(speed, "measure", lambda *_: {"mac_per_second": 250_000_000, "cores": 2})
    assert speed.main(["--require", required]) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"figure: 250 million MAC/s on 2 cores, core 64x16, required {float(required) / 1e6:.0f}"
    assert speed.main(["--require", required, "--json"]) == code
    assert capsys.readouterr().out.splitlines() == ['{"mac_per_second": 250000000, "cores": 2}']
