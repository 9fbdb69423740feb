"""AMD's machine code on the CPU: text that LLVM's disassembler prints, executed wave by wave.

It judges the rewriting of AMD's code, so it imports nothing of Neutrino but itself and the errors. It is not a GPU: it
sees no timing, and no wait states between instructions. What it does not know raises ``UnknownInstructionError``.

    memory = Memory()
    loaded = LoadedObject(data, memory, disassemble)
    buffer = memory.put(numpy_array)
    kernel = loaded.kernels[name]
    loaded.run(name, grid, block, kernel.pack([buffer.to_bytes(8, "little"), ...]), seed=1, checks=True)
    memory.read(buffer, size)

``disassemble`` is the caller's. With ``checks``, registers that are used before the wait for them, or that the
descriptor does not give to the wave, are faults; ``seed`` chooses the order in which waves run. ``Trace`` notes what
they execute and access.
"""
