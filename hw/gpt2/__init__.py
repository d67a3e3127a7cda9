"""The GPT-2 dataflow core: instruction set, sequencer, matrix unit, drain unit, softmax, key/value path."""
