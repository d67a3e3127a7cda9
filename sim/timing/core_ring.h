// A core's side of the ring: what it sends, what it gets, and the node between it and the cables.
#pragma once
#include "clocked_queue.h"
#include "node.h"
#include "outbox.h"
#include "peers.h"

namespace timing {

class CoreRing {
public:
    Peers peers;
    Outbox outbox;
    Node node;
    uint64_t strips_stored = 0;  // of other boards

    CoreRing(const RingSizes& sizes, uint32_t board) : peers(sizes), outbox(sizes), node(sizes, board), sizes_(sizes) {}

    void sample() {
        for (RingPort& port : node.ports) port.sample();
    }

    // One cycle of the core's clock; `storing`: an own strip goes to the activation memory; `own`: strobes of this board's
    // sums and arg-max. arrive(strip) is told of strips that other boards have sent and that are written now.
    template <class Arrive>
    void clock(uint64_t now, bool run, bool storing, Peers::Own own, Arrive arrive) {
        const Node::View view = node.look(run);
        const Entry entry = node.delivered() ? *node.delivered() : Entry{};
        const bool ready = node.delivered() && run && peers.ready(entry, own, !storing);
        const uint32_t hello = peers.hello(run) & node.up();
        const Outbox::Offer offer = outbox.offer(hello);
        const bool sent = node.clock(view, ready, offer, run, peers.joined);
        if (ready && entry.frame.kind == FRAME_STRIPS) store(entry, arrive);
        const bool tells = sent && offer.valid && offer.entry.frame.kind == FRAME_HELLO;
        const uint32_t told = tells ? 1u << offer.entry.port : 0;
        const bool cleared = run && ++run_cycles_ > sizes_.clear_cycles;
        peers.clock(ready ? &entry : nullptr, own, told, cleared);
        if (own.sums) outbox.sums();
        if (own.best) outbox.best();
        outbox.clock(offer, sent, hello, now);
        for (RingPort& port : node.ports) port.kernel_clock();
    }

    // One cycle in which the core takes no part in a run.
    void rest(uint64_t now) { clock(now, false, false, {}, [](uint32_t) {}); }

private:
    template <class Arrive>
    void store(const Entry& entry, Arrive arrive) {
        const Frame& frame = entry.frame;
        const uint32_t begin = (frame.address & ~(sizes_.entry_strips - 1)) + entry.index * sizes_.entry_strips;
        for (uint32_t strip = begin; strip < begin + sizes_.entry_strips; ++strip)
            if (strip >= frame.address && strip < frame.address + frame.strips) arrive(strip), ++strips_stored;
    }

    const RingSizes& sizes_;
    uint64_t run_cycles_ = 0;  // the scoreboard is made ready in the first ones
};

}  // namespace timing
