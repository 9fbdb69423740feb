"""The instruction set: tables of instructions and what one instruction is."""
