"""Seeded faults of a core with int8 weights: two results a tile, their queue, their scales (docs/int8.md)."""

from __future__ import annotations

from sim.rtl.fault_patch import Fault

__all__ = ["INT8_FAULTS"]

_INT8 = (("weights", "int8"),)

INT8_FAULTS = (
    Fault(
        "odd_product_in_the_even_one",
        "hw.numerics.dot_dual",
        "upper = Mux(apart, 0, product[18:22])",
        "upper = product[18:22]",
        "low bits of the odd strip's product count as high bits of the even strip's",
        "programs",
        _INT8,
    ),
    Fault(
        "odd_sign_for_both",
        "hw.numerics.dot_dual",
        'registered(m, a[15] ^ Mux(self.int8, b[7], b[15]), f"sign{i}")',
        'registered(m, a[15] ^ b[15], f"sign{i}")',
        "the even strip's weights take the signs of the odd strip's",
        "programs",
        _INT8,
    ),
    Fault(
        "mode_of_a_tile_before",
        "hw.gpt2.row",
        "lane.int8.eq(self.at_patched.two),",
        "lane.int8.eq(self.at_accumulate.two),",
        "a tile's weights are read in the format of a tile some cycles before",
        "programs",
        _INT8,
    ),
    Fault(
        "single_tile_in_both_banks",
        "hw.gpt2.lane_int8",
        "used = self.acc_valid & (self.acc_two | (self.acc[0] == b))",
        "used = self.acc_valid",
        "a tile of fp16 weights also changes the accumulator of the strip beside its own",
        "programs",
        _INT8,
    ),
    Fault(
        "bias_of_the_even_strip",
        "hw.gpt2.lane_int8",
        "Mux(self.acc_two, biases[b], single_bias)",
        "Mux(self.acc_two, biases[0], single_bias)",
        "an odd strip starts from the bias of the even one beside it",
        "programs",
        _INT8,
    ),
    Fault(
        "scales_the_other_way_round",
        "hw.gpt2.lane",
        "write.data.eq(value[32 * bank : 32 * bank + 32]),",
        "write.data.eq(value[width - 32 - 32 * bank :][:32]),",
        "parameters of even and odd strips change places",
        "programs",
        _INT8,
    ),
    Fault(
        "scale_for_every_tile",
        "hw.gpt2.lane_int8",
        "Mux(self.use_column_scale, result.scale, FP32_ONE)",
        "result.scale",
        "sums of fp16 weights are multiplied by a scale, too",
        "programs",
        _INT8,
    ),
    Fault(
        "odd_result_first",
        "hw.gpt2.lane_int8",
        "result.eq(read.data.word_select(self.queue_odd, _ENTRY.size))",
        "result.eq(read.data.word_select(~self.queue_odd, _ENTRY.size))",
        "the two results of a tile leave the queue the other way round",
        "programs",
        _INT8,
    ),
    Fault(
        "odd_result_lost",
        "hw.gpt2.result_queue",
        "self.freed.eq(some & (self.odd | ~entry.two)),",
        "self.freed.eq(some),",
        "an entry of the queue leaves with its first result",
        "programs",
        _INT8,
    ),
    Fault(
        "mask_of_the_even_strip",
        "hw.gpt2.result_queue",
        "out.mask[r].eq(entry.mask_odd)",
        "out.mask[r].eq(entry.mask[r])",
        "columns behind the end of a vector count if they lie in an odd strip",
        "programs",
        _INT8,
    ),
    Fault(
        "commit_with_the_even_strip",
        "hw.gpt2.result_queue",
        "out.flush.eq(0), out.commit.eq(Commit.NONE.value)]",
        "out.flush.eq(0)]",
        "keys, values and the arg-max are taken before the last strip is there",
        "programs",
        _INT8,
    ),
    Fault(
        "odd_strip_not_marked",
        "hw.gpt2.walk",
        "strips.eq(Cat(1, tile.two) <<",
        "strips.eq(Cat(1, 0 & tile.two) <<",
        "the odd strip of a tile is not marked as under way",
        "programs",
        _INT8,
    ),
    Fault(
        "control_freed_otherwise",
        "hw.gpt2.result_queue",
        "self.freed.eq(some & (self.odd | ~entry.two)),",
        "self.freed.eq(some & ~(entry.two & ~self.odd)),",
        "the same condition, negated twice",
        "nothing",
        _INT8,
    ),
)
