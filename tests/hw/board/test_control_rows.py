"""Control of a kernel with several rows against docs/rows.md: registers, token windows, checks of a start; and that a
kernel with one row has nothing of it."""

import itertools
import re

import pytest
from amaranth.back import rtlil

from hw.board.control import Gpt2Control
from hw.board.core_interface import core_members, run_config_layout
from hw.board.gpt2_map import ErrorCode, Flags, RunState, gpt2_register_map, row_register
from hw.gpt2.config import core_config

MANY = [core_config("16x4", rows) for rows in (2, 4)]
OF_A_ROW = (  # docs/rows.md, section 6, in this order; those of the sampling have 64 bits and stand by themselves
    *("position", "prompt_end", "max_new_tokens", "stop_count", "stop_0", "stop_1", "stop_2", "stop_3"),
    *("key_base", "value_base", "logits_base"),
)
SAMPLING = ("seed", "sampling")


def check_row_registers(config, run):
    async def scenario(host):
        kept = {}
        names = ["batch_rows", *(row_register(name, r) for r in range(config.rows) for name in (*OF_A_ROW, *SAMPLING))]
        for index, name in enumerate(names):
            bits = host.map[name].bits
            value = 0x9E3779B97F4A7C15F39CC060 >> index % 17 & (1 << bits) - 1
            await host.write(name, value)
            stored = (1 << (32 if name.startswith(CHECKED) else len(host.core.cfg[name]))) - 1
            kept[name] = value & stored
        for name, value in kept.items():
            assert await host.read(name) == value, name
            assert host.ctx.get(host.core.cfg[name]) == value & (1 << len(host.core.cfg[name])) - 1, name
        assert await host.read("core_shape") == 16 | 4 << 8 | 4 << 16 | config.rows << 24

    run(scenario)


CHECKED = ("position", "prompt_end", "max_new_tokens")


def check_windows(config, run):
    """Each row's tokens: of the host, of both readers of the core, and what the core appends."""
    rows, places = range(config.rows), (0, 5, config.context)

    def token(r, index):
        return 10_000 * (r + 1) + index

    async def scenario(host):
        ctx, core = host.ctx, host.core
        windows = [host.map.window(row_register("tokens", r)) for r in rows]
        for r, index in itertools.product(rows, places):
            assert await host.write_word(windows[r].offset + 4 * index, token(r, index)) == 0
        for index, r in itertools.product(places, rows):
            assert await host.read_word(windows[r].offset + 4 * index) == (token(r, index), 0)
        for window in windows:
            assert await host.write_word(window.end, 1) == 2
            assert (await host.read_word(window.end))[1] == 2
        readers = (
            (core.token_row_core, core.token_addr_core, core.token_data_core),
            (core.token_row_reader, core.token_addr_reader, core.token_data_reader),
        )
        asked = [(r, index) for index in places for r in (*rows, *reversed(rows))]
        for row, address, word in readers:  # another row and place each cycle
            before = None
            for r, index in asked:
                ctx.set(row, r)
                ctx.set(address, index)
                if before is not None:
                    assert ctx.get(word) == token(*before)
                await host.tick()
                before = (r, index)
        await host.start(flags=Flags.BATCH, batch_rows=1, **{row_register("prompt_end", r): 4 + r for r in rows})
        for r in reversed(rows):
            ctx.set(core.token_write_row, r)
            ctx.set(core.token_write_addr, 4 + r)
            ctx.set(core.token_write_data, 4000 + r)
            await host.pulse(core.token_write)
            valid = [await host.read(row_register("tokens_valid", other)) for other in rows]
            assert valid == [5 + other if other >= r else 4 + other for other in rows]
        for r in rows:
            assert await host.read_word(windows[r].offset + 4 * (4 + r)) == (4000 + r, 0)
            assert await host.write_word(windows[r].offset, 1) == 2, "a run lasts"
            assert await host.read_word(windows[r].offset + 20) == (token(r, 5) if r != 1 else 4001, 0)
        assert ctx.get(core.tokens_valid) == 5
        await host.pulse(core.finish)
        await host.until_idle()

    run(scenario)


FINE = {"position": 1, "prompt_end": 4, "max_new_tokens": 2}
WRONG = (  # and the position that is told
    {"position": 64, "prompt_end": 65},
    {"position": 7, "prompt_end": 7},
    {"position": 9, "prompt_end": 65},
    {"position": 11, "prompt_end": 12, "max_new_tokens": 0},
    {"position": (1 << 16) + 1},
)


def starts(config):
    """Registers of starts, and None or the position that the error tells (docs/rows.md section 2)."""
    fine = {row_register(name, r): value for r in range(config.rows) for name, value in FINE.items()}
    batch = {**fine, "flags": Flags.BATCH, "batch_rows": (1 << config.rows) - 1}
    yield batch, None
    yield batch | {"batch_rows": 0, "position": 3}, 3
    yield batch | {"batch_rows": 1 << config.rows, "position": 3}, 3  # a row that is not there
    yield batch | {"context_limit": config.context + 1}, 1
    for r, wrong in itertools.product(range(config.rows), WRONG):
        of_row = {row_register(name, r): value for name, value in wrong.items()}
        alone = (1 << r) & ((1 << config.rows) - 1)
        told = wrong["position"]
        yield batch | of_row, told
        yield batch | of_row | {"batch_rows": alone}, told
        if config.rows > 1:
            yield batch | of_row | {"batch_rows": ~alone & ((1 << config.rows) - 1)}, None
        sequence = batch | of_row | {"flags": Flags.WRITE_LOGITS}
        yield sequence, None if r else told
        yield sequence | {"batch_rows": 0}, None if r else told
    last = config.rows - 1
    both = {row_register("position", last): 20, row_register("prompt_end", last): 20}
    yield batch | both | {"position": 30, "prompt_end": 30}, 30
    yield batch | both | {"position": 30, "prompt_end": 30, "batch_rows": 1 << last}, 20


