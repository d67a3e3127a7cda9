// The banks and the data bus of one DRAM channel (an HBM pseudo-channel, a DDR4 channel): rows, timing rules, refresh.
// All times are cycles of the memory's clock. Commands are placed one after another, each at the first time that the
// rules allow, so nothing is stepped cycle by cycle.
#pragma once
#include <algorithm>
#include <cstdint>
#include "memory_config.h"

class DramBanks {
public:
    static constexpr unsigned MAX_BANKS = 16, MAX_GROUPS = 4;

    struct Placed {
        uint64_t time;  // of the column command
        uint32_t late;  // by how much refreshes have delayed it
    };

    uint64_t refreshes = 0, row_hits = 0, row_closed = 0, row_misses = 0, turnarounds = 0;

    // `phase`: time of the first refresh, below the refresh interval.
    void configure(const MemoryConfig& config, uint64_t phase) {
        config_ = config;
        phase_ = phase;
        group_mask_ = (1u << config.group_bits) - 1;
        find_runs();
        bits_[0] = config.bank_bit0, bits_[1] = config.bank_bit1;
        bits_[2] = config.bank_bit2, bits_[3] = config.bank_bit3;
    }

    void reset() {
        refreshes = row_hits = row_closed = row_misses = turnarounds = 0;
        for (Bank& bank : banks_) bank = Bank{};
        for (Bus& bus : buses_) bus = Bus{};
        for (uint64_t& time : group_activated_) time = NEVER;
        for (uint64_t& time : activated_) time = NEVER;
        activations_ = 0;
        refresh_at_ = config_.refresh_interval ? phase_ + EPOCH : ~0ull;
        late_ = 0, write_ = false;
    }

    // Times in here begin at EPOCH, so that "long ago" needs no sign.
    static constexpr uint64_t EPOCH = 1 << 16;

    // First time at which the column could be accessed if it were decided at `now`, and whether nothing but the bus
    // holds it up.
    uint64_t earliest(uint32_t column, bool write, uint64_t now, bool& at_once) const {
        const unsigned number = bank_of(column);
        const uint64_t ready = row_ready(banks_[number], number & group_mask_, column & config_.row_mask, now);
        const uint64_t bus = bus_free(number & group_mask_, write);
        at_once = ready <= std::max(bus, now);
        return on_grid(std::max({ready, bus, now}));
    }

    // Place a column access that was decided at `now`.
    Placed place(uint32_t column, bool write, uint64_t now) {
        const unsigned number = bank_of(column), group = number & group_mask_;
        const uint32_t row = column & config_.row_mask;
        Bank& bank = banks_[number];
        const uint64_t bus = bus_free(group, write);
        uint64_t time = column_time(bank, group, row, bus, now);
        if (time >= refresh_at_) {
            const uint64_t undelayed = time;
            while (time >= refresh_at_) {
                refresh(now);
                time = column_time(bank, group, row, bus, now);
            }
            late_ = std::min<uint64_t>(late_ + time - undelayed, 2 * config_.refresh_busy);
        } else if (late_) {
            const uint64_t idle = time - std::min(time, bus);
            late_ -= std::min<uint64_t>(late_, idle);
        }
        if (bank.open && bank.row == row) ++row_hits;
        else activate(bank, group, row, now);
        turnarounds += write != write_;
        write_ = write;
        buses_[write].last = buses_[write].group[group] = time;
        bank.precharge_from = std::max(bank.precharge_from, time + column_to_precharge(write));
        return {time, uint32_t(late_)};
    }

    // How many columns from this one on lie in one row of one bank, or alternate between two banks of two groups.
    unsigned run(uint32_t column) const { return run_columns_ - column % run_columns_; }

    // Place `count` more columns of a run behind `placed`, its latest one (and, if it alternates, the one before), as
    // place() would: at the rate of the bus. Returns false if a refresh comes before they are through, or if the bus is
    // not what holds them up.
    bool place_run(uint32_t column, unsigned count, bool write, Placed placed) {
        const uint64_t end = placed.time + uint64_t(count) * run_step_;
        if (!run_step_ || end >= refresh_at_) return false;
        for (unsigned next = 0; next < run_banks_; ++next) {  // a refresh may have closed the first of two
            const Bank& bank = banks_[bank_of(column + next)];
            if (!bank.open || bank.row != (column & config_.row_mask)) return false;
        }
        row_hits += count;
        buses_[write].last = end;
        for (unsigned back = 0; back < run_banks_ && back < count; ++back) {
            const unsigned number = bank_of(column + count - 1 - back);
            const uint64_t time = end - back * run_step_;
            buses_[write].group[number & group_mask_] = time;
            Bank& bank = banks_[number];
            bank.precharge_from = std::max(bank.precharge_from, time + column_to_precharge(write));
        }
        return true;
    }
    unsigned run_banks() const { return run_banks_; }
    unsigned run_step() const { return run_step_; }

