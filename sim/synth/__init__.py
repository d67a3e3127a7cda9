"""Area and logic depth of gateware without a vendor tool: yosys synthesis unit by unit (docs/synth.md)."""