def check_starts(config, run):
    async def scenario(host):
        known: dict[str, int] = {}
        for number, (registers, told) in enumerate(starts(config), 1):
            wanted = {"context_limit": 64, **registers}
            for name, value in wanted.items():
                if known.get(name) != value:
                    await host.write(name, value)
            known = wanted
            host.ctx.set(host.core.drained, 1)
            await host.write("ctrl", 1)
            assert (host.ctx.get(host.control.state) == RunState.RUN) == (told is None), registers
            await host.pulse(host.core.finish)
            await host.until_idle()
            error = ErrorCode.NONE if told is None else ErrorCode.START
            assert (await host.read("error"), await host.read("error_info")) == (error, told or 0), registers
            for r in range(config.rows):
                valid = await host.read(row_register("tokens_valid", r))
                assert valid == registers[row_register("prompt_end", r)] & 0xFFFF, f"tokens_valid of row {r}"
            assert await host.read("done_count") == number

    run(scenario)


CHECKS = (check_row_registers, check_windows, check_starts)


@pytest.mark.parametrize("config", MANY, ids=lambda config: config.name)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_rows_of_control(control_run, config, check):
    check(config, lambda scenario: control_run(Gpt2Control(config), scenario))


FAULTY = {
    "all rows checked": ("wrong[r].eq(taking_part[r] & ~legal)", "wrong[r].eq(~legal)"),
    "highest row told": ("for r in reversed(rows):", "for r in rows:"),
    "a batch of nobody": ("& (taking_part != 0)\n", ""),
    "row 0 alone checked": ('Mux(batch, registers["batch_rows"], 1)', "Const(1, config.rows)"),
    "prompt of row 0": ('eq(registers[row_register("prompt_end", r)]) for r', 'eq(registers["prompt_end"]) for r'),
    "every row's tokens grow": (
        "with m.If(core.token_write & (core.token_write_row == r)):\n                m.d.sync",
        "with m.If(core.token_write):\n                m.d.sync",
    ),
    "every row's window written": (
        "with m.If(core.token_write & (core.token_write_row == r)):\n                m.d.comb",
        "with m.If(core.token_write):\n                m.d.comb",
    ),
    "row a cycle early": ("for memory in tokens])[row_core]", "for memory in tokens])[core.token_row_core]"),
    "the reader's row as the core's": ("for memory in tokens])[row_reader]", "for memory in tokens])[row_core]"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_rows_of_control_are_noticed(control_run, mutant, name):
    make, noticed = mutant("hw.board.control", *FAULTY[name])["Gpt2Control"], []
    for check in CHECKS:
        try:
            check(MANY[1], lambda scenario: control_run(make(MANY[1]), scenario))
        except AssertionError:
            noticed.append(check.__name__)
    assert noticed


def test_places_are_those_of_the_contract():
    for config in MANY:
        table = gpt2_register_map(config)
        assert table.size == 0x20000 and table["batch_rows"].offset == 0x1A4
        for r in range(1, config.rows):
            first = 0x600 + 0x80 * (r - 1)
            assert [table[f"{name}_{r}"].offset for name in OF_A_ROW] == [first + 4 * i for i in range(len(OF_A_ROW))]
            assert table[f"tokens_valid_{r}"].access == "r"
            window = table.window(f"tokens_{r}")
            assert (window.offset, window.words) == (0x10000 + 0x4000 * (r - 1), config.context + 1)


@pytest.mark.parametrize("name", ["16x4", "64x16"])
def test_one_row_has_nothing_of_it(name):
    """No register, window, address bit or flip-flop of a second row; with two rows, the twin, all are there."""

    def of_rows(config):
        table = gpt2_register_map(config)
        names = [register.name for register in table] + [window.name for window in table.windows]
        names += [field for field, _ in run_config_layout(config)]
        found = {each for each in names if each == "batch_rows" or _of_another_row(each)}
        wide = {
            member for member, port in core_members(config).items() if member.startswith("token_") and "row" in member
            and port.shape != range(1)
        }  # fmt: skip
        control = Gpt2Control(config)
        text = rtlil.convert(control)
        kept = {wire for wire in re.findall(r"^  wire .*\\(\w+)$", text, re.M) if _of_another_row(wire)}
        return table.size, len(control.s_axi_control.araddr), found, wide, kept

    one, two = core_config(name), core_config(name, 2)
    assert of_rows(one) == (0x10000, 16, set(), set(), set())
    size, address_bits, found, wide, kept = of_rows(two)
    assert (size, address_bits) == (0x20000, 17)
    assert {"batch_rows", "position_1", "tokens_1", "tokens_valid_1", "stop_3_1", "seed_1"} <= found
    assert wide == {"token_row_core", "token_row_reader", "token_write_row"}
    assert {"position_1", "tokens_valid_1"} <= kept


def _of_another_row(name):
    """Whether a name is one of OF_A_ROW, SAMPLING, tokens or tokens_valid with a row behind it."""
    stem, _, row = name.rpartition("_")
    return row in ("1", "2", "3") and stem in (*OF_A_ROW, *SAMPLING, "tokens", "tokens_valid")
