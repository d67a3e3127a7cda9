"""Registers, run state machine and counters of the kernel's control, in Amaranth's simulator.

Each check takes a function that runs a scenario, so that the faults of sim.rtl.fault_list that control checks should
catch are run as twins.
"""

import pytest

from hw.board.control import DRAIN_CYCLES, RESET_CYCLES, Gpt2Control
from hw.board.gpt2_map import IDENTITY, INTERFACE_VERSION, STALL_CAUSES, ErrorCode, RunState, gpt2_register_map
from hw.gpt2.config import core_config
from sim.rtl.fault_list import FAULTS
from sim.rtl.fault_patch import Fault

CONFIG = core_config("16x4")
MAP = gpt2_register_map(CONFIG)
CHECKED = ("position", "prompt_end", "max_new_tokens", "context_limit")  # at start, and so kept in full


def check_registers(run):
    async def scenario(host):
        assert await host.read("identity") == IDENTITY
        assert await host.read("interface_version") == INTERFACE_VERSION
        assert await host.read("config_digest") == int(CONFIG.digest[:16], 16)
        assert await host.read("core_shape") == 16 | 4 << 8 | 4 << 16 | 1 << 24
        assert await host.read("ctrl") == 0b1100
        host.ctx.set(host.core.dump_committed, 77)
        assert await host.read("dump_committed") == 77
        values = {}
        for index, register in enumerate(r for r in MAP if r.access == "rw" and r.name != "ctrl"):
            value = 0x9E3779B97F4A7C15F39CC060 >> index % 17 & (1 << register.bits) - 1
            await host.write(register.name, value)
            values[register.name] = value
        for name, value in values.items():
            bits = len(host.control.core.cfg[name])
            kept = value if name in CHECKED else value & (1 << bits) - 1
            assert await host.read(name) == kept, name
            assert host.ctx.get(host.control.core.cfg[name]) == value & (1 << bits) - 1, name

    run(scenario)


def check_bus(run):
    async def scenario(host):
        for aw_delay, w_delay in ((0, 0), (3, 0), (0, 3), (1, 2)):
            offset = MAP["vocab"].offset
            assert await host.write_word(offset, 100 + aw_delay * 10 + w_delay, aw_delay, w_delay) == 0
            assert await host.read("vocab") == 100 + aw_delay * 10 + w_delay
        before = await host.read("vocab")
        for strobe in (0, 1, 7):
            assert await host.write_word(MAP["vocab"].offset, 5, strobe=strobe) == 2
        assert await host.read("vocab") == before
        assert await host.write_word(MAP["identity"].offset, 5) == 2
        assert await host.write_word(0x3F0, 5) == 2
        assert (await host.read_word(0x3F0))[1] == 2
        assert (await host.read_word(0x00C))[1] == 2
        assert (await host.read_word(0x04C))[1] == 2  # the same 64 bits as tokens_valid
        assert (await host.read_word(0x02C)) == (0, 0)
        for name in ("instructions", "descriptors"):
            assert await host.read_word(MAP.window(name).offset) == (0, 0)
            assert (await host.read_word(MAP.window(name).end))[1] == 2
            assert await host.write_word(MAP.window(name).end, 1) == 2
        # a response that is not taken at once stays
        host.ctx.set(host.bus.araddr, MAP["vocab"].offset)
        host.ctx.set(host.bus.arvalid, 1)
        await host.tick(2)
        host.ctx.set(host.bus.arvalid, 0)
        await host.tick(10)
        assert host.ctx.get(host.bus.rvalid) and host.ctx.get(host.bus.rdata) == before

    run(scenario)


def check_memories(run):
    async def scenario(host):
        ctx, core = host.ctx, host.core
        for name, address, word in (
            ("instructions", core.instr_addr, core.instr_data),
            ("descriptors", core.desc_addr, core.desc_data),
        ):
            window = MAP.window(name)
            for index in (0, 1, window.words - 1):
                for part in range(4):
                    value = index << 16 | part + 1
                    assert await host.write_word(window.offset + 16 * index + 4 * part, value) == 0
            for index in (window.words - 1, 0, 1):
                ctx.set(address, index)
                await host.tick()
                assert ctx.get(word) == sum((index << 16 | part + 1) << 32 * part for part in range(4))
        tokens = MAP.window("tokens")
        for index in (0, 5, CONFIG.context):
            assert await host.write_word(tokens.offset + 4 * index, 1000 + index) == 0
        for index in (5, CONFIG.context, 0):
            assert await host.read_word(tokens.offset + 4 * index) == (1000 + index, 0)
            for address, word in (
                (core.token_addr_core, core.token_data_core),
                (core.token_addr_reader, core.token_data_reader),
            ):
                ctx.set(address, index)
                await host.tick()
                assert ctx.get(word) == 1000 + index

    run(scenario)


