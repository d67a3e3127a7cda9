// Sending half of a link port (hw/link/transmitter.py), one cycle of the link's clock at a time.
#pragma once
#include <vector>
#include "link_word.h"

namespace timing {

enum Region { LOCAL = 0, TRANSIT = 1 };

class Transmitter {
public:
    explicit Transmitter(const RingSizes& sizes) : sizes_(sizes), order_(sizes.slots) {}

    struct Inputs {
        uint64_t pushed[2];           // frames that the core has pushed to each region
        const std::vector<Frame>* headers;  // of each region, by slot
        bool heard;                   // a good frame came, with ack and freed
        uint8_t heard_ack, heard_freed;
        uint8_t ack, freed;           // what the next trailer tells
        bool ready;                   // the Aurora core takes a word
    };

    bool valid() const { return tx_.valid; }
    const LinkWord& word() const { return tx_.word; }
    uint64_t frames_sent() const { return first_sends_; }
    uint64_t went_back() const { return went_back_; }
    uint64_t freed_slots(Region region) const { return freed_[region]; }

    void clock(const Inputs& in) {
        if (idle(in)) {
            ++since_;
            return;
        }
        const bool go = !tx_.valid || in.ready, ends = beat_ == now_.word.frame.beats;
        const bool load = next_.valid && (!now_.valid || (go && ends));
        const bool trailer = read_.valid && read_.word.last, quiet = !next_.valid && !now_.valid && !trailer;
        if (go) advance(in, ends);
        if (load) now_ = next_, beat_ = 0;
        else if (go) now_.valid &= !ends, ++beat_;
        choose(in, load, go && trailer, quiet);
    }

private:
    // A word in a register of the pipeline; in `next_` and `now_` a frame.
    struct Stage {
        bool valid = false;
        LinkWord word;
    };
    struct Slot {
        uint32_t slot;
        Region region;
    };

    // A cycle that changes nothing but the time since the last trailer.
    bool idle(const Inputs& in) const {
        const bool words = tx_.valid || summed_.valid || formed_.valid || read_.valid || now_.valid || next_.valid;
        const bool flags = stale_ || tell_ || just_told_ || resends_ || can_[LOCAL] || can_[TRANSIT] || due();
        const bool news = in.heard || told_ack_ != in.ack || told_freed_ != in.freed ||
                          in.pushed[LOCAL] != sent_[LOCAL] || in.pushed[TRANSIT] != sent_[TRANSIT];
        return !words && !flags && !news && new_ == acked_ && walked_ == acked_;
    }

    bool due() const { return since_ == sizes_.keepalive - sizes_.word_after; }

    // Words move on: memory, beat, CRC, output.
    void advance(const Inputs& in, bool ends) {
        tx_ = summed_, summed_ = formed_, formed_ = read_;
        if (read_.word.last) formed_.word.ack = in.ack, formed_.word.freed = in.freed;
        read_ = now_, read_.word.last = ends;
    }

    void choose(const Inputs& in, bool load, bool told, bool quiet) {
        const bool expired = waited_ == sizes_.retry;
        const bool may = !stale_ && !in.heard && !expired && !next_.valid;
        const bool any = can_[LOCAL] || can_[TRANSIT], fresh = may && !resends_ && any;
        const Region region = can_[TRANSIT] ? TRANSIT : LOCAL;
        const Slot fresh_one{uint32_t(sent_[region] % sizes_.slots), region};
        const Slot chosen = resends_ ? order_[again_ % sizes_.slots] : fresh_one;
        const uint8_t in_use = new_ - heard_freed_;
        const bool window = uint8_t(new_ - walked_) < sizes_.slots;
        const bool resends_now = again_ != new_;
        bool can[2];
        for (int r = LOCAL; r <= TRANSIT; ++r)
            can[r] = in.pushed[r] != sent_[r] && in_use + needs(r) <= sizes_.slots && window;
        const bool tell = tell_ && !just_told_;
        const bool stale = in.heard || expired || (may && (resends_ || any));
        Stage next = next_;
        if (load) next.valid = false;
        if (may && (resends_ || any || (tell && quiet))) {
            next.valid = true;
            next.word = {};
            if (resends_ || any) {
                next.word.frame = in.headers[chosen.region][chosen.slot];
                next.word.seq = again_;
            }
        }

        // retry
        const bool waiting = new_ != acked_, progress = in.heard && in.heard_ack != acked_;
        if (!waiting || progress || (expired && !in.heard)) waited_ = 0;
        else if (!expired) ++waited_;

        // what must be told
        const bool overdue = due();
        tell_ = told_ack_ != in.ack || told_freed_ != in.freed || overdue;
        just_told_ = told;
        if (told) told_ack_ = in.ack, told_freed_ = in.freed, since_ = 0;
        else if (!overdue) ++since_;

        const bool overtaken = uint8_t(again_ - acked_) < uint8_t(in.heard_ack - acked_);
        uint8_t again = again_;
        const uint8_t acked_before = acked_;
        if (in.heard) {
            if (overtaken) again = in.heard_ack;
            acked_ = in.heard_ack, heard_freed_ = in.heard_freed;
        } else if (expired) {
            again = acked_, ++went_back_;
        } else if (fresh || (may && resends_)) {
            ++again;
        }
        if (walked_ != acked_before) ++freed_[order_[walked_++ % sizes_.slots].region];
        if (fresh) order_[new_++ % sizes_.slots] = chosen, ++sent_[region], ++first_sends_;
        again_ = again;
        can_[LOCAL] = can[LOCAL], can_[TRANSIT] = can[TRANSIT];
        resends_ = resends_now, stale_ = stale;
        next_ = next;
    }

    static uint32_t needs(int region) { return region == TRANSIT ? 1 : 2; }

    const RingSizes& sizes_;
    std::vector<Slot> order_;  // what each unacknowledged frame was, by sequence number
    Stage next_, now_, read_, formed_, summed_, tx_;
    uint8_t new_ = 0, again_ = 0, acked_ = 0, walked_ = 0, heard_freed_ = 0, told_ack_ = 0, told_freed_ = 0;
    uint64_t sent_[2] = {0, 0}, freed_[2] = {0, 0}, first_sends_ = 0, went_back_ = 0;
    uint32_t waited_ = 0, since_ = 0, beat_ = 0;
    bool can_[2] = {false, false}, resends_ = false, stale_ = false, tell_ = false, just_told_ = false;
};

}  // namespace timing
