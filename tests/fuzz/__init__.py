"""Fuzzing of what reads bytes that anyone may send: `make fuzz`."""
