// Owner of one verilated kernel: clocks, memory models, AXI4-Lite master, counters, watchdogs, waves.
// The generated header board_ports.h names the model, its channels, its widths and its clocks.
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <numeric>
#include "Vboard.h"
#include "blocks.h"
#include "board_ports.h"
#include "memory_model.h"
#include "shared_work.h"
#if VM_TRACE
#include "verilated_fst_c.h"
#endif

namespace {
enum State { IDLE = 0, RUN = 1, DRAIN = 2, RESET = 3 };
enum Result { PASSED = 0, DONE = 1, STUCK = 2, TOO_LONG = 3, VIOLATION = 4 };
enum Counter { RUN_TICKS = 0, TICKS = 1, TILES = 2, READ_BEATS = 3, WRITE_BEATS = 4, REFRESH_STALLS = 5 };
constexpr uint64_t RESET_TICKS = 8, LITE_TICKS = 1000, WALL_CHECK_TICKS = 8192;
constexpr uint64_t NAN_BYTES = 4 << 20;
// Clock periods in a common unit: exact, so that a run repeats.
constexpr uint64_t CORE_PERIOD = PORT_MHZ / std::gcd(CORE_MHZ, PORT_MHZ), PORT_PERIOD = CORE_MHZ / std::gcd(CORE_MHZ, PORT_MHZ);

using Channel = MemoryModel<AddressWord, StrobeWord, PORT_BYTES>;
using Clock = std::chrono::steady_clock;

struct Board {
    // A context for each model, since two threads evaluate them; all of them outlive all models.
    VerilatedContext context;
    std::vector<std::unique_ptr<VerilatedContext>> block_contexts;
    std::unique_ptr<Vboard> top;
    std::vector<std::unique_ptr<Vblock>> blocks;  // modules compiled apart, in the order of their instances
    Channel channels[CHANNELS];
    uint64_t mapped[CHANNELS] = {};
    std::unique_ptr<SharedWork> shared;
    uint64_t ticks = 0, run_ticks = 0, tiles = 0, refresh_stalls = 0, last_progress = 0;  // ticks of the core's clock
    uint64_t port_cycle = 0, next_core = 0, next_port = 0;
    MemoryConfig timing{};
    uint64_t seed = 0;
    uint64_t no_progress_limit = 20000;
    double wall_limit_s = 0, wall_used_s = 0;
    State state = IDLE;
    std::string message;
#if VM_TRACE
    std::unique_ptr<VerilatedFstC> waves;
    std::string waves_path;
    uint64_t waves_from = 0, waves_to = 0;
#endif