def check_tokens(run):
    async def scenario(host):
        ctx, core = host.ctx, host.core
        tokens = MAP.window("tokens")
        await host.start()
        assert await host.read("tokens_valid") == 3
        ctx.set(core.token_write_addr, 3)
        ctx.set(core.token_write_data, 4711)
        await host.pulse(core.token_write)
        assert ctx.get(core.tokens_valid) == 4
        ctx.set(core.token_addr_reader, 3)
        await host.tick()
        assert ctx.get(core.token_data_reader) == 4711
        assert await host.read("tokens_valid") == 4
        assert await host.read_word(tokens.offset + 12) == (4711, 0)
        # while the run lasts the host only reads
        assert await host.write_word(tokens.offset + 12, 1) == 2
        assert await host.write_word(MAP["position"].offset, 1) == 2
        assert await host.write_word(MAP.window("instructions").offset, 1) == 2
        assert await host.read_word(tokens.offset + 12) == (4711, 0)
        await host.pulse(core.finish)
        await host.until_idle()
        assert await host.read("tokens_valid") == 4

    run(scenario)


def check_done_is_not_lost(run):
    async def scenario(host):
        ctx, core = host.ctx, host.core
        await host.start()
        assert ctx.get(core.run) == 1
        assert await host.read("ctrl") == 0
        await host.pulse(core.finish)
        await host.until_idle()
        assert await host.read("ctrl") == 0b1110
        assert await host.read("error") == 0
        await host.write("ctrl", 0)  # no start
        assert await host.read("ctrl") == 0b1110
        # second run: nobody looks between its end and the third start, which clears the done bit
        await host.write("ctrl", 1)
        assert await host.read("ctrl") == 0
        await host.write("ctrl", 1)  # ignored: a run lasts
        await host.pulse(core.finish)
        await host.until_idle()
        await host.write("ctrl", 1)
        assert await host.read("ctrl") == 0
        assert (await host.read("start_count"), await host.read("done_count")) == (3, 2)
        await host.pulse(core.finish)
        await host.until_idle()
        await host.tick(20)
        assert ctx.get(host.control.state) == RunState.IDLE
        assert (await host.read("start_count"), await host.read("done_count")) == (3, 3)

    run(scenario)


def check_counters(run):
    async def scenario(host):
        ctx, core = host.ctx, host.core
        want = dict.fromkeys(STALL_CAUSES, 0) | {"tiles": 0}
        await host.start()
        ctx.set(core.drained, 0)
        for cycle in range(200):  # the first cycles of RUN went by in the write response
            cause = cycle * 7 % len(STALL_CAUSES)
            ctx.set(core.tile, cycle % 3 == 0)
            ctx.set(core.stall, cause)
            if cycle == 1:  # what was before cycle 0 is counted now
                start = {name: ctx.get(host.control._values[n]) for name, n in names().items()}
            want["tiles" if cycle % 3 == 0 else STALL_CAUSES[cause]] += 1
            if cycle == 199:
                ctx.set(core.finish, 1)
            await host.tick()
        ctx.set(core.finish, 0)
        ctx.set(core.tile, 1)  # does not count any more
        await host.tick(11)
        ctx.set(core.drained, 1)
        await host.until_idle()
        want["drain"] += 11 + DRAIN_CYCLES + RESET_CYCLES
        total = 0
        for name, register in names().items():
            got = await host.read(register)
            assert got - start[name] == want[name], name
            total += got
        assert await host.read("cycles") == total
        await host.write("ctrl", 1)
        assert await host.read("cycles") < 20

    run(scenario)


def names():
    return {"tiles": "tiles", **{cause: f"stall_{cause}" for cause in STALL_CAUSES}}


def check_counter_is_not_torn(run):
    async def scenario(host):
        ctx = host.ctx
        await host.start()
        counter = host.control._values["cycles"]
        offset = MAP["cycles"].offset
        for ahead in range(12):
            ctx.set(counter, (7 << 32) - ahead)
            low, _ = await host.read_word(offset)
            await host.read_word(MAP["state"].offset)
            high, _ = await host.read_word(offset + 4)
            now = ctx.get(counter)
            assert 0 < now - (high << 32 | low) < 30, ahead
            high, _ = await host.read_word(offset + 4)  # again, without the low word: as it is
            assert high == ctx.get(counter) >> 32

    run(scenario)


