"""Text generation: a prompt through one of the executors, sampled or greedy, and judged by PyTorch."""
