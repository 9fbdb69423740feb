"""Whether a twin's machine code rounds where its original's does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from neutrino.assemble.assembly import Assembly, ExplicitTwins
from neutrino.assemble.builds import OriginalBuild, TwinBuild
from neutrino.assemble.machine_code import MachineKernel
from neutrino.assemble.numerics.proof import NumericsProof
from neutrino.twins.values import AssembledTwin


class ArithmeticComparison:
    """Compares the arithmetic in the machine code of twins (instrumented kernels) with that of their originals.

    assembly: what assembled them. explicit: the twins with explicit FMA, in whose text each fusion is written as one,
    if any; its ``codes`` are those whose fusions were compared one by one, by the kernel's name.
    """

    def __init__(self, assembly: Assembly, explicit: ExplicitTwins | None = None) -> None:
        """Set up a comparison of the arithmetic of twins (copies with probes) and originals. assembly: what assembled
        the twins.

        explicit: those with explicit FMA, None without any.
        """
        self._assembler = assembly.name
        self._arch = assembly.arch
        self._reader = assembly.reader
        self._explicit = explicit
        self._counts: dict[bytes, dict[str, int]] = {}

    def refusal(self, twin: AssembledTwin, original: OriginalBuild, built: TwinBuild) -> str | None:
        """Return why a twin (instrumented copy) is not proven to compute the same as its original; None if it is.

        A probe may keep the assembler from fusing a product with a sum, or make it fuse another one, which changes how
        the result is rounded. docs/numerics.md has the proofs that nothing was changed. original, built: the originals
        and the twins as they were built.
        """
        difference = self._count_difference(twin, original, built)
        compared_code = self._explicit.codes.get(twin.name) if self._explicit is not None else None
        if compared_code is not None:
            # The fusions were compared in a build of this twin alone, which proves more than equal counts. It holds for
            # this build if it has the same arithmetic, and for the code that runs if that is made from the same text.
            after = built.kernels[twin.twin_name]
            if self._reader.arithmetic(compared_code, self._arch) == self._count(after):
                return self._text_difference(twin, original)
            return difference or "the twin's code is not the code that was compared"
        if difference is not None and not twin.contractible:
            # If nothing can be fused, code may be repeated more or less often, provided that the assembler makes the
            # code that runs from the original's text.
            return self._text_difference(twin, original) or self._kind_difference(twin, original, built)
        # A loose sum: the text does not determine which product it is fused with. With explicit FMA there is none. Else
        # equal counts are the proof, as docs/numerics.md explains.
        if difference is None and self._explicit is None and twin.loose is not None:
            return f"equal counts do not show which product {twin.loose!r} is fused with"
        return difference

    def manifest(self, twin: AssembledTwin, original: OriginalBuild, built: TwinBuild) -> dict[str, Any]:
        """Return what the manifest of an accepted twin (copy with probes) holds under ``numerics``.

        That is how often original, twin and probes (``own``) have each kind of arithmetic instruction, and the proof.
        """
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        return {
            "original": self._count(before), "twin": self._count(after), "own": dict(twin.own_arithmetic),
            "contractible": twin.contractible, "proof": self._proof(twin, original, built).value,
        }  # fmt: skip

    def _text_difference(self, twin: AssembledTwin, original: OriginalBuild) -> str | None:
        """Return how the original's arithmetic differs from that of its text, assembled here; None if it does not.

        The code that runs may be from another version of the assembler, which fuses differently.
        """
        if original.rebuilt is original.machine:
            # The code that runs is this assembled text.
            return None
        rebuilt = original.rebuilt.kernels.get(twin.name)
        if rebuilt is None:
            return f"{self._assembler} emits no code for the original"
        running = self._count(original.machine.kernels[twin.name])
        difference = self._reader.arithmetic_difference(running, self._count(rebuilt), {})
        return difference and f"in the original's text as {self._assembler} assembles it: {difference}"

    def _count_difference(self, twin: AssembledTwin, original: OriginalBuild, built: TwinBuild) -> str | None:
        """Return where the counts of fused and unfused instructions differ between original and twin (copy with
        probes); None if nowhere.

        The arithmetic of the probes themselves (``own_arithmetic``) is allowed for.
        """
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        # In linked code functions have separate code; otherwise their code is part of the kernel's.
        # copies: of functions that have probes and separate code. own: the probes' arithmetic outside of these.
        copies = [copy for copy in twin.all_copies if copy.copy_name in built.functions]
        own = Counter(twin.own_arithmetic)
        for copy in copies:
            own.subtract(copy.own_arithmetic)
        difference = self._reader.arithmetic_difference(self._count(before), self._count(after), own)
        if difference is not None:
            return difference

        # The functions that both call. One that only one of them calls is inlined in the other, whose count shows it.
        # called: by the original's name, the twin's name of the function and the arithmetic of probes in it.
        called: dict[str, tuple[str, Mapping[str, int]]] = {name: (name, {}) for name in twin.calls}
        called |= {copy.name: (copy.copy_name, copy.own_arithmetic) for copy in copies}
        for name, (built_name, own_in_it) in sorted(called.items()):
            if name not in original.machine.functions or built_name not in built.functions:
                continue
            difference = self._reader.arithmetic_difference(
                self._reader.arithmetic(original.machine.functions[name], self._arch),
                self._reader.arithmetic(built.functions[built_name], self._arch),
                own_in_it,
            )
            if difference is not None:
                return f"in the called function {name}: {difference}"
        return None

    def _kind_difference(self, twin: AssembledTwin, original: OriginalBuild, built: TwinBuild) -> str | None:
        """Return which kinds of arithmetic only one of original and twin (copy with probes) has; None if both have the
        same.

        For kernels where nothing can be fused, in which the assembler may repeat code a different number of times.
        """
        if twin.calls:
            return None  # functions may be inlined in one of the two
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        return self._reader.kinds_difference(self._count(before), self._count(after), twin.own_arithmetic)

    def _proof(self, twin: AssembledTwin, original: OriginalBuild, built: TwinBuild) -> NumericsProof:
        """Return what proves that an accepted twin (copy with probes) computes the same as its original.

        original, built: the originals and the twins as they were built.
        """
        if self._explicit is not None:
            return NumericsProof.LINES if twin.name in self._explicit.codes else NumericsProof.PINNED
        return NumericsProof.COUNTS if self._count_difference(twin, original, built) is None else NumericsProof.NO_PAIR

    def _count(self, kernel: MachineKernel) -> dict[str, int]:
        """Count a kernel's arithmetic instructions by kind, once for each code."""
        # Several comparisons and the manifest need the same counts.
        if kernel.code not in self._counts:
            self._counts[kernel.code] = self._reader.arithmetic(kernel.code, self._arch)
        return self._counts[kernel.code]
