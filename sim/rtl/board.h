// One verilated kernel with the memory behind its ports: clocks, counters, waves. Who decides when it works is elsewhere
// (harness.cpp for a board of its own, ring.h for boards in a ring).
// The generated header board_ports.h names the model, its channels and links, its widths and the periods of its clocks,
// whole numbers of one unit: exact, so that a run repeats.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>
#include "Vboard.h"
#include "blocks.h"
#include "board_ports.h"
#include "channel_memory.h"
#include "link_pins.h"
#include "memory_model.h"
#include "shared_work.h"
#if VM_TRACE
#include "verilated_fst_c.h"
#endif

enum State { IDLE = 0, RUN = 1, DRAIN = 2, RESET = 3 };
enum Result { PASSED = 0, DONE = 1, STUCK = 2, TOO_LONG = 3, VIOLATION = 4 };
constexpr uint64_t RESET_TICKS = 8, WALL_CHECK_TICKS = 8192;

using Channel = MemoryModel<AddressWord, StrobeWord, PORT_BYTES>;

class Ring;

class Board {
public:
    // A context for each model, since two threads evaluate them; all of them outlive all models.
    VerilatedContext context;
    std::vector<std::unique_ptr<VerilatedContext>> block_contexts;
    std::unique_ptr<Vboard> top;
    std::vector<std::unique_ptr<Vblock>> blocks;  // modules compiled apart, in the order of their instances
    ChannelMemory memories[CHANNELS];
    Channel channels[CHANNELS];
    LinkEnd links[2];  // of kernels that have links (LINKS of them)
    Ring* ring = nullptr;  // the ring that it is part of, if any
    uint64_t ticks = 0, run_ticks = 0, tiles = 0, refresh_stalls = 0, last_progress = 0;  // ticks of the core's clock
    bool link_clock = false;  // whether the clock of the links runs
    uint64_t ring_ticks = 0;  // ticks since it began to run
    uint64_t no_progress_limit = 20000;
    double wall_limit_s = 0, wall_used_s = 0;
    std::string message;

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
#define BIND(q)                                                                                                  \
    links[q].pins = {&top->link_##q##_clk, &top->link_##q##_up, &top->link_##q##_tx_tready,                      \
                     &top->link_##q##_tx_tvalid, &top->link_##q##_tx_tlast, top->link_##q##_tx_tdata.data(),     \
                     &top->link_##q##_tx_tkeep, &top->link_##q##_rx_tvalid, &top->link_##q##_rx_tlast,           \
                     top->link_##q##_rx_tdata.data(), &top->link_##q##_rx_tkeep};
        FOR_EACH_LINK(BIND)
#undef BIND
        reset();
    }

    ~Board() {
#if VM_TRACE
        if (waves_) waves_->close();
#endif
        shared_.reset();
        Verilated::threadContextp(&context);  // models take leave of the thread's context, which may be another board's
        top->final();
        for (auto& block : blocks) block->final();
    }

    bool idle() const { return top->probe_state == IDLE; }

    // While nothing else happens on this board: every reset finds the same phase of the clocks.
    void reset() {
        stop_link_clock();
        begin_reset();
        for (uint64_t i = 0; i < RESET_TICKS; ++i) edge(true, true, LINKS != 0);
        end_reset();
        next_core_ = next_port_ = next_link_ = 0, port_cycle_ = 0;  // all clocks rise together
        for (uint64_t i = 0; i < RESET_TICKS; ++i) tick();  // the reset crosses between the clocks
        settle_reset();
    }

    // The parts of a reset, for a caller that lets the clocks run himself.
    void begin_reset() {
        for (Channel& channel : channels) channel.reset();
        for (unsigned q = 0; q < LINKS; ++q) links[q].pins.clear();
        top->s_axi_control_awvalid = top->s_axi_control_wvalid = top->s_axi_control_bready = 0;
        top->s_axi_control_arvalid = top->s_axi_control_rready = 0;
        top->ap_rst_n = top->ap_rst_n_2 = 0;
    }
    void end_reset() { top->ap_rst_n = top->ap_rst_n_2 = 1; }
    void settle_reset() { state_ = IDLE, run_ticks = 0, last_progress = ticks, message.clear(); }

    // Share the rising edges of the blocks with a second thread; this one has the rest of the kernel, too.
    void use_threads(unsigned threads) {
        shared_.reset();
        if (threads > 1 && BLOCKS)
            shared_ = std::make_unique<SharedWork>(BLOCKS, [this](uint32_t i) { blocks[i]->clk = 1, blocks[i]->eval(); });
    }

    void set_memory(const MemoryConfig& timing, uint64_t seed) { timing_ = timing, seed_ = seed; }

    // Wait for a common edge of both clocks and start the memories' time anew. So a run takes as many cycles, and finds
    // the memories' refreshes and delays, however often the host looked before.
    void align() {
        while (next_core_ % PORT_PERIOD) tick();
        while (next_port_ < next_core_) edges(next_port_);
        next_core_ = next_port_ = 0;
        restart_memories();
    }

    // Only while nothing is under way between kernel and memory.
    void restart_memories() {
        port_cycle_ = 0;
        for (unsigned c = 0; c < CHANNELS; ++c) channels[c].configure(timing_, seed_, c), channels[c].reset();
    }

    // Let the links' clock run from the next edge of the core's on, which is at time `now` of the ring. What stands at the
    // links' inputs stays for that edge.
    void start_link_clock(uint64_t now) {
        link_clock = true, next_link_ = next_core_, link_time_ = now;
        ring_ticks = 0;
    }
    void stop_link_clock() { link_clock = false; }

