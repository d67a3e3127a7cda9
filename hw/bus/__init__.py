"""Bus signatures (AXI4, AXI-Lite), register maps; the protocol rules are numbered in docs/protocol.md."""