    Board() {
        context.traceEverOn(VM_TRACE);
        top = std::make_unique<Vboard>(&context, "board");
        for (unsigned i = 0; i < BLOCKS; ++i) {
            block_contexts.push_back(std::make_unique<VerilatedContext>());
            blocks.push_back(std::make_unique<Vblock>(block_contexts[i].get(), ("block_" + std::to_string(i)).c_str()));
        }
#define BIND(c)                                                                                                     \
    channels[c].ports = {&top->m_axi_##c##_arvalid, &top->m_axi_##c##_arready, &top->m_axi_##c##_arlen,             \
                         &top->m_axi_##c##_arsize, &top->m_axi_##c##_arburst, &top->m_axi_##c##_arid,               \
                         &top->m_axi_##c##_araddr, &top->m_axi_##c##_rvalid, &top->m_axi_##c##_rready,              \
                         &top->m_axi_##c##_rlast, &top->m_axi_##c##_rresp, &top->m_axi_##c##_rid,                   \
                         top->m_axi_##c##_rdata.data(), &top->m_axi_##c##_awvalid, &top->m_axi_##c##_awready,       \
                         &top->m_axi_##c##_awlen, &top->m_axi_##c##_awsize, &top->m_axi_##c##_awburst,              \
                         &top->m_axi_##c##_awid, &top->m_axi_##c##_awaddr, &top->m_axi_##c##_wvalid,                \
                         &top->m_axi_##c##_wready, &top->m_axi_##c##_wlast, top->m_axi_##c##_wdata.data(),          \
                         &top->m_axi_##c##_wstrb, &top->m_axi_##c##_bvalid, &top->m_axi_##c##_bready,               \
                         &top->m_axi_##c##_bresp, &top->m_axi_##c##_bid};
        FOR_EACH_CHANNEL(BIND)
#undef BIND
        reset();
    }

    ~Board() {
#if VM_TRACE
        if (waves) waves->close();
#endif
        shared.reset();
        Verilated::threadContextp(&context);  // models take leave of the thread's context, which may be another board's
        top->final();
        for (auto& block : blocks) block->final();
        for (unsigned c = 0; c < CHANNELS; ++c) unmap(c);
    }

    void unmap(unsigned c) {
        if (channels[c].memory) munmap(channels[c].memory, mapped[c]);
        channels[c].memory = nullptr, channels[c].bytes = 0;
    }

    void reset() {
        for (Channel& channel : channels) channel.reset();
        top->s_axi_control_awvalid = top->s_axi_control_wvalid = top->s_axi_control_bready = 0;
        top->s_axi_control_arvalid = top->s_axi_control_rready = 0;
        top->ap_rst_n = top->ap_rst_n_2 = 0;
        for (uint64_t i = 0; i < RESET_TICKS; ++i) edge(true, true);
        top->ap_rst_n = top->ap_rst_n_2 = 1;
        next_core = next_port = 0, port_cycle = 0;  // both clocks rise together: every reset finds the same phase
        for (uint64_t i = 0; i < RESET_TICKS; ++i) tick();  // the reset crosses between the clocks
        state = IDLE, run_ticks = 0, last_progress = ticks, message.clear();
    }

    // Rising edges of one or both clocks. The clock that does not rise falls, so most edges take one evaluation.
    void edge(bool core, bool port) {
        if ((core && top->ap_clk) || (port && top->ap_clk_2)) {
            if (core) clock_blocks(0), top->ap_clk = 0;
            if (port) top->ap_clk_2 = 0;
            top->eval();
        }
        if (core) to_blocks(blocks, *top);  // what stood at their inputs before the edge
        else if (top->ap_clk) clock_blocks(0);
        top->ap_clk = core, top->ap_clk_2 = port;
        if (core && shared) shared->start();
        top->eval();
        if (core) {
            if (shared) shared->finish();
            else clock_blocks(1);
            from_blocks(blocks, *top);
        }
    }

    void clock_blocks(uint8_t level) {
        for (auto& block : blocks) block->clk = level, block->eval();
    }

    // Share the rising edges of the blocks with a second thread; this one has the rest of the kernel, too.
    void use_threads(unsigned threads) {
        shared.reset();
        if (threads > 1 && BLOCKS)
            shared = std::make_unique<SharedWork>(BLOCKS, [this](uint32_t i) { blocks[i]->clk = 1, blocks[i]->eval(); });
    }

    // One cycle of the core's clock, with the edges of the port clock that fall into it.
    void tick() {
        const State now = State(top->probe_state);
        bool progress = now != state || top->probe_tile;
        if (now != IDLE) {
            if (state == IDLE) run_ticks = 0, tiles = 0, refresh_stalls = 0, wall_used_s = 0;
            ++run_ticks;
            tiles += now == RUN && top->probe_tile;
            if (now == RUN && !top->probe_tile && top->probe_stall == STALL_STREAM) refresh_stalls += waits_for_refresh();
        }
        if (now == RESET && state == DRAIN)
            for (Channel& channel : channels)
                if (!channel.idle() && channel.violation.empty())
                    channel.violation = "core reset while transfers were under way: " + channel.waiting();
        state = now;
        while (next_port < next_core) progress |= port_edge(false);
        if (next_port == next_core) progress |= port_edge(true);
        else edge(true, false);
        next_core += CORE_PERIOD;
        if (progress) last_progress = ticks;
        trace();
        ++ticks;
    }

    // A rising edge of the port clock, alone or together with the core's; whether anything moved on a port.
    bool port_edge(bool core) {
        bool moved = false;
        for (Channel& channel : channels) moved |= channel.sample(port_cycle);
        edge(core, true);
        for (Channel& channel : channels) channel.apply();
        ++port_cycle, next_port += PORT_PERIOD;
        return moved;
    }

    // Whether a channel that has delivered least is late because of a refresh.
    bool waits_for_refresh() const {
        uint64_t least = channels[0].read_beats;
        for (const Channel& channel : channels) least = std::min(least, channel.read_beats);
        for (const Channel& channel : channels)
            if (channel.read_beats == least && channel.behind_refresh(port_cycle)) return true;
        return false;
    }

    // State behind the clock edge, one sample a cycle.
    void trace() {
#if VM_TRACE
        if (waves_path.empty()) return;
        const bool inside = state != IDLE && run_ticks > waves_from && run_ticks <= waves_to;
        if (inside && !waves) {
            waves = std::make_unique<VerilatedFstC>();
            top->trace(waves.get(), 99);
            waves->open(waves_path.c_str());
        }
        if (inside) waves->dump(2 * ticks + 1);
        if (!inside && waves) waves->close(), waves.reset(), waves_path.clear();
#endif
    }

    bool violated() {
        for (unsigned c = 0; c < CHANNELS; ++c)
            if (!channels[c].violation.empty()) {
                message = "channel " + std::to_string(c) + ": " + channels[c].violation + " (cycle " + std::to_string(run_ticks) + " of the run)";
                return true;
            }
        return false;
    }

    Result advance(uint64_t limit, uint64_t& passed) {
        const auto begin = Clock::now();
        const double used = wall_used_s;
        auto seconds = [&] { return used + std::chrono::duration<double>(Clock::now() - begin).count(); };
        Result result = PASSED;
        for (passed = 0; passed < limit && result == PASSED; ++passed) {
            tick();
            if (top->probe_state == IDLE) result = DONE;  // the state behind the clock edge
            else if (ticks - last_progress > no_progress_limit) result = STUCK;
            else if (ticks % WALL_CHECK_TICKS == 0) {
                if (violated()) result = VIOLATION;
                else if (wall_limit_s > 0 && seconds() > wall_limit_s) result = TOO_LONG;
            }
        }
        if (violated()) result = VIOLATION;
        if (result == STUCK) {
            last_progress = ticks;  // whoever goes on gets the same patience again
            message.clear();
            for (unsigned c = 0; c < CHANNELS; ++c)
                message += (c ? "; port " : "port ") + std::to_string(c) + ": " + channels[c].waiting();
        }
        wall_used_s = result == TOO_LONG ? 0 : seconds();
        return result;
    }

    // Wait for a common edge of both clocks and start the memories' time anew. So a run takes as many cycles, and finds
    // the memories' refreshes and delays, however often the host looked before.
    void align() {
        while (next_core % PORT_PERIOD) tick();
        while (next_port < next_core) port_edge(false);
        next_core = next_port = port_cycle = 0;
        for (unsigned c = 0; c < CHANNELS; ++c) channels[c].configure(timing, seed, c), channels[c].reset();
    }

    // AXI4-Lite: response code, or -1 if the kernel does not answer.
    int write(uint32_t offset, uint32_t value) {
        if (top->probe_state == IDLE) align();
        top->s_axi_control_awaddr = offset, top->s_axi_control_awvalid = 1;
        top->s_axi_control_wdata = value, top->s_axi_control_wstrb = 15, top->s_axi_control_wvalid = 1;
        top->s_axi_control_bready = 1;
        for (uint64_t i = 0; i < LITE_TICKS; ++i) {
            const bool address = top->s_axi_control_awready, data = top->s_axi_control_wready, answered = top->s_axi_control_bvalid;
            const int response = top->s_axi_control_bresp;
            tick();
            if (address) top->s_axi_control_awvalid = 0;
            if (data) top->s_axi_control_wvalid = 0;
            if (answered) {
                top->s_axi_control_bready = 0;
                return response;
            }
        }
        message = "the kernel does not answer a register write";
        return -1;
    }

    int read(uint32_t offset, uint32_t& value) {
        top->s_axi_control_araddr = offset, top->s_axi_control_arvalid = 1, top->s_axi_control_rready = 1;
        for (uint64_t i = 0; i < LITE_TICKS; ++i) {
            const bool address = top->s_axi_control_arready, answered = top->s_axi_control_rvalid;
            const int response = top->s_axi_control_rresp;
            value = top->s_axi_control_rdata;
            tick();
            if (address) top->s_axi_control_arvalid = 0;
            if (answered) {
                top->s_axi_control_rready = 0;
                return response;
            }
        }
        message = "the kernel does not answer a register read";
        return -1;
    }

    // Image file (copy on write), behind it fp16 NaN. Returns errno.
    int map(unsigned c, const char* path, uint64_t image_bytes, uint64_t channel_bytes) {
        unmap(c);
        const uint64_t page = sysconf(_SC_PAGESIZE), size = std::max(page, (channel_bytes + page - 1) / page * page);
        const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, access = PROT_READ | PROT_WRITE;
        void* memory = mmap(nullptr, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return errno;
        uint8_t* bytes = static_cast<uint8_t*>(memory);
        channels[c].memory = bytes, channels[c].bytes = channel_bytes, mapped[c] = size;
        const uint64_t image_size = (image_bytes + page - 1) / page * page;
        if (image_bytes) {
            const int file = open(path, O_RDONLY | O_CLOEXEC);
            if (file < 0) return errno;
            const bool failed = mmap(bytes, image_size, access, flags, file, 0) == MAP_FAILED;
            const int error = errno;
            close(file);
            if (failed) return error;
            for (uint64_t byte = image_bytes; byte < image_size; ++byte) bytes[byte] = byte % 2 ? 0x7E : 0x00;
        }
        // the same pages of NaN over and over: a page takes memory of its own only once it is written
        const int nan = nan_file();
        if (nan < 0) return errno;
        for (uint64_t byte = image_size; byte < size; byte += NAN_BYTES)
            if (mmap(bytes + byte, std::min(NAN_BYTES, size - byte), access, flags, nan, 0) == MAP_FAILED) return errno;
        return 0;
    }

    static int nan_file() {
        static const int file = [] {
            const int made = memfd_create("ringfly-nan", MFD_CLOEXEC);
            const std::vector<uint16_t> pattern(NAN_BYTES / 2, 0x7E00);
            if (made >= 0 && ::write(made, pattern.data(), NAN_BYTES) != ssize_t(NAN_BYTES)) return -1;
            return made;
        }();
        return file;
    }
};
}  // namespace

extern "C" {
Board* board_new() { return new Board; }
void board_delete(Board* board) { delete board; }
void board_reset(Board* board) { board->reset(); }
int board_map(Board* board, unsigned c, const char* path, uint64_t image_bytes, uint64_t channel_bytes) {
    return board->map(c, path, image_bytes, channel_bytes);
}
uint8_t* board_memory(Board* board, unsigned c) { return board->channels[c].memory; }
void board_base(Board* board, unsigned c, uint64_t address) { board->channels[c].base = address; }
void board_timing(Board* board, const MemoryConfig* timing, uint64_t seed) {
    board->timing = *timing, board->seed = seed;
    board->align();
}
void board_threads(Board* board, unsigned threads) { board->use_threads(threads); }
void board_limits(Board* board, uint64_t no_progress_ticks, double wall_s) {
    board->no_progress_limit = no_progress_ticks, board->wall_limit_s = wall_s;
}
int board_write(Board* board, uint32_t offset, const uint32_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        if (const int response = board->write(offset + 4 * i, words[i])) return response;
    return 0;
}
int board_read(Board* board, uint32_t offset, uint32_t* words, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        if (const int response = board->read(offset + 4 * i, words[i])) return response;
    return 0;
}
int board_advance(Board* board, uint64_t limit, uint64_t* passed) { return board->advance(limit, *passed); }
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
int board_trace(Board* board, const char* path, uint64_t from_cycle, uint64_t cycles) {
#if VM_TRACE
    board->waves_path = path, board->waves_from = from_cycle, board->waves_to = from_cycle + cycles;
    return 0;
#else
    (void)board, (void)path, (void)from_cycle, (void)cycles;
    return -1;
#endif
}
}
