"""PYNQ devices, kernel driver and xclbin files.

Nothing here imports pynq until a module that needs it (``sim_device``, ``gpt2_kernel``, ``session``) is imported.
"""
