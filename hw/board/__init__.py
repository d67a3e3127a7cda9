"""The board: kernel top, memory map, and the frozen objects that executors and compilers exchange."""
