// Ring node (hw/link/node.py): the ways between a board's two ports and its core.
#pragma once
#include "clocked_queue.h"
#include "frame.h"
#include "outbox.h"
#include "ring_port.h"

namespace timing {

class Node {
public:
    RingPort ports[2];  // left, right

    Node(const RingSizes& sizes, uint32_t board)
        : ports{RingPort(sizes), RingPort(sizes)}, sizes_(sizes), board_(board) {}

    // Bit per port that can be used.
    uint32_t up() const { return ports[0].up() | ports[1].up() << 1; }

    // What a cycle's registers say.
    struct View {
        bool valid = false;              // a head can be taken
        bool skip[2] = {false, false};   // ... of that port: it does not go further
        int chosen = 0;
    };

    View look(bool active) const {
        View view;
        bool able[2];
        for (int p = 0; p < 2; ++p) {
            const bool first = ahead_[p].empty() || ahead_[p].front().index == 0;
            view.skip[p] = first ? !active : broken_[p];
            const bool further = !ahead_[p].empty() && ahead_[p].front().frame.hops && !view.skip[p];
            able[p] = !ahead_[p].empty() && (!further || ports[1 - p].room(TRANSIT));
        }
        view.chosen = able[0] && able[1] ? !before_ : able[1];
        view.valid = able[view.chosen];
        return view;
    }

    // The entry that is delivered to the core, or null.
    const Entry* delivered() const { return delivery_.empty() ? nullptr : &delivery_.front(); }

    // One cycle; `ready`: the core takes the delivered entry; while it takes no part in a run nothing waits for it.
    // Returns whether the core's frame can be taken.
    bool clock(const View& view, bool ready, const Outbox::Offer& offer, bool active, bool joined) {
        const int p = view.chosen;
        const bool taken = view.valid && (delivery_.size() < DELIVERY || !active);
        const int passing = taken && head(view).frame.hops && !view.skip[p] ? 1 - p : -1;
        const bool sent = send(offer, passing, active);
        if (passing >= 0 && head(view).last) {
            Frame frame = head(view).frame;
            --frame.hops;
            ports[passing].push(TRANSIT, frame);
        }
        if (ready) delivery_.pop();
        if (active && taken) delivery_.push(head(view));
        while (!active && !delivery_.empty()) delivery_.pop();
        const bool open = joined && settled_[0] && settled_[1];
        for (int q = 0; q < 2; ++q) {
            fetch(q, taken && p == q, active, open);
            settled_[q] = active && (settled_[q] || ports[q].empty());
        }
        if (taken) before_ = p, broken_[p] = view.skip[p];
        return sent;
    }

private:
    static constexpr size_t DELIVERY = 2;  // entries between a head and the core

    const Entry& head(const View& view) const { return ahead_[view.chosen].front(); }

    // Whether the core's entry is taken; frames of which it is the last go into the ports' slots.
    bool send(const Outbox::Offer& offer, int passing, bool active) {
        if (!active) turn_ = false;
        const Frame& frame = offer.entry.frame;
        const uint32_t half = (sizes_.boards - 1) / 2, even = sizes_.boards % 2 == 0;
        const bool hello = frame.kind == FRAME_HELLO;
        const uint32_t reach[2] = {hello ? offer.entry.port == 0 : half + (even && turn_),
                                   hello ? offer.entry.port == 1 : half + (even && !turn_)};
        bool ready = true;
        for (int q = 0; q < 2; ++q)
            ready &= !reach[q] || (ports[q].room(LOCAL) && passing != q && (settled_[q] || hello));
        if (!ready || !offer.valid) return ready;
        if (offer.entry.last) {
            for (int q = 0; q < 2; ++q) {
                if (!reach[q]) continue;
                Frame out = frame;
                out.hops = reach[q] - 1, out.origin = board_;
                ports[q].push(LOCAL, out);
            }
            if (!hello) turn_ = !turn_;
        }
        return true;
    }

    // An entry of the oldest frame from its slot; `taken`: the head goes; `open`: the run's frames may come. What is
    // begun ends.
    void fetch(int p, bool taken, bool active, bool open) {
        RingPort& port = ports[p];
        const bool room = ahead_[p].size() + reading_[p] < sizes_.read_ahead;
        const bool hello = port.header().kind == FRAME_HELLO && !greeted_[p];
        const bool take = port.frame_valid() && room && (index_[p] || (active && (open || hello)));
        if (taken) ahead_[p].pop();
        if (reading_[p]) ahead_[p].push(read_[p]);
        reading_[p] = take;
        if (!active) greeted_[p] = false;
        if (!take) return;
        const Frame& frame = port.header();
        const uint32_t entries = (frame.beats + sizes_.entry_beats - 1) / sizes_.entry_beats;
        const bool last = index_[p] + 1 >= entries;
        read_[p] = {frame, index_[p], last, p};
        greeted_[p] |= active && hello;
        index_[p] = last ? 0 : index_[p] + 1;
        if (last) port.pop();
    }

    const RingSizes& sizes_;
    const uint32_t board_;
    Queue<Entry> ahead_[2], delivery_;
    Entry read_[2];
    bool reading_[2] = {false, false}, greeted_[2] = {false, false};
    bool settled_[2] = {false, false}, broken_[2] = {false, false};
    uint32_t index_[2] = {0, 0};
    int before_ = 0;
    bool turn_ = false;
};

}  // namespace timing
