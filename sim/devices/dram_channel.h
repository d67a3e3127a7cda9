// One DRAM channel with its controller, as its memory port sees it: commands arrive, are put into an order, and their
// columns are placed on the data bus. Nothing is stepped: every command is decided once, at its time, from what had
// arrived by then. All times are cycles of the memory's clock.
#pragma once
#include <algorithm>
#include <cstdint>
#include "delays.h"
#include "dram_bank.h"
#include "memory_config.h"

class DramChannel {
public:
    static constexpr unsigned MAX_COMMANDS = 128;  // per direction, not answered; a power of two
    static constexpr unsigned MAX_COLUMNS = 2048;  // of reads, not taken; a power of two
    static constexpr unsigned MAX_WRITES = 64;     // bursts of the kernel, not answered; a power of two
    static constexpr unsigned MAX_QUEUE = 64;

    struct Write {
        unsigned commands;  // not yet performed
        uint64_t done;
    };

    DramBanks banks;

    void configure(const MemoryConfig& config, uint64_t seed, unsigned channel) {
        config_ = config;
        const uint64_t draw = Random(stream_seed(seed, channel, 6)).next();
        banks.configure(config, config.refresh_interval ? draw % config.refresh_interval : 0);
    }

    void reset() {
        banks.reset();
        for (Direction& direction : directions_) direction.reset();
        columns_in_ = columns_out_ = writes_in_ = 0;
        arrived_ = decided_ = 0, order_ = issued_ = 0;
        for (uint64_t& time : left_queue_) time = 0;
        waiting_ = queued_ = 0;
        write_ = false;
    }

    // A read command whose address is at the memory port at `time` (never earlier than those before).
    void read(uint64_t time, uint32_t column, unsigned count) {
        push(false, time, column, count, columns_in_);
        for (unsigned i = 0; i < count; ++i) columns_[columns_in_++ % MAX_COLUMNS] = {};
    }

    // A burst of writes; returns its number, by which its commands and its answer are named.
    unsigned open_write() {
        writes_[writes_in_ % MAX_WRITES] = {0, 0};
        return writes_in_++;
    }
    // A write command of that burst whose data are complete at the memory port at `time`.
    void write(uint64_t time, uint32_t column, unsigned count, unsigned burst) {
        Write& write = writes_[burst % MAX_WRITES];
        ++write.commands;
        write.done = std::max(write.done, time + DramBanks::EPOCH + config_.response_delay);
        push(true, time, column, count, burst);
    }
    // Whether all that was written in the burst until now is performed, and when it may be answered.
    bool written(unsigned burst, uint64_t& time) const {
        const Write& write = writes_[burst % MAX_WRITES];
        time = write.done - DramBanks::EPOCH;
        return !write.commands;
    }

    // Decide all that falls to times up to `known`. What reaches the memory port until then must have been told.
    void advance(uint64_t known) {
        if (!waiting_) return;
        known += DramBanks::EPOCH + config_.address_delay;
        while (waiting_) {
            uint64_t now = std::max(decided_, left_queue_[issued_ % config_.queue_commands]);
            if (!queued_) now = std::max(now, next_arrival());
            if (now > known) return;
            admit(now);
            issue(choose(now), now);
        }
    }

    // Data of the oldest column that was not taken: whether their time is known, when they are at the memory port, and
    // by how much refreshes have delayed them.
    bool data(uint64_t& time, uint32_t& late) const {
        const Column& column = columns_[columns_out_ % MAX_COLUMNS];
        if (columns_out_ == columns_in_ || !column.ready) return false;
        time = column.ready - DramBanks::EPOCH, late = column.late;
        return true;
    }
    void take() { ++columns_out_; }

    // Delay by refresh of what is not decided yet.
    uint64_t late() const { return banks.late(); }

private:
    struct Column {
        uint64_t ready : 48, late : 16;
    };
    struct Command {
        uint64_t arrival;
        uint64_t order;        // among all commands of the port
        uint32_t column, slot; // slot: its first column in columns_, or its write
        uint32_t after;        // commands of the other direction, by count, that must be issued before
        uint16_t count;
        bool issued;
    };
    struct Direction {
        Command commands[MAX_COMMANDS];
        uint32_t oldest, admitted, end;  // counts: all before are issued, seen by the controller, arrived
        uint32_t queued;                 // seen and not issued
        uint32_t passed, skipped;        // commands that went before the oldest: of the other direction, of its own

        void reset() { oldest = admitted = end = queued = passed = skipped = 0; }
        Command& at(uint32_t number) { return commands[number % MAX_COMMANDS]; }
        const Command& at(uint32_t number) const { return commands[number % MAX_COMMANDS]; }
    };

