"""Comparisons: gateware with seeded faults against the checks that must notice them."""
