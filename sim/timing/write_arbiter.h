// The turn of two writers at the memory ports (hw/board/write_arbiter.py).
#pragma once

namespace timing {

// The urgent one first; a patient command that was shown once stays until it is taken.
class WriteArbiter {
public:
    // Whether the urgent writer has this cycle.
    bool urgent(bool urgent_valid) const { return urgent_valid && !shown_; }
    void clock(bool urgent_turn, bool patient_valid, bool ready) {
        if (!urgent_turn) shown_ = patient_valid && !ready;
    }

private:
    bool shown_ = false;
};

}  // namespace timing
