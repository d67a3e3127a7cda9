// Logits writer of a row (hw/gpt2/logits_writer.py).
#pragma once
#include "clocked_queue.h"
#include "hardware.h"
#include "record.h"
#include "write_command.h"

namespace timing {

class LogitsWriter {
public:
    LogitsWriter(const Sizes& sizes, const Registers& cfg, uint64_t base, uint32_t row, Record& record)
        : sizes_(sizes), cfg_(cfg), record_(record), base_(base), row_(row),
          enabled_(cfg.flags & FLAG_WRITE_LOGITS), parts_(sizes.port_bytes / (sizes.lanes * 4)) {}

    // A strip of logits was issued at `now`; `last`: of its product.
    void strip(uint32_t index, bool last, uint32_t position, uint64_t now) {
        if (enabled_) strips_.push({now + sizes_.report, index, position, last});
    }

    bool full() const { return enabled_ && words_.size() + complete_ + sizes_.logits_margin > sizes_.logits_depth; }
    bool busy() const { return showing() || complete_; }
    bool showing() const { return !words_.empty(); }

    WriteCommand command() {
        WriteCommand out;
        if (words_.empty()) return out;
        out.valid = true, out.row = words_.front().row, out.channels = 1u << words_.front().channel;
        return out;
    }

    void clock(bool taken, uint64_t now) {
        if (strips_.empty() && !busy()) return;
        if (taken) words_.pop();
        if (complete_) words_.push(gathered_);
        complete_ = false;
        if (!strips_.empty() && strips_.front().at == now) {
            const Strip strip = strips_.front();
            strips_.pop();
            const uint64_t word = strip.index / parts_;
            gathered_.row = base_ + strip.position * cfg_.logits_rows + word / sizes_.channels;
            gathered_.channel = word % sizes_.channels;
            complete_ = strip.last || strip.index % parts_ == parts_ - 1;
            if (complete_) record_.event(UNIT_LOGITS_WRITER, gathered_.channel + row_ * sizes_.channels, word, now, now + 1);
        }
    }

private:
    struct Strip {
        uint64_t at;
        uint32_t index, position;
        bool last;
    };
    struct Word {
        uint64_t row;
        uint32_t channel;
    };

    const Sizes& sizes_;
    const Registers& cfg_;
    Record& record_;
    const uint64_t base_;
    const uint32_t row_;
    const bool enabled_;
    const uint32_t parts_;
    Queue<Strip> strips_;  // on the way through the pipeline
    Queue<Word> words_;
    Word gathered_{};
    bool complete_ = false;
};

}  // namespace timing
