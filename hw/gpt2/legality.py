"""Checks one board's program against the rules of docs/core.md, section 5, and docs/ring.md, section 3.

The numbers in the messages are those of the rules, which count on from one page to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hw.board.core_interface import run_config_layout
from hw.gpt2.access import derive_access
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, IsaError, Op, Params, Path
from hw.gpt2.ring_rules import ring_violations
from hw.gpt2.step_state import StepState

__all__ = ["check_program"]

_MAX_STRIPS = 1 << 16  # the tag's strip index has 16 bits


def check_program(instructions: Sequence[Instruction], registers: Mapping[str, int], config: CoreConfig) -> list[str]:
    """All violations of a program, one readable line each; an empty list means that it is legal.

    ``registers`` are the program's (``hw.board.gpt2_map``, by name); missing ones count as 0. A wrong program never
    raises. What depends on the position is checked for the worst one, ``context_limit - 1``.
    """
    return _Checker(instructions, registers, config).run()


class _Checker:
    def __init__(self, instructions: Sequence[Instruction], registers: Mapping[str, int], config: CoreConfig) -> None:
        self.instructions = tuple(instructions)
        self.registers = {name: int(value) for name, value in registers.items()}
        self.config = config
        self.found: list[str] = []

    def register(self, name: str) -> int:
        return self.registers.get(name, 0)

    def say(self, index: int | None, rule: str, text: str) -> None:
        where = "program" if index is None else f"instruction {index} ({self.instructions[index].op.name})"
        line = f"{where}: {rule}: {text}"
        if line not in self.found:
            self.found.append(line)

    def run(self) -> list[str]:
        loops = self._structure()
        for index, instruction in enumerate(self.instructions):
            self._encoding(index, instruction)
            if instruction.op in (Op.MM, Op.EMB):
                self._product(index, instruction)
            elif instruction.op in (Op.SC, Op.AV):
                self._heads(index, instruction)
        self._registers()
        self._attention(loops)
        self._logits(loops)
        self._steps(loops)
        order = list(self._order(loops))
        for index, rule, text in ring_violations(self.instructions, order, loops, self.registers, self.config):
            self.say(index, rule, text)
        return self.found

    def _structure(self) -> dict[int, int]:
        """LOOP and NEXT; returns the index of its LOOP for every instruction in one."""
        loops: dict[int, int] = {}
        end, start = 0, 0
        count = len(self.instructions)
        if not 1 <= count <= self.config.instructions:
            self.say(None, "rule 1", f"{count} instructions, the core holds 1 to {self.config.instructions}")
        if not count or self.instructions[-1].op != Op.NEXT:
            self.say(None, "section 2", "the last instruction is not NEXT")
        for index, instruction in enumerate(self.instructions):
            if index < end:
                loops[index] = start
                if instruction.op in (Op.LOOP, Op.NEXT):
                    self.say(index, "section 5", f"stands in the loop of instruction {start}")
            if instruction.op == Op.NEXT and index != count - 1:
                self.say(index, "section 2", f"NEXT is not the last of {count} instructions")
            if instruction.op == Op.LOOP and index >= end:
                start, end = index, index + 1 + instruction.words
                if instruction.strips < 1 or instruction.words < 1 or end >= count:
                    self.say(
                        index,
                        "section 5",
                        f"count {instruction.strips} and length {instruction.words} must be >= 1 and end before NEXT",
                    )
        try:
            descriptors = len(derive_access(self.instructions, self.config))
            if descriptors > self.config.descriptors:
                self.say(None, "rule 1", f"{descriptors} access descriptors, the core holds {self.config.descriptors}")
        except IsaError as error:
            self.say(None, "section 5", f"no access program: {error}")
        return loops

    def _encoding(self, index: int, instruction: Instruction) -> None:
        try:
            instruction.encode()
        except IsaError as error:
            self.say(index, "rule 1", str(error))
        fixed = instruction.op in (Op.LOOP, Op.NEXT, Op.SC, Op.AV, Op.GATHER)
        if instruction.decode_only and (fixed or instruction.commit in (Commit.KEYS, Commit.VALUES)):
            self.say(index, "section 2", "must run in prompt steps too, but is decode_only")

    def _product(self, index: int, mm: Instruction) -> None:
        c = self.config
        if mm.strips < 1 or mm.words < 1 or mm.group < 1:
            self.say(
                index, "rule 1", f"strips {mm.strips}, words {mm.words} and group {mm.group} must all be 1 or more"
            )
            return
        if mm.acc + mm.group > c.acc_depth:
            self.say(index, "rule 1", f"acc {mm.acc} + group {mm.group} > acc_depth {c.acc_depth}")
        if not (mm.first and mm.last) and mm.acc + mm.strips > c.acc_depth:
            self.say(index, "rule 1", f"acc {mm.acc} + strips {mm.strips} > acc_depth {c.acc_depth} in a split product")
        if not mm.last and mm.group < mm.strips:
            self.say(index, "section 3", f"a run before the last needs group {mm.group} >= strips {mm.strips}")
        if mm.op == Op.MM:
            if not 1 <= mm.tail <= c.tile:
                self.say(index, "rule 1", f"tail {mm.tail} must be 1 to {c.tile}")
            self._pairs(index, mm)
            if mm.src + mm.words > c.act_words:
                self.say(index, "rule 1", f"src {mm.src} + words {mm.words} > act_words {c.act_words}")
        else:
            embed = self.register("embed_strips")
            if mm.words != 1 or mm.params != Params.NONE or mm.path == Path.LOGITS or mm.commit != Commit.NONE:
                self.say(index, "section 3", "EMB has one word, no params, no commit, and a path other than LOGITS")
            if mm.src + mm.strips > embed:
                self.say(index, "rule 1", f"src {mm.src} + strips {mm.strips} > embed_strips {embed}")
        if mm.params != Params.NONE or (mm.op == Op.MM and c.has_int8):
            live = self._live_params(mm)
            if live > c.param_depth:
                self.say(index, "rule 1", f"{live} strips of parameters in use > param_depth {c.param_depth}")
        if not mm.last:
            if mm.stats or mm.commit != Commit.NONE:
                self.say(index, "section 3", "stats and commit belong to the run with last")
            return
        self._destination(index, mm)
        width = self.register("width")
        columns = width if mm.send else mm.strips * c.lanes  # what is sent is a slice: rule 9
        if mm.stats and (mm.path == Path.LOGITS or not 1 <= width <= columns):
            self.say(index, "section 3", f"stats need all of width {width}: {mm.strips * c.lanes} fp16 results at most")
        if mm.path == Path.RESIDUAL and mm.params == Params.NORM:
            self.say(index, "section 3", "RESIDUAL takes params NONE or BIAS")
        if (mm.commit == Commit.TOKEN) > (mm.path == Path.LOGITS):
            self.say(index, "rule 5", "commit TOKEN needs path LOGITS")

    def _pairs(self, index: int, mm: Instruction) -> None:
        """A row of int8 weights serves two strips."""
        unit = self.config.mm_strips
        odd = [
            f"{name} {value}"
            for name in ("strips", "group", "dst", "acc")
            if (value := getattr(mm, name)) % unit and not (name == "dst" and not mm.last)
        ]
        if odd:
            self.say(index, "rule 1", f"{', '.join(odd)}: must be even, a row of int8 weights serves {unit} strips")

    def _live_params(self, mm: Instruction) -> int:
        """Most strips of parameters in use at once: from the first strip that is open to the end of the last block."""
        block = self.config.param_strips
        if not (mm.first and mm.last):
            return -(-mm.strips // block) * block
        most = 0
        for start in range(0, mm.strips, mm.group):
            last = min(start + mm.group, mm.strips) - 1
            most = max(most, (last // block + 1) * block - start)
        return most

    def _destination(self, index: int, mm: Instruction) -> None:
        c = self.config
        if mm.path == Path.LOGITS:
            return
        bounds = (0, c.new_key_base, c.new_value_base, c.strip_addresses)
        end = mm.dst + mm.strips
        buffer = next((b for b in range(3) if bounds[b] <= mm.dst and end <= bounds[b + 1]), None)
        if buffer is None:
            self.say(
                index, "rule 2", f"dst {mm.dst} to {end - 1} is not inside one of the buffers that end at {bounds[1:]}"
            )
            return
        commit = (Commit.NONE, Commit.KEYS, Commit.VALUES)[buffer]
        if mm.commit != commit:
            self.say(index, "rule 2", f"dst {mm.dst} needs commit {commit.name}, got {Commit(mm.commit).name}")
        if mm.path == Path.RESIDUAL and end > c.residual_strips:
            self.say(index, "rule 1", f"RESIDUAL strips end at {end} > residual_strips {c.residual_strips}")
        s = c.strips_per_word
        if mm.op == Op.MM and buffer == 0 and mm.dst < (mm.src + mm.words) * s and mm.src * s < end:
            self.say(
                index,
                "rule 2",
                f"dst strips {mm.dst} to {end - 1} overlap its source strips {mm.src * s} to "
                f"{(mm.src + mm.words) * s - 1}",
            )
        if buffer:
            per_head = self.register("key_words") * s if buffer == 1 else self.register("value_strips")
            wanted = -(-self.register("heads") * per_head // c.mm_strips) * c.mm_strips
            if mm.dst != bounds[buffer] or mm.strips != wanted:
                self.say(
                    index,
                    "section 3",
                    f"commit {commit.name} needs dst {bounds[buffer]} and strips {wanted} (all heads), "
                    f"got {mm.dst} and {mm.strips}",
                )

    def _heads(self, index: int, at: Instruction) -> None:
        c = self.config
        heads, key_words = self.register("heads"), self.register("key_words")
        blocks = -(-self.register("context_limit") // c.tile)
        if at.heads < 1 or at.head0 + at.heads > heads:
            self.say(index, "rule 1", f"head0 {at.head0} + heads {at.heads} must be within heads {heads}, at least one")
            return
        end = at.prob + (at.heads - 1) * at.prob_stride + blocks
        if end > c.prob_words or (at.heads > 1 and at.prob_stride < blocks):
            self.say(
                index,
                "rule 1",
                f"prob {at.prob} with stride {at.prob_stride} for {at.heads} heads of {blocks} words ends at {end}, "
                f"prob_words is {c.prob_words}; stride must be >= {blocks}",
            )
        accumulators = 1 if at.op == Op.SC else self.register("value_strips")
        if at.acc + accumulators > c.acc_depth:
            self.say(index, "rule 1", f"acc {at.acc} + {accumulators} > acc_depth {c.acc_depth}")
        if at.op == Op.SC:
            if not 1 <= at.tail <= c.tile:
                self.say(index, "rule 1", f"tail {at.tail} must be 1 to {c.tile}")
            if at.src + at.heads * key_words > c.act_words:
                self.say(index, "rule 1", f"q words end at {at.src + at.heads * key_words} > act_words {c.act_words}")
        elif at.dst + at.heads * self.register("value_strips") > c.new_key_base:
            end = at.dst + at.heads * self.register("value_strips")
            self.say(index, "rule 2", f"dst strips end at {end}, activation memory at {c.new_key_base}")

    def _registers(self) -> None:
        c, get = self.config, self.register
        for what, value, low, high in (
            ("context_limit", get("context_limit"), 1, c.context),
            ("width", get("width"), 0, (1 << 13) - 1),
            ("heads x key_words", get("heads") * get("key_words"), 0, c.new_key_words),
            ("heads x value_strips", get("heads") * get("value_strips"), 0, c.new_value_strips),
        ):
            if not low <= value <= high:
                self.say(None, "rule 1", f"{what} is {value}, must be {low} to {high}")
        for name, field in run_config_layout(c):
            if not 0 <= get(name) < 1 << field.width:
                self.say(None, "rule 1", f"register {name} is {get(name)}, the core keeps {field.width} bits")

    def _attention(self, loops: Mapping[int, int]) -> None:
        """Rule 4, in the order of the program."""
        parts = [
            (index, i)
            for index, i in enumerate(self.instructions)
            if i.op in (Op.SC, Op.AV) or (i.op == Op.MM and i.commit in (Commit.KEYS, Commit.VALUES))
        ]
        if not parts:
            return
        homes = {loops.get(index) for index, _ in parts}
        for index, _ in parts:
            if index not in loops:
                self.say(index, "rule 4", "stands outside a loop")
        if len(homes) > 1:
            self.say(None, "rule 4", f"commits and attention stand in several loops: at {sorted(homes, key=str)}")
        layers = self.register("layers")
        for home in homes:
            if home is not None and self.instructions[home].strips != layers:
                self.say(home, "rule 4", f"repeats {self.instructions[home].strips} times, register layers is {layers}")
        commits = [i.commit for _, i in parts if i.op == Op.MM]
        if commits != [Commit.KEYS, Commit.VALUES]:
            names = ", ".join(Commit(commit).name for commit in commits) or "none"
            self.say(None, "rule 4", f"commits are {names}; must be one KEYS, then one VALUES")
        if self.register("key_words") < 1 or self.register("value_strips") < 1:
            self.say(None, "rule 1", "key_words and value_strips must be 1 or more with attention")

    def _logits(self, loops: Mapping[int, int]) -> None:
        """Rule 5 and section 6."""
        c = self.config
        products = [
            (n, i) for n, i in enumerate(self.instructions) if i.op == Op.MM and i.last and i.path == Path.LOGITS
        ]
        if not products:
            self.say(None, "rule 5", "no product has path LOGITS, so no step decides on a token")
            return
        strips = 0
        for index, mm in products:
            if index in loops:
                self.say(index, "rule 5", "LOGITS in a loop: one step would decide several times")
            if not mm.decode_only:
                self.say(index, "rule 5", "LOGITS must be decode_only")
            if mm.dst != strips:
                self.say(index, "section 6", f"strips of the logits go on at {strips}, dst is {mm.dst}")
            strips = mm.dst + mm.strips
            if (mm.commit == Commit.TOKEN) != (index == products[-1][0]):
                self.say(index, "rule 5", "exactly the last LOGITS product has commit TOKEN")
            if mm.commit == Commit.TOKEN and index != len(self.instructions) - 2:
                self.say(index, "rule 5", "nothing but NEXT may follow commit TOKEN")
        if strips > _MAX_STRIPS:
            self.say(None, "section 6", f"the logits have {strips} strips, the core counts to {_MAX_STRIPS}")
        vocab, limit = self.register("vocab"), self.register("logits_rows") * c.channels * c.port_bytes // 4
        if not 1 <= vocab <= strips * c.lanes:
            self.say(None, "section 6", f"vocab {vocab} must be 1 to {strips * c.lanes}, the columns of the logits")
        if strips * c.lanes > limit:
            self.say(None, "section 6", f"{strips * c.lanes} logits do not fit logits_rows: room for {limit}")

    def _steps(self, loops: Mapping[int, int]) -> None:
        """Rules 3, 4 and 6: what one decode step and one prompt step read and write, in order."""
        for prompt in (False, True):
            state = StepState(self.config, self.registers)
            kind = " (in prompt steps)" if prompt else ""
            decode_lines = set(self.found)
            for index in self._order(loops):
                instruction = self.instructions[index]
                if instruction.op == Op.LOOP:
                    state.begin_layer()
                elif instruction.op != Op.NEXT and not (prompt and instruction.decode_only):
                    for rule, text in state.execute(instruction):
                        line = f"instruction {index} ({instruction.op.name}): {rule}: {text}"
                        if line not in decode_lines:
                            self.say(index, rule, text + kind)
            for rule, text in state.at_end():
                if f"program: {rule}: {text}" not in decode_lines:
                    self.say(None, rule, text + kind)

    def _order(self, loops: Mapping[int, int]) -> Iterator[int]:
        """Instructions as they are executed, each loop at most twice; LOOP itself before each time."""
        index = 0
        while index < len(self.instructions):
            instruction = self.instructions[index]
            if instruction.op == Op.LOOP:
                for _ in range(min(instruction.strips, 2)):
                    yield from range(index, min(index + 1 + instruction.words, len(self.instructions)))
                index += instruction.words
            elif instruction.op != Op.NEXT:
                yield index
            index += 1
