// Pieces of work that two threads share, some microseconds in all, once every clock cycle.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

// Each piece is taken by whoever comes first. So a second thread that the system has put aside costs nothing but its help:
// the caller does all that is not begun, and waits only for a piece that is.
class SharedWork {
public:
    SharedWork(uint32_t pieces, std::function<void(uint32_t)> work)
        : pieces_(pieces), work_(std::move(work)), next_(pieces), thread_([this] { help(); }) {}

    ~SharedWork() {
        stop_ = true;
        round_.fetch_add(1);
        round_.notify_one();
        thread_.join();
    }

    // From here on the second thread may work.
    void start() {
        finished_.store(0, std::memory_order_relaxed);
        next_.store(0, std::memory_order_release);
        round_.fetch_add(1, std::memory_order_release);
        round_.notify_one();
    }

    // Do what is left and return when all is done. It cannot hang: what is not done then is being done.
    void finish() {
        take();
        while (finished_.load(std::memory_order_acquire) != pieces_) {}
    }

private:
    static constexpr unsigned SPINS = 50000;  // then sleep until the next round

    void take() {
        while (next_.load(std::memory_order_acquire) < pieces_) {
            const uint32_t piece = next_.fetch_add(1, std::memory_order_acq_rel);
            if (piece >= pieces_) return;
            work_(piece);
            finished_.fetch_add(1, std::memory_order_release);
        }
    }

    void help() {
        for (uint32_t seen = 0; !stop_; seen = round_.load(std::memory_order_acquire)) {
            take();
            for (unsigned spins = 0; round_.load(std::memory_order_acquire) == seen && spins < SPINS; ++spins) {}
            round_.wait(seen, std::memory_order_acquire);
        }
    }

    const uint32_t pieces_;
    const std::function<void(uint32_t)> work_;
    std::atomic<uint32_t> next_, finished_{0}, round_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};