    // What a beat that is not yet placed would be delayed by.
    uint64_t late() const { return late_; }

private:
    static constexpr uint64_t NEVER = 0;

    struct Bank {
        bool open = false;
        uint32_t row = 0;
        uint64_t column_from = 0, precharge_from = 0, activate_from = 0;
    };
    struct Bus {  // last column commands of one direction
        uint64_t last = NEVER, group[MAX_GROUPS] = {};
    };

    unsigned bank_of(uint32_t column) const {
        const uint32_t group = (column >> bits_[0] & 1) | (column >> bits_[1] & 1) << 1;
        return group | (column >> bits_[2] & 1) << 2 | (column >> bits_[3] & 1) << 3;
    }
    uint64_t on_grid(uint64_t time) const {
        return (time + config_.command_grid - 1) & ~uint64_t(config_.command_grid - 1);
    }
    uint64_t column_to_precharge(bool write) const {
        return write ? config_.write_to_precharge : config_.read_to_precharge;
    }

    // The low address bits that are neither row nor bank, or bit 0 of a bank group below them.
    void find_runs() {
        const uint32_t groups = 1u << config_.bank_bit0 | 1u << config_.bank_bit1;
        const uint32_t banks = groups | 1u << config_.bank_bit2 | 1u << config_.bank_bit3;
        const bool alternates = config_.bank_bit0 == 0;
        const uint32_t other = (banks | config_.row_mask) & ~uint32_t(alternates);
        run_columns_ = other & -other;
        run_banks_ = alternates ? 2 : 1;
        run_step_ = alternates ? config_.ccd_short : std::max(config_.ccd_short, config_.ccd_long);
        if (run_step_ % config_.command_grid || (alternates && 2 * config_.ccd_short < config_.ccd_long)) run_step_ = 0;
    }

    uint64_t bus_free(unsigned group, bool write) const {
        const Bus& same = buses_[write];
        const Bus& other = buses_[!write];
        const uint64_t own = std::max(same.last + config_.ccd_short, same.group[group] + config_.ccd_long);
        if (write) return std::max(own, other.last + config_.read_to_write);
        const uint64_t turned = other.last + config_.write_to_read_short;
        return std::max({own, turned, other.group[group] + config_.write_to_read_long});
    }

    uint64_t activation(const Bank& bank, unsigned group, uint64_t now) const {
        uint64_t time = bank.open ? std::max(now, bank.precharge_from) + config_.rp : now;
        time = std::max({time, bank.activate_from, activated_[(activations_ - 1) % 4] + config_.rrd_short,
                         group_activated_[group] + config_.rrd_long, activated_[activations_ % 4] + config_.faw});
        return on_grid(time);
    }

    uint64_t row_ready(const Bank& bank, unsigned group, uint32_t row, uint64_t now) const {
        return bank.open && bank.row == row ? bank.column_from : activation(bank, group, now) + config_.rcd;
    }

    uint64_t column_time(const Bank& bank, unsigned group, uint32_t row, uint64_t bus, uint64_t now) const {
        return on_grid(std::max({row_ready(bank, group, row, now), bus, now}));
    }

    void activate(Bank& bank, unsigned group, uint32_t row, uint64_t now) {
        const uint64_t time = activation(bank, group, now);
        ++(bank.open ? row_misses : row_closed);
        bank = {true, row, time + config_.rcd, time + config_.ras, time + config_.rc};
        group_activated_[group] = activated_[activations_++ % 4] = time;
    }

    // All banks are closed, then refreshed together.
    void refresh(uint64_t now) {
        if (now > refresh_at_ + config_.refresh_interval) {  // the ones while nothing happened
            const uint64_t missed = (now - refresh_at_) / config_.refresh_interval;
            refreshes += missed, refresh_at_ += missed * config_.refresh_interval;
        }
        uint64_t start = refresh_at_;
        for (const Bank& bank : banks_)
            if (bank.open) start = std::max(start, std::max(bank.precharge_from, refresh_at_) + config_.rp);
        for (Bank& bank : banks_) bank.open = false, bank.activate_from = start + config_.refresh_busy;
        ++refreshes;
        refresh_at_ += config_.refresh_interval;
    }

    MemoryConfig config_{};
    uint64_t phase_ = 0;
    unsigned group_mask_ = 0;
    uint32_t run_columns_ = 1, run_banks_ = 1, run_step_ = 0;
    uint32_t bits_[4] = {};
    Bank banks_[MAX_BANKS];
    Bus buses_[2];
    uint64_t group_activated_[MAX_GROUPS] = {}, activated_[4] = {};
    uint32_t activations_ = 0;
    uint64_t refresh_at_ = ~0ull, late_ = 0;
    bool write_ = false;
};
