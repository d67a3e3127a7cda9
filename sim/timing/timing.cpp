// C interface of the timing model: boards for one run, alone or in a ring.
#include "ring.h"

using namespace timing;

#pragma GCC visibility push(default)
extern "C" {
Board* timing_new(const Sizes* sizes, const Registers* registers, const Instruction* code, uint64_t instructions,
                  const Access* accesses, uint64_t descriptors, const int64_t* ids, const uint64_t* tokens,
                  const MemoryConfig* memory, uint64_t seed, const uint64_t* offsets) {
    Program program{{code, code + instructions}, {accesses, accesses + descriptors}, {}};
    for (uint32_t row = 0; row < MAX_ROWS; ids += tokens[row++]) program.tokens[row].assign(ids, ids + tokens[row]);
    return new Board(*sizes, *registers, std::move(program), *memory, seed, offsets);
}
void timing_delete(Board* board) { delete board; }
void timing_keep_events(Board* board, int keep) { board->record.keep_events = keep; }
int timing_run(Board* board, uint64_t limit, uint64_t idle_limit, int64_t stop) {
    return board->run(limit, idle_limit, stop);
}
// The boards stay the caller's and must outlive the ring.
Ring* timing_ring_new(Board* const* boards, uint64_t count, const RingSizes* sizes, const LinkConfig* links) {
    return new Ring({boards, boards + count}, *sizes, *links);
}
void timing_ring_delete(Ring* ring) { delete ring; }
int timing_ring_run(Ring* ring, uint64_t limit, uint64_t idle_limit, int64_t stop) {
    return ring->run(limit, idle_limit, stop);
}
// strips of other boards that a board has stored
uint64_t timing_ring_strips(const Ring* ring, uint32_t board) { return ring->core_ring(board).strips_stored; }
// for each port of each board: frames sent, received, times that it went back
void timing_ring_ports(const Ring* ring, int64_t* out) {
    for (uint32_t board = 0; board < ring->count(); ++board)
        for (int which : {0, 1}) {
            const RingPort& port = ring->core_ring(board).node.ports[which];
            *out++ = port.frames_sent(), *out++ = port.frames_received(), *out++ = port.resends();
        }
}
// cycles, tiles, refresh stalls, stalls by cause, tail by cause
void timing_totals(const Board* board, int64_t* out) {
    const Record& record = board->record;
    *out++ = int64_t(board->cycle) - record.start, *out++ = record.tiles, *out++ = record.refresh;
    for (int64_t stalls : record.stalls) *out++ = stalls;
    for (int64_t stalls : record.tail) *out++ = stalls;
}
uint64_t timing_span_count(const Board* board) { return board->record.spans.size(); }
const Span* timing_spans(const Board* board) { return board->record.spans.data(); }
uint64_t timing_event_count(const Board* board) { return board->record.events.size(); }
const Event* timing_events(const Board* board) { return board->record.events.data(); }
uint64_t timing_token_count(const Board* board) { return board->record.tokens.size(); }
const Token* timing_tokens(const Board* board) { return board->record.tokens.data(); }
}
