"""AMD's machine code on the CPU: text that LLVM's disassembler prints, executed wave by wave.

It judges the rewriting of AMD's code, so it imports nothing of Neutrino but itself and the errors. It is not a GPU: it
sees no timing, and no wait states between instructions. What it does not know raises ``UnknownInstructionError``.
"""
