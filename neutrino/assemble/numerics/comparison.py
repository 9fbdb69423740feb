"""Whether a twin's machine code rounds where its original's does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from neutrino.assemble.builds import OriginalBuild, TwinBuild
from neutrino.assemble.numerics.explicit_fma import ExplicitTwins
from neutrino.assemble.numerics.proof import NumericsProof
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.sass.arithmetic import compare, compare_kinds, count_arithmetic
from neutrino.sass.cubin import CubinKernel


class ArithmeticComparison:
    """Compares the arithmetic of twins' machine code with that of their originals.

    assembler: its name. arch: of the code. explicit: the twins with explicit FMA, if any.
    """

    def __init__(self, assembler: str, arch: str, explicit: ExplicitTwins | None = None) -> None:
        self._assembler = assembler
        self._arch = arch
        self._explicit = explicit
        self._counts: dict[bytes, dict[str, int]] = {}

    def refusal(self, twin: TwinKernel, original: OriginalBuild, built: TwinBuild) -> str | None:
        """Why a twin is not proven to compute the same as its original; None if it is."""
        difference = self._difference(twin, original, built)
        seen = self._explicit.codes.get(twin.name) if self._explicit is not None else None
        if seen is not None:
            after = built.kernels[twin.twin_name]
            as_seen = count_arithmetic(seen, self._arch) == self._count(after)
            if as_seen:
                return self._unlike(twin, original)
            return difference or "the twin's code is not the code that was compared"
        if difference is not None and not twin.contractible:
            # If nothing can be fused, code may be repeated more or less often, provided that the assembler makes the
            # code that runs from the original's text.
            return self._unlike(twin, original) or self._other_kinds(twin, original, built)
        if difference is None and self._explicit is None and twin.loose is not None:
            return f"equal counts do not show which product {twin.loose!r} is fused with"
        return difference

    def manifest(self, twin: TwinKernel, original: OriginalBuild, built: TwinBuild) -> dict[str, Any]:
        """What the manifest holds under ``numerics`` of a twin that was not refused."""
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        return {
            "original": self._count(before), "twin": self._count(after), "own": dict(twin.own_arithmetic),
            "contractible": twin.contractible, "proof": self._proof(twin, original, built).value,
        }  # fmt: skip

    def _unlike(self, twin: TwinKernel, original: OriginalBuild) -> str | None:
        """How the original's arithmetic differs from that of its text, assembled here; None if it does not."""
        if original.rebuilt is original.machine:
            return None
        rebuilt = original.rebuilt.kernels.get(twin.name)
        if rebuilt is None:
            return f"{self._assembler} emits no code for the original"
        differing = compare(self._count(original.machine.kernels[twin.name]), self._count(rebuilt), {})
        return differing and f"in the original's text as {self._assembler} assembles it: {differing}"

    def _difference(self, twin: TwinKernel, original: OriginalBuild, built: TwinBuild) -> str | None:
        """Where the counts of fused and unfused instructions differ between original and twin; None if nowhere."""
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        # In linked code functions have separate code; otherwise their code is part of the kernel's.
        copies = [copy for copy in twin.all_copies if copy.copy_name in built.functions]
        own = Counter(twin.own_arithmetic)
        for copy in copies:
            own.subtract(copy.own_arithmetic)
        difference = compare(self._count(before), self._count(after), own)
        if difference is not None:
            return difference
        # A function that only one of them calls is inlined in the other, whose count shows it.
        called: dict[str, tuple[str, Mapping[str, int]]] = {name: (name, {}) for name in twin.calls}
        called |= {copy.name: (copy.copy_name, copy.own_arithmetic) for copy in copies}
        for name, (built_name, own_in_it) in sorted(called.items()):
            if name not in original.machine.functions or built_name not in built.functions:
                continue
            difference = compare(
                count_arithmetic(original.machine.functions[name], self._arch),
                count_arithmetic(built.functions[built_name], self._arch),
                own_in_it,
            )
            if difference is not None:
                return f"in the called function {name}: {difference}"
        return None

    def _other_kinds(self, twin: TwinKernel, original: OriginalBuild, built: TwinBuild) -> str | None:
        """Kinds of arithmetic that the machine code of only one of the two has, whatever the text implies."""
        if twin.calls:
            return None  # they may be inlined in one of the two
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        return compare_kinds(self._count(before), self._count(after), twin.own_arithmetic)

    def _proof(self, twin: TwinKernel, original: OriginalBuild, built: TwinBuild) -> NumericsProof:
        """What proves that an accepted twin computes the same as its original."""
        if self._explicit is not None:
            return NumericsProof.LINES if twin.name in self._explicit.codes else NumericsProof.PINNED
        return NumericsProof.COUNTS if self._difference(twin, original, built) is None else NumericsProof.NO_PAIR

    def _count(self, kernel: CubinKernel) -> dict[str, int]:
        # Needed by each attempt at a twin, and by the manifest.
        if kernel.code not in self._counts:
            self._counts[kernel.code] = count_arithmetic(kernel.code, self._arch)
        return self._counts[kernel.code]
