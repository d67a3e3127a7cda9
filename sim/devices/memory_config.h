// Everything that the timing of one memory port depends on, as plain numbers. Python fills it in; memory_config.py
// reads the names from here, so this list is the only description of the layout.
#pragma once
#include <cstdint>

enum MemoryKind : uint32_t { MEMORY_DELAYS = 0, MEMORY_HBM = 1, MEMORY_DDR = 2 };

// clang-format off
#define MEMORY_CONFIG_FIELDS(X) \
    X(kind)                  /* a MemoryKind */ \
    X(port_mhz)              /* clock of the kernel's port */ \
    X(port_bytes)            /* width of the kernel's port */ \
    /* kind delays, in port cycles; see delays.h */ \
    X(read_min) X(read_max) X(write_min) X(write_max) \
    X(gap_permille) X(gap_max) \
    X(stall_permille) X(stall_max) \
    X(early_permille) \
    /* kinds hbm and ddr: between kernel and memory port */ \
    X(converter_cycles)      /* width and clock converter, port cycles each way */ \
    X(burst_columns)         /* longest burst of the memory port, in column accesses */ \
    X(reads_outstanding)     /* read and write transactions that the memory port takes */ \
    X(writes_outstanding) \
    X(port_period)           /* memory cycles between addresses, or between beats, of the memory port */ \
    /* controller, in cycles of the memory's clock from here on */ \
    X(memory_mhz) \
    X(address_delay)         /* address at the memory port to first possible command */ \
    X(data_delay)            /* column command of a read to its data at the memory port */ \
    X(response_delay)        /* write accepted at the memory port to its response */ \
    X(queue_commands)        /* commands whose order is fixed and whose rows are opened ahead */ \
    X(reorder_commands)      /* commands in front of them among which the order is chosen; 0: in order */ \
    X(age_limit)             /* newer commands that may pass one */ \
    X(command_grid)          /* activations and column commands start at multiples of this */ \
    /* DRAM */ \
    X(column_bytes)          /* bytes of one column access */ \
    X(ccd_short) X(ccd_long) /* column to column: other bank group, same one */ \
    X(rcd) X(rp) X(ras) X(rc) \
    X(rrd_short) X(rrd_long) X(faw) \
    X(read_to_precharge) X(write_to_precharge) \
    X(read_to_write) \
    X(write_to_read_short) X(write_to_read_long) \
    X(write_done)            /* column command of a write to the end of its data */ \
    X(refresh_interval)      /* 0: no refresh */ \
    X(refresh_busy) \
    /* address of a column access (byte offset / column_bytes): bits of bank group and bank, row mask */ \
    X(group_bits)            /* how many of the bank bits, from bank_bit0 on, name the group */ \
    X(bank_bit0) X(bank_bit1) X(bank_bit2) X(bank_bit3) \
    X(row_mask)
// clang-format on

struct MemoryConfig {
#define MEMORY_CONFIG_FIELD(name) uint32_t name;
    MEMORY_CONFIG_FIELDS(MEMORY_CONFIG_FIELD)
#undef MEMORY_CONFIG_FIELD
};
