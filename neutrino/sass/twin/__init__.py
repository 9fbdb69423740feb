"""Twins of kernels that ship as machine code: one kernel cut out of a cubin, its code made longer by trampolines.

``--machine-code`` makes them: ``docs/machine-code.md`` says what was shown of them, and on which GPU. In order:
``cutting`` gives a cubin of one kernel, ``growing`` the same with more code, registers and parameters, ``trampolines``
the code; ``probed`` puts a probe's code, as ``probe_code`` lifts it from what ``ptxas`` assembled, to the entry and the
exits. Whatever is not known refuses the kernel by name, as a MachineCodeError.
"""
