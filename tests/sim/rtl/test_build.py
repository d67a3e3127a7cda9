"""The kernel's Verilog in the cache: found again, and not kept when sources change under a running process."""

import pytest

from sim.rtl import build
from sim.rtl.build_cache import cache_root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGFLY_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def elaborations(monkeypatch, config):
    """Stands in for the elaboration, which takes seconds; counts its calls."""
    calls = []

    def elaborate(config):
        calls.append(config)
        return build.Export(f"module number{len(calls)}; endmodule", build.kernel_name(config), {})

    monkeypatch.setattr(build, "_elaborate", elaborate)
    return calls


def test_verilog_is_found_again(config, elaborations):
    first = build.export_board(config)
    assert build.export_board(config) == first
    assert len(elaborations) == 1


def test_changed_sources_are_elaborated_anew(config, elaborations, monkeypatch):
    """Twin: a changed source is another recipe."""
    build.export_board(config)
    changed = ["hw/changed.py", "text", *build._sources()]
    monkeypatch.setattr(build, "_sources", lambda: changed)
    monkeypatch.setattr(build, "_SOURCES_AT_IMPORT", changed)
    build.export_board(config)
    assert len(elaborations) == 2


def test_sources_changed_after_import_are_not_kept(config, elaborations, monkeypatch):
    monkeypatch.setattr(build, "_SOURCES_AT_IMPORT", ["hw/old.py", "text"])
    assert build.export_board(config) != build.export_board(config)
    assert not (cache_root() / "builds").exists()


def test_kernel_name_is_an_identifier(config):
    assert build.kernel_name(config) == "ringfly_gpt2_16x4"
