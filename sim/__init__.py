"""Simulators: gateware compiled by Verilator, the fast executors of core programs, device and cluster models."""
