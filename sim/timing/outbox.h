// Frames that a core sends (hw/gpt2/outbox.py): strips of results, packed into entries, between them sums and arg-max.
#pragma once
#include "clocked_queue.h"
#include "frame.h"

namespace timing {

class Outbox {
public:
    // What is shown to the node in a cycle.
    struct Offer {
        bool valid = false;
        Entry entry;
    };

    explicit Outbox(const RingSizes& sizes) : sizes_(sizes) {}

    // A strip with `send` will be at the write stage in cycle `at`; `flush`: it ends its frame.
    void strip(uint32_t strip, bool flush, uint64_t at) { coming_.push({at, strip, flush}); }
    // A frame of sums or of the arg-max is to go out; told in the cycle of its strobe.
    void sums() { sums_strobe_ = true; }
    void best() { best_strobe_ = true; }

    bool room() const { return queue_.size() + shown_ + sizes_.send_margin <= sizes_.send_depth; }
    bool idle() const { return queue_.empty() && !shown_ && !entry_.valid && !open_ && !sums_ && !best_; }

    // `hello`: bit per port through which a HELLO is to go.
    Offer offer(uint32_t hello) const {
        if (kind_ == FRAME_STRIPS) return entry_;
        Offer out = single(kind_, kind_ == FRAME_HELLO ? port_ : 0);
        out.valid = kind_ != FRAME_HELLO || (hello >> port_ & 1);
        return out;
    }

    // One cycle in which `offered` was shown with `hello`; `ready`: the node takes it.
    void clock(const Offer& offered, bool ready, uint32_t hello, uint64_t now) {
        const int kind = kind_;
        const bool strips = kind == FRAME_STRIPS, taken = offered.valid && ready;
        if (taken && kind == FRAME_SUMS) sums_ = false;
        if (taken && kind == FRAME_BEST) best_ = false;
        if (taken && kind == FRAME_STRIPS) inside_ = !offered.entry.last;
        pack(strips && ready, now);
        sums_ |= sums_strobe_, best_ |= best_strobe_;
        sums_strobe_ = best_strobe_ = false;
        if (taken && kind == FRAME_HELLO) hello &= ~(1u << port_);
        port_ = hello & 1 ? 0 : 1;
        kind_ = inside_ ? FRAME_STRIPS : hello ? FRAME_HELLO : sums_ ? FRAME_SUMS : best_ ? FRAME_BEST : FRAME_STRIPS;
    }

private:
    struct Strip {
        uint64_t at;
        uint32_t strip;
        bool flush;
    };

    static Offer single(int kind, int port) {
        Offer out;
        out.valid = true;
        out.entry.frame.kind = kind, out.entry.frame.beats = 1;
        out.entry.last = true, out.entry.port = port;
        return out;
    }

    // From the queue's output register to the entry; `next`: the entry is taken in this cycle if it is valid.
    void pack(bool next, uint64_t now) {
        const bool take = shown_ && (!entry_.valid || next);
        if (take) {
            const uint32_t mask = sizes_.entry_strips - 1, begin = open_ ? first_ : output_.strip;
            const uint32_t place = output_.strip - (begin & ~mask);
            const bool ends = output_.flush || place == sizes_.frame_strips - 1;
            Frame& frame = entry_.entry.frame;
            frame.kind = FRAME_STRIPS, frame.address = begin, frame.strips = ++count_;
            frame.beats = (place * sizes_.strip_bytes) / sizes_.beat_bytes + 1;
            entry_.entry.last = ends, entry_.valid = ends || ((place + 1) & mask) == 0;
            open_ = !ends, first_ = begin;
            if (ends) count_ = 0;
        } else if (next) {
            entry_.valid = false;
        }
        const bool load = !queue_.empty() && (!shown_ || take);
        if (load) output_ = queue_.front(), queue_.pop();
        shown_ = load || (shown_ && !take);
        if (!coming_.empty() && coming_.front().at == now) queue_.push(coming_.front()), coming_.pop();
    }

    const RingSizes& sizes_;
    Queue<Strip> coming_;  // on the way through the core's pipeline
    Queue<Strip> queue_;   // behind its output register, which `shown_` says is full
    Strip output_{};
    Offer entry_;
    uint32_t first_ = 0, count_ = 0;
    bool shown_ = false, open_ = false, inside_ = false;
    int kind_ = FRAME_STRIPS, port_ = 0;  // of the frame that is offered
    bool sums_ = false, best_ = false, sums_strobe_ = false, best_strobe_ = false;
};

}  // namespace timing