    void push(bool write, uint64_t time, uint32_t column, unsigned count, uint32_t slot) {
        Direction& own = directions_[write];
        const Direction& other = directions_[!write];
        arrived_ = std::max(arrived_, time + DramBanks::EPOCH + config_.address_delay);
        uint32_t after = 0;
        for (uint32_t number = other.oldest; number != other.end; ++number) {
            const Command& earlier = other.at(number);
            if (earlier.column < column + count && column < earlier.column + earlier.count) after = number + 1;
        }
        own.at(own.end++) = {arrived_, order_++, column, slot, after, uint16_t(count), false};
        ++waiting_;
    }

    // The direction whose next command not yet seen is the older one.
    bool older_unseen() const {
        const Direction &read = directions_[0], &write = directions_[1];
        if (write.admitted == write.end) return false;
        return read.admitted == read.end || write.at(write.admitted).order < read.at(read.admitted).order;
    }
    uint64_t next_arrival() const {
        const Direction& direction = directions_[older_unseen()];
        return direction.at(direction.admitted).arrival;
    }
    void admit(uint64_t now) {
        const unsigned places = std::max(config_.reorder_commands, 1u);
        while (queued_ < places && queued_ < waiting_ && next_arrival() <= now) {
            Direction& direction = directions_[older_unseen()];
            ++direction.admitted, ++direction.queued, ++queued_;
        }
    }

    struct Choice {
        bool write;
        uint32_t number;
    };

    // Stay with the direction of the last command while it has commands, unless the oldest of the other has waited long
    // enough. In a direction the oldest goes first, unless it would keep the bus waiting and a newer one would not so
    // long.
    Choice choose(uint64_t now) const {
        bool write = write_;
        const Direction& other = directions_[!write];
        if (!directions_[write].queued || (other.queued && other.passed >= config_.age_limit)) write = !write;
        uint32_t number;
        if (!best(write, now, number)) best(write = !write, now, number);
        return {write, number};
    }

    bool best(bool write, uint64_t now, uint32_t& chosen) const {
        const Direction &own = directions_[write], &other = directions_[!write];
        uint64_t soonest = ~0ull;
        for (uint32_t number = own.oldest; number != own.admitted; ++number) {
            const Command& command = own.at(number);
            if (command.issued || command.after > other.oldest) continue;
            bool at_once;
            const uint64_t time = banks.earliest(command.column, write, now, at_once);
            if (time < soonest) soonest = time, chosen = number;
            if (at_once || (number == own.oldest && own.skipped >= config_.age_limit)) break;
        }
        return soonest != ~0ull;
    }

    void issue(Choice choice, uint64_t now) {
        Direction &own = directions_[choice.write], &other = directions_[!choice.write];
        Command& command = own.at(choice.number);
        if (other.queued && other.at(other.oldest).order < command.order) ++other.passed;
        own.passed = 0;
        if (choice.number != own.oldest) ++own.skipped;
        DramBanks::Placed placed{};
        for (unsigned i = 0; i < command.count;) {
            const unsigned run = std::min<unsigned>(banks.run(command.column + i), command.count - i);
            const unsigned first = std::min(run, banks.run_banks());
            for (unsigned j = 0; j < first; ++j, ++i) {
                placed = banks.place(command.column + i, choice.write, now);
                if (!choice.write) set_data(command.slot + i, placed);
            }
            const unsigned rest = run - first;
            if (!rest || !banks.place_run(command.column + i, rest, choice.write, placed)) continue;
            for (unsigned j = 0; j < rest; ++j, ++i) {
                placed.time += banks.run_step();
                if (!choice.write) set_data(command.slot + i, placed);
            }
        }
        if (choice.write) {
            Write& write = writes_[command.slot % MAX_WRITES];
            --write.commands;
            write.done = std::max(write.done, placed.time + config_.write_done);
        }
        command.issued = true;
        --own.queued, --queued_, --waiting_;
        if (choice.number == own.oldest) {
            own.skipped = 0;
            while (own.oldest != own.admitted && own.at(own.oldest).issued) ++own.oldest;
        }
        left_queue_[issued_++ % config_.queue_commands] = placed.time;
        decided_ = now, write_ = choice.write;
    }

    void set_data(uint32_t slot, DramBanks::Placed placed) {
        columns_[slot % MAX_COLUMNS] = {placed.time + config_.data_delay, std::min(placed.late, 65535u)};
    }

    MemoryConfig config_{};
    Direction directions_[2];  // reads, writes
    Column columns_[MAX_COLUMNS];
    Write writes_[MAX_WRITES];
    uint32_t columns_in_ = 0, columns_out_ = 0, writes_in_ = 0;
    uint64_t arrived_ = 0, decided_ = 0, order_ = 0, left_queue_[MAX_QUEUE] = {};
    uint32_t issued_ = 0, waiting_ = 0, queued_ = 0;  // waiting: not issued; queued: of these, seen by the controller
    bool write_ = false;                              // direction of the last command
};