def check_cancel(run):
    async def scenario(host):
        ctx, core, control = host.ctx, host.core, host.control
        await host.write("cancel", 1)  # while idle: nothing
        await host.start()
        await host.tick(10)
        assert await host.read("state") == RunState.RUN
        ctx.set(core.drained, 0)
        await host.write("cancel", 0)
        assert ctx.get(core.run) == 0
        assert await host.read("state") == RunState.DRAIN
        await host.tick(30)
        for _ in range(3):  # not drained for long enough
            ctx.set(core.drained, 1)
            await host.tick(DRAIN_CYCLES - 1)
            ctx.set(core.drained, 0)
            await host.tick()
        assert ctx.get(control.state) == RunState.DRAIN
        assert await host.read("done_count") == 0
        ctx.set(core.drained, 1)
        await host.tick(DRAIN_CYCLES)
        for _ in range(RESET_CYCLES):
            assert ctx.get(control.core_reset) == 1
            await host.tick()
        assert ctx.get(control.core_reset) == 0
        assert ctx.get(control.state) == RunState.IDLE
        assert await host.read("error") == ErrorCode.CANCELLED
        assert await host.read("ctrl") == 0b1110
        assert await host.read("cancel") == 0
        await host.start()
        assert await host.read("error") == ErrorCode.NONE
        await host.pulse(core.finish)
        await host.write("cancel", 1)  # too late
        await host.until_idle()
        assert await host.read("error") == ErrorCode.NONE

    run(scenario)


def check_errors(run):
    async def scenario(host):
        ctx, core = host.ctx, host.core
        await host.start()
        ctx.set(core.fail_code, ErrorCode.NAN_LOGITS)
        ctx.set(core.fail_info, 12345)
        await host.pulse(core.fail, core.finish)
        ctx.set(core.drained, 0)
        ctx.set(core.fail_code, ErrorCode.READ)
        ctx.set(core.fail_info, 2)
        await host.pulse(core.fail)
        ctx.set(core.drained, 1)
        await host.until_idle()
        assert await host.read("error") == ErrorCode.NAN_LOGITS
        assert await host.read("error_info") == 12345
        await host.start()
        assert (await host.read("error"), await host.read("error_info")) == (0, 0)
        await host.pulse(core.finish)
        ctx.set(core.drained, 0)
        ctx.set(core.fail_code, ErrorCode.WRITE)
        await host.pulse(core.fail)  # a response that comes while the run ends still counts
        ctx.set(core.drained, 1)
        await host.until_idle()
        assert (await host.read("error"), await host.read("error_info")) == (ErrorCode.WRITE, 2)

    run(scenario)


def check_start_range(run):
    good = [{}, {"position": 2}, {"prompt_end": 64, "position": 63}, {"context_limit": 1024}]
    bad = [
        {"position": 64, "prompt_end": 65},
        {"position": 3},
        {"prompt_end": 65},
        {"max_new_tokens": 0},
        {"context_limit": 1025},
        {"position": 1 << 16, "prompt_end": 3},
        {"prompt_end": (1 << 16) + 3},
    ]

    async def scenario(host):
        for done, values in enumerate(good + bad, 1):
            await host.start(**values)
            if values in good:
                assert await host.read("state") == RunState.RUN, values
                await host.pulse(host.core.finish)
            await host.until_idle()
            assert await host.read("done_count") == done
            error, info = await host.read("error"), await host.read("error_info")
            if values in good:
                assert (error, info) == (ErrorCode.NONE, 0), values
            else:
                assert (error, info) == (ErrorCode.START, values.get("position", 0)), values
            cycles = await host.read("cycles")
            if values in bad:
                assert cycles == RESET_CYCLES == await host.read("stall_drain")

    run(scenario)


CHECKS = (
    check_registers,
    check_bus,
    check_memories,
    check_tokens,
    check_done_is_not_lost,
    check_counters,
    check_counter_is_not_torn,
    check_cancel,
    check_errors,
    check_start_range,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_control(control_run, check):
    check(lambda scenario: control_run(Gpt2Control(CONFIG), scenario))


# only pysim can set a counter to where its high word changes
TORN = Fault(
    "torn_counter",
    "hw.board.control",
    "m.d.sync += [result.eq(high_kept), kept_pair.eq(0)]",
    "m.d.sync += [result.eq(high), kept_pair.eq(0)]",
    "the high word of a counter is not the one that stood there when the low word was read",
    "control",
)


@pytest.mark.parametrize(
    "fault", [TORN, *(f for f in FAULTS if f.module == "hw.board.control")], ids=lambda fault: fault.name
)
def test_faulty_control_is_noticed(control_run, mutant, fault):
    """Twin of all checks: each fault of control must fail one of them, each equivalent change none."""
    make = mutant(fault.module, fault.before, fault.after)["Gpt2Control"]
    noticed = []
    for check in CHECKS:
        try:
            check(lambda scenario: control_run(make(CONFIG), scenario))
        except AssertionError:
            noticed.append(check.__name__)
    print(fault.name, noticed)
    assert bool(noticed) == (not fault.equivalent)
