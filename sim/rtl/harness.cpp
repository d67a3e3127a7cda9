// The C functions behind sim/rtl/harness.py. A board works by itself, or as part of a ring.
#include <chrono>
#include "board.h"
#include "host_access.h"
#include "ring.h"

namespace {
enum Counter { RUN_TICKS = 0, TICKS = 1, TILES = 2, READ_BEATS = 3, WRITE_BEATS = 4, REFRESH_STALLS = 5 };

void tick(Board& board) {
    if (board.ring) board.ring->tick(board);
    else board.tick();
}

int write(Board& board, uint32_t offset, uint32_t value) {
    if (board.ring) board.ring->before_write(board);
    else if (board.idle()) board.align();
    return host_write(board, offset, value, [&] { tick(board); });
}

Result advance(Board& board, uint64_t limit, uint64_t& passed) {
    const auto begin = std::chrono::steady_clock::now();
    const double used = board.wall_used_s;
    auto seconds = [&] {
        return used + std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    Result result = PASSED;
    for (passed = 0; passed < limit && result == PASSED; ++passed) {
        board.tick();
        if (board.idle()) result = DONE;  // the state behind the clock edge
        else if (board.ticks - board.last_progress > board.no_progress_limit) result = STUCK;
        else if (board.ticks % WALL_CHECK_TICKS == 0) {
            if (board.violated()) result = VIOLATION;
            else if (board.wall_limit_s > 0 && seconds() > board.wall_limit_s) result = TOO_LONG;
        }
    }
    if (board.violated()) result = VIOLATION;
    if (result == STUCK) board.last_progress = board.ticks;  // whoever goes on gets the same patience again
    board.wall_used_s = result == TOO_LONG ? 0 : seconds();
    return result;
}
}  // namespace

extern "C" {
Board* board_new() { return new Board; }
void board_delete(Board* board) { delete board; }
void board_reset(Board* board) {
    if (board->ring) board->ring->reset(*board);
    else board->reset();
}
int board_map(Board* board, unsigned c, const char* path, uint64_t image_bytes, uint64_t channel_bytes) {
    return board->map(c, path, image_bytes, channel_bytes);
}
uint8_t* board_memory(Board* board, unsigned c) { return board->channels[c].memory; }
void board_base(Board* board, unsigned c, uint64_t address) { board->channels[c].base = address; }
void board_timing(Board* board, const MemoryConfig* timing, uint64_t seed) {
    board->set_memory(*timing, seed);
    if (board->ring) board->ring->restart_memories(*board);
    else board->align();
}
void board_threads(Board* board, unsigned threads) { board->use_threads(threads); }
void board_limits(Board* board, uint64_t no_progress_ticks, double wall_s) {
    board->no_progress_limit = no_progress_ticks, board->wall_limit_s = wall_s;
}
int board_write(Board* board, uint32_t offset, const uint32_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        if (const int response = write(*board, offset + 4 * i, words[i])) return response;
    return 0;
}
int board_read(Board* board, uint32_t offset, uint32_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        if (const int response = host_read(*board, offset + 4 * i, words[i], [&] { tick(*board); })) return response;
    return 0;
}
int board_advance(Board* board, uint64_t limit, uint64_t* passed) {
    return board->ring ? board->ring->advance(*board, limit, *passed) : advance(*board, limit, *passed);
}
int board_state(Board* board) { return board->top->probe_state; }
uint64_t board_counter(Board* board, int which) {
    uint64_t sum = 0;
    switch (which) {
        case RUN_TICKS: return board->run_ticks;
        case TICKS: return board->ticks;
        case TILES: return board->tiles;
        case REFRESH_STALLS: return board->refresh_stalls;
        case READ_BEATS: for (Channel& channel : board->channels) sum += channel.read_beats; return sum;
        case WRITE_BEATS: for (Channel& channel : board->channels) sum += channel.write_beats; return sum;
    }
    return 0;
}
const char* board_message(Board* board) { return board->message.c_str(); }
// What the memory ports wait for; the text stands until the board's next message.
const char* board_waiting(Board* board) {
    board->message = board->waiting();
    return board->message.c_str();
}
int board_trace(Board* board, const char* path, uint64_t from_cycle, uint64_t cycles) {
#if VM_TRACE
    board->trace_run(path, from_cycle, from_cycle + cycles);
    return 0;
#else
    (void)board, (void)path, (void)from_cycle, (void)cycles;
    return -1;
#endif
}

unsigned ring_ports() { return LINKS; }
Ring* ring_new(unsigned boards, const LinkConfig* configs, unsigned threads, uint64_t no_progress_ticks, double wall_s) {
    Ring* ring = new Ring(boards, configs, threads);
    ring->no_progress_limit = no_progress_ticks, ring->wall_limit_s = wall_s;
    return ring;
}
void ring_delete(Ring* ring) { delete ring; }
Board* ring_board(Ring* ring, unsigned board) { return &ring->board(board); }
void ring_move(Ring* ring, uint64_t cycles) { ring->move(ring->board(0), cycles); }
void ring_cut(Ring* ring, unsigned board, unsigned port, int drops_channel) { ring->cut(board, port, drops_channel); }
void ring_mend(Ring* ring, unsigned board, unsigned port) { ring->mend(board, port); }
void ring_counters(Ring* ring, unsigned board, unsigned port, uint64_t* values) {
    const auto counters = ring->counters(board, port);
    values[0] = counters.words_sent, values[1] = counters.words_lost;
    values[2] = counters.words_corrupted, values[3] = counters.words_received;
}
const char* ring_message(Ring* ring) { return ring->message.c_str(); }
}
