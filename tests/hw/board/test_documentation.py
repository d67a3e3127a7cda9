"""The pages made from the memory map and the instruction set are up to date."""

import dataclasses

import pytest

from hw.board.documentation import isa_page, pages
from hw.gpt2 import isa


@pytest.mark.parametrize("path", list(pages()), ids=lambda path: path.name)
def test_page_is_up_to_date(path):
    assert path.read_text(encoding="utf-8") == pages()[path], "run `python -m hw.board.documentation`"


def test_a_changed_field_changes_the_page(monkeypatch):
    before = isa_page()
    monkeypatch.setitem(isa.FIELDS, "src", isa.FIELDS["src"] - 1)
    assert isa_page() != before


def test_the_assembly_example_of_the_page_assembles():
    line = next(line for line in isa_page().splitlines() if line.startswith("MM "))
    (word,) = isa.assemble(line)
    instruction = isa.Instruction.decode(word)
    assert instruction.text() == line
    assert dataclasses.asdict(instruction)["strips"] == 128
