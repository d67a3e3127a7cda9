// Small containers of the timing model: a queue of fixed size, and the level of a queue in hardware.
#pragma once
#include <cstdint>
#include <vector>

namespace timing {

// First in, first out; grows when it is full, so it has no limit of its own.
template <class Item>
class Queue {
public:
    bool empty() const { return head_ == tail_; }
    uint64_t size() const { return tail_ - head_; }
    Item& front() { return items_[head_ & (items_.size() - 1)]; }
    const Item& front() const { return items_[head_ & (items_.size() - 1)]; }
    const Item& at(uint64_t index) const { return items_[(head_ + index) & (items_.size() - 1)]; }
    void pop() { ++head_; }
    void push(const Item& item) {
        if (size() == items_.size()) grow();
        items_[tail_++ & (items_.size() - 1)] = item;
    }

private:
    void grow() {
        std::vector<Item> larger(2 * items_.size());
        for (uint64_t i = head_; i != tail_; ++i) larger[i & (larger.size() - 1)] = items_[i & (items_.size() - 1)];
        items_.swap(larger);
    }

    std::vector<Item> items_ = std::vector<Item>(16);
    uint64_t head_ = 0, tail_ = 0;
};

// Pointer of an asynchronous FIFO as the other clock domain sees it: two flip-flops of the reading domain. Gray coding
// makes the pair behave like this on counts that never wrap.
struct Synchronized {
    uint64_t first = 0, value = 0;
    void clock(uint64_t source) { value = first, first = source; }
};

}  // namespace timing