    // One cycle of the core's clock, with the edges of the other clocks that fall into it.
    void tick() {
        const State now = State(top->probe_state);
        bool progress = now != state_ || top->probe_tile;
        if (now != IDLE) {
            if (state_ == IDLE) run_ticks = 0, tiles = 0, refresh_stalls = 0, wall_used_s = 0;
            ++run_ticks;
            tiles += now == RUN && top->probe_tile;
            if (now == RUN && !top->probe_tile && top->probe_stall == STALL_STREAM) refresh_stalls += waits_for_refresh();
        }
        if (now == RESET && state_ == DRAIN)
            for (Channel& channel : channels)
                if (!channel.idle() && channel.violation.empty())
                    channel.violation = "core reset while transfers were under way: " + channel.waiting();
        state_ = now;
        for (;;) {
            uint64_t first = std::min(next_core_, next_port_);
            if (link_clock) first = std::min(first, next_link_);
            const bool core = first == next_core_;
            progress |= edges(first);
            if (core) break;
        }
        if (progress) last_progress = ticks;
        trace();
        ++ticks;
        ++ring_ticks;
    }

    bool violated() {
        for (unsigned c = 0; c < CHANNELS; ++c)
            if (!channels[c].violation.empty()) {
                message = "channel " + std::to_string(c) + ": " + channels[c].violation + " (cycle " + std::to_string(run_ticks) + " of the run)";
                return true;
            }
        return false;
    }

    // What the memory ports wait for.
    std::string waiting() const {
        std::string text;
        for (unsigned c = 0; c < CHANNELS; ++c)
            text += (c ? "; port " : "port ") + std::to_string(c) + ": " + channels[c].waiting();
        return text;
    }

    int map(unsigned c, const char* path, uint64_t image_bytes, uint64_t channel_bytes) {
        const int error = memories[c].map(path, image_bytes, channel_bytes);
        channels[c].memory = memories[c].bytes(), channels[c].bytes = channels[c].memory ? channel_bytes : 0;
        return error;
    }

#if VM_TRACE
    void trace_run(const char* path, uint64_t from, uint64_t to) { waves_path_ = path, waves_from_ = from, waves_to_ = to; }
#endif

private:
    std::unique_ptr<SharedWork> shared_;
    uint64_t port_cycle_ = 0, next_core_ = 0, next_port_ = 0, next_link_ = 0;
    uint64_t link_time_ = 0;  // of the ring, at the next edge of the links' clock
    MemoryConfig timing_{};
    uint64_t seed_ = 0;
    State state_ = IDLE;
#if VM_TRACE
    std::unique_ptr<VerilatedFstC> waves_;
    std::string waves_path_;
    uint64_t waves_from_ = 0, waves_to_ = 0;
#endif

    // The rising edges at time `now`; whether anything moved on a memory port or a link.
    bool edges(uint64_t now) {
        const bool core = now == next_core_, port = now == next_port_, link = link_clock && now == next_link_;
        bool moved = false;
        if (port)
            for (Channel& channel : channels) moved |= channel.sample(port_cycle_);
        if (link)
            for (unsigned q = 0; q < LINKS; ++q) moved |= links[q].sample(link_time_);
        edge(core, port, link);
        if (port) {
            for (Channel& channel : channels) channel.apply();
            ++port_cycle_, next_port_ += PORT_PERIOD;
        }
        if (link) {
            link_time_ += LINK_PERIOD, next_link_ += LINK_PERIOD;
            for (unsigned q = 0; q < LINKS; ++q) links[q].apply(link_time_);
        }
        if (core) next_core_ += CORE_PERIOD;
        return moved;
    }

    // Rising edges of some clocks. The clocks that do not rise fall, so most edges take one evaluation.
    void edge(bool core, bool port, bool link) {
        if ((core && top->ap_clk) || (port && top->ap_clk_2) || (link && *links[0].pins.clk)) {
            if (core) clock_blocks(0), top->ap_clk = 0;
            if (port) top->ap_clk_2 = 0;
            if (link) clock_links(0);
            top->eval();
        }
        if (core) to_blocks(blocks, *top);  // what stood at their inputs before the edge
        else if (top->ap_clk) clock_blocks(0);
        top->ap_clk = core, top->ap_clk_2 = port;
        clock_links(link);
        if (core && shared_) shared_->start();
        top->eval();
        if (core) {
            if (shared_) shared_->finish();
            else clock_blocks(1);
            from_blocks(blocks, *top);
        }
    }

    void clock_blocks(uint8_t level) {
        for (auto& block : blocks) block->clk = level, block->eval();
    }

    void clock_links(uint8_t level) {
        for (unsigned q = 0; q < LINKS; ++q) *links[q].pins.clk = level;
    }

    // Whether a channel that has delivered least is late because of a refresh.
    bool waits_for_refresh() const {
        uint64_t least = channels[0].read_beats;
        for (const Channel& channel : channels) least = std::min(least, channel.read_beats);
        for (const Channel& channel : channels)
            if (channel.read_beats == least && channel.behind_refresh(port_cycle_)) return true;
        return false;
    }

    // State behind the clock edge, one sample a cycle.
    void trace() {
#if VM_TRACE
        if (waves_path_.empty()) return;
        const bool inside = state_ != IDLE && run_ticks > waves_from_ && run_ticks <= waves_to_;
        if (inside && !waves_) {
            waves_ = std::make_unique<VerilatedFstC>();
            top->trace(waves_.get(), 99);
            waves_->open(waves_path_.c_str());
        }
        if (inside) waves_->dump(2 * ticks + 1);
        if (!inside && waves_) waves_->close(), waves_.reset(), waves_path_.clear();
#endif
    }
};
