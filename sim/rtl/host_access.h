// The host's AXI4-Lite master: one access at a time.
#pragma once
#include <cstdint>
#include "board.h"

constexpr uint64_t LITE_TICKS = 1000;  // then the kernel counts as dead

// `tick` lets the board work for one cycle. Returns the response code, or -1 if the kernel does not answer.
template <class Tick>
int host_write(Board& board, uint32_t offset, uint32_t value, Tick tick) {
    Vboard& top = *board.top;
    top.s_axi_control_awaddr = offset, top.s_axi_control_awvalid = 1;
    top.s_axi_control_wdata = value, top.s_axi_control_wstrb = 15, top.s_axi_control_wvalid = 1;
    top.s_axi_control_bready = 1;
    for (uint64_t i = 0; i < LITE_TICKS; ++i) {
        const bool address = top.s_axi_control_awready, data = top.s_axi_control_wready;
        const bool answered = top.s_axi_control_bvalid;
        const int response = top.s_axi_control_bresp;
        tick();
        if (address) top.s_axi_control_awvalid = 0;
        if (data) top.s_axi_control_wvalid = 0;
        if (answered) {
            top.s_axi_control_bready = 0;
            return response;
        }
    }
    board.message = "the kernel does not answer a register write";
    return -1;
}

template <class Tick>
int host_read(Board& board, uint32_t offset, uint32_t& value, Tick tick) {
    Vboard& top = *board.top;
    top.s_axi_control_araddr = offset, top.s_axi_control_arvalid = 1, top.s_axi_control_rready = 1;
    for (uint64_t i = 0; i < LITE_TICKS; ++i) {
        const bool address = top.s_axi_control_arready, answered = top.s_axi_control_rvalid;
        const int response = top.s_axi_control_rresp;
        value = top.s_axi_control_rdata;
        tick();
        if (address) top.s_axi_control_arvalid = 0;
        if (answered) {
            top.s_axi_control_rready = 0;
            return response;
        }
    }
    board.message = "the kernel does not answer a register read";
    return -1;
}
