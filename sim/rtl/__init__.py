"""Gateware in software: components and boards compiled by Verilator."""
