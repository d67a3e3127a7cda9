"""Links between boards: frames, the ports of a ring node, and the node."""
