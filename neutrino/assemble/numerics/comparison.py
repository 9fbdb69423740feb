"""Whether a twin's machine code rounds where its original's does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from neutrino.assemble.built import Built, Original
from neutrino.assemble.numerics.explicit_fma import ExplicitTwins
from neutrino.assemble.numerics.proof import NumericsProof
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.sass.arithmetic import compare, compare_kinds, count_arithmetic
from neutrino.sass.cubin import CubinKernel


class ArithmeticComparison:
    """Holds the arithmetic of twins' machine code against that of their originals'.

    assembler: its name. arch: of the code. explicit: twins whose text says what is fused; None when none does.
    """

    def __init__(self, assembler: str, arch: str, explicit: ExplicitTwins | None = None) -> None:
        self._assembler = assembler
        self._arch = arch
        self._explicit = explicit
        self._counts: dict[bytes, dict[str, int]] = {}

    def refusal(self, twin: TwinKernel, original: Original, built: Built) -> str | None:
        """Why a twin is not shown to compute as its original; None when it is."""
        difference = self._difference(twin, original, built)
        seen = self._explicit.codes.get(twin.name) if self._explicit is not None else None
        if seen is not None:
            after = built.kernels[twin.twin_name]
            as_seen = count_arithmetic(seen, self._arch) == self._count(after)
            return self._unlike(twin, original) if as_seen else difference or "not the code that was compared"
        if difference is not None and not twin.contractible:
            # Where nothing can be fused, code may be there more or less often, if the assembler is known to make of the
            # original's text what runs.
            return self._unlike(twin, original) or self._other_kinds(twin, original, built)
        if difference is None and self._explicit is None and twin.loose is not None:
            return f"equal numbers do not show with which product {twin.loose!r} is fused"
        return difference

    def manifest(self, twin: TwinKernel, original: Original, built: Built) -> dict[str, Any]:
        """What the manifest holds under ``numerics`` of a twin that was not refused."""
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        return {
            "original": self._count(before), "twin": self._count(after), "own": dict(twin.own_arithmetic),
            "contractible": twin.contractible, "proof": self._proof(twin, original, built).value,
        }  # fmt: skip

    def _unlike(self, twin: TwinKernel, original: Original) -> str | None:
        """What arithmetic of the original's machine code its text, assembled here, has otherwise; None when nothing."""
        if original.rebuilt is original.machine:
            return None
        rebuilt = original.rebuilt.kernels.get(twin.name)
        if rebuilt is None:
            return f"{self._assembler} leaves the original out"
        differing = compare(self._count(original.machine.kernels[twin.name]), self._count(rebuilt), {})
        return differing and f"in the original's text as {self._assembler} assembles it: {differing}"

    def _difference(self, twin: TwinKernel, original: Original, built: Built) -> str | None:
        """Where original and twin hold other numbers of fused and unfused instructions; None when nowhere."""
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        # Functions with code of their own, as linked code has them; all others lie in the kernel's.
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

    def _other_kinds(self, twin: TwinKernel, original: Original, built: Built) -> str | None:
        """What kinds of arithmetic the machine code of only one of both holds, whatever the text promises."""
        if twin.calls:
            return None  # they may be inlined in one of both
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        return compare_kinds(self._count(before), self._count(after), twin.own_arithmetic)

    def _proof(self, twin: TwinKernel, original: Original, built: Built) -> NumericsProof:
        """What shows that a twin that was not refused computes as its original."""
        if self._explicit is not None:
            return NumericsProof.LINES if twin.name in self._explicit.codes else NumericsProof.PINNED
        return NumericsProof.COUNTS if self._difference(twin, original, built) is None else NumericsProof.NO_PAIR

    def _count(self, kernel: CubinKernel) -> dict[str, int]:
        # Asked for by each attempt at an original's twin, and by the manifest.
        if kernel.code not in self._counts:
            self._counts[kernel.code] = count_arithmetic(kernel.code, self._arch)
        return self._counts[kernel.code]
