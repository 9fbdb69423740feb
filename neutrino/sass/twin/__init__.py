"""Twins of kernels that ship as machine code: one kernel cut out of a cubin, its code made longer by trampolines.

No command makes one yet: ``docs/machine-code.md`` says what was shown of them, and on which GPU. In order:
``cutting`` gives a cubin of one kernel, ``growing`` the same with more code, registers and parameters, ``trampolines``
the code. Whatever is not known refuses the kernel by name, as a MachineCodeError.
"""
