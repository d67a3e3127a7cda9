// One port of the ring node (hw/link/port.py): the core's side and the cable's, and what crosses between their clocks.
#pragma once
#include <vector>
#include "clocked_queue.h"
#include "receiver.h"
#include "transmitter.h"

namespace timing {

// Both halves go into reset together and leave it together (hw/link/channel_reset.py).
class ChannelReset {
public:
    bool link = true, kernel = true;

    void sample() { request_sampled_ = request_; }
    void kernel_clock() {
        const bool before = kernel;
        kernel = reached_[1], reached_[1] = reached_[0], reached_[0] = request_sampled_;
        answer_ = before;
    }
    void link_clock(bool channel_up) {
        const bool answered = answered_[1], in_reset = link;
        answered_[1] = answered_[0], answered_[0] = answer_;
        if (!channel_up) link = true;
        if (in_reset && !request_) request_ = !answered;
        else if (in_reset && answered && channel_up) request_ = link = false;
    }

private:
    bool request_ = true, request_sampled_ = true, answer_ = false;
    bool reached_[2] = {true, true}, answered_[2] = {false, false};
};

class RingPort {
public:
    explicit RingPort(const RingSizes& sizes)
        : sizes_(sizes), transmitter_(sizes), receiver_(sizes), received_(sizes.slots),
          headers_{std::vector<Frame>(sizes.slots), std::vector<Frame>(sizes.slots)} {}

    // Core's side: outputs of a cycle, all from registers.
    bool up() const { return !reset_.kernel; }
    bool room(Region region) const { return up() && room_[region]; }
    // The far end has taken every frame.
    bool empty() const {
        return pushed_[LOCAL] == freed_seen_[LOCAL].value && pushed_[TRANSIT] == freed_seen_[TRANSIT].value;
    }
    bool frame_valid() const { return frame_valid_; }
    const Frame& header() const { return received_[popped_ % sizes_.slots]; }
    // ... and what it does in a cycle, which counts from the next one on.
    void push(Region region, const Frame& frame) { pushing_ = true, push_region_ = region, push_frame_ = frame; }
    void pop() { popping_ = true; }

    uint64_t frames_sent() const { return transmitter_.frames_sent(); }
    uint64_t frames_received() const { return arrived_; }
    uint64_t resends() const { return transmitter_.went_back(); }
    // What the core's clock samples of the link's registers: before an edge that both have, else at the core's.
    void sample() {
        reset_.sample();
        for (Region region : {LOCAL, TRANSIT}) freed_sampled_[region] = transmitter_.freed_slots(region);
        arrived_sampled_ = arrived_;
    }

    void kernel_clock() {
        const bool in_reset = reset_.kernel;
        reset_.kernel_clock();
        popped_ += popping_;
        frame_valid_ = arrived_seen_.value != popped_;
        arrived_seen_.clock(arrived_sampled_);
        if (pushing_) headers_[push_region_][pushed_[push_region_]++ % sizes_.slots] = push_frame_;
        for (Region region : {LOCAL, TRANSIT}) {
            room_[region] = !in_reset && pushed_[region] - freed_seen_[region].value < sizes_.slots;
            freed_seen_[region].clock(freed_sampled_[region]);
        }
        pushing_ = popping_ = false;
    }

    // Cable's side: the word that is shown, or null.
    const LinkWord* word() const { return transmitter_.valid() ? &transmitter_.word() : nullptr; }

    // An edge of the link's clock; `ready`: the Aurora core takes a word; `received`: what came, or null.
    void link_clock(bool channel_up, bool ready, const LinkWord* received) {
        const bool in_reset = reset_.link;
        reset_.link_clock(channel_up);
        if (!in_reset) {
            const uint8_t freed = popped_seen_.value;
            Transmitter::Inputs in;
            in.pushed[LOCAL] = pushed_seen_[LOCAL].value, in.pushed[TRANSIT] = pushed_seen_[TRANSIT].value;
            in.headers = headers_;
            in.heard = receiver_.heard, in.heard_ack = receiver_.heard_ack, in.heard_freed = receiver_.heard_freed;
            in.ack = receiver_.expected, in.freed = freed, in.ready = ready;
            transmitter_.clock(in);
            if (const Frame* frame = receiver_.clock(received, freed)) received_[arrived_++ % sizes_.slots] = *frame;
        }
        for (Region region : {LOCAL, TRANSIT}) pushed_seen_[region].clock(pushed_[region]);
        popped_seen_.clock(popped_);
    }

private:
    const RingSizes& sizes_;
    ChannelReset reset_;
    Transmitter transmitter_;
    Receiver receiver_;
    std::vector<Frame> received_;    // slots of the frames that the core has not freed
    std::vector<Frame> headers_[2];  // ... of those that are to be sent, by region
    uint64_t pushed_[2] = {0, 0}, popped_ = 0, arrived_ = 0;
    uint64_t freed_sampled_[2] = {0, 0}, arrived_sampled_ = 0;
    Synchronized pushed_seen_[2], popped_seen_, freed_seen_[2], arrived_seen_;
    bool room_[2] = {false, false};
    bool frame_valid_ = false, pushing_ = false, popping_ = false;
    Region push_region_ = LOCAL;
    Frame push_frame_;
};

}  // namespace timing
