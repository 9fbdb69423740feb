"""The attempts to assemble twins, in order. All retries are here.

Each attempt selects twins by their outcomes so far, and gives new outcomes:

    twins ─► as written, the parts of a big module side by side
          ─► as written, in one                        if a part cannot be assembled without the module's other kernels
          ─► explicit FMA                              if the counts of fused and unfused arithmetic differ
          ─► both again without fusing (--fmad=false)  if all counts differ and the original's options are not known
          ─► a register cap                            if a twin takes more of the register file than its original
          ─► outcomes

The cost at most, in runs of ``ptxas``. For the only kernel of a module, equal texts are assembled once:

    as written      2   the original's text and the twin's
    explicit FMA    3   the original's text by lines, the same with its fusions written down, the twin so
                   +1   the twin by lines, where a product within a division may be fused with a sum
    without fusing      the same again, for cubins that hold their PTX but not the options it was assembled with
    register cap    1

So usually 2, at most 7, and 13 for such a cubin. With several kernels these are per part, not per kernel, plus one run
if the originals cannot be assembled without the others. Only these are per kernel: one run each, and one for all, if
ptxas refuses some twins (or some originals whose text is for another architecture); two if it warns of a kernel that it
does not name; two if a division as above has to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from neutrino.abi.reasons import Reason
from neutrino.assemble.assembly import Assembly, CutError
from neutrino.assemble.builds import OriginalsRefusedError, build_originals, build_twins
from neutrino.assemble.emit import Emit
from neutrino.assemble.numerics.explicit_fma import ExplicitTwins, unlike_originals, write_explicit
from neutrino.assemble.one_module import OneModule
from neutrino.assemble.outcome import Outcome, Result, Run
from neutrino.assemble.parallel import StoppableSlots, run_parallel
from neutrino.assemble.retargeting import Retargeting
from neutrino.assemble.verdict import Verdict, Verifier
from neutrino.errors import FormatError, PtxError
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.toolchain.refusal import AssemblyError

Outcomes = Mapping[str, Outcome]
"""By the kernel's name."""


class Way(Enum):
    """In which form twins are assembled."""

    AS_WRITTEN = "as written"
    EXPLICIT_FMA = "explicit FMA"
    CAPPED = "register cap"


@dataclass(frozen=True)
class Attempt:
    """One way to assemble twins. in_parts: the parts of a big module in parallel. options: added for the assembler.

    mark: part of the file names under ``--save-temps``.
    """

    way: Way
    mark: str = ""
    in_parts: bool = False
    options: tuple[str, ...] = ()


_UNFUSED = ("--fmad=false",)
ATTEMPTS = (
    Attempt(Way.AS_WRITTEN, in_parts=True),
    Attempt(Way.AS_WRITTEN),
    Attempt(Way.EXPLICIT_FMA, "-explicit"),
    Attempt(Way.AS_WRITTEN, "-unfused", options=_UNFUSED),
    Attempt(Way.EXPLICIT_FMA, "-unfused-explicit", options=_UNFUSED),
    Attempt(Way.CAPPED),
)


@dataclass(frozen=True)
class Job:
    """Twins to assemble. parts: all twins, in parts that may be assembled in parallel; a small module has one.

    assembly: assembles them; only a ``OneModule`` can be written with explicit FMA. retargeting: if their text is for
    another architecture than their originals' code. unfused_after: the reasons of refusals that originals assembled
    without fusing may cause; empty if the originals' options are known. slots: the assembler's.
    """

    parts: Sequence[tuple[TwinKernel, ...]]
    assembly: Assembly
    slots: StoppableSlots
    retargeting: Retargeting | None = None
    unfused_after: frozenset[Reason] = frozenset()

    @property
    def twins(self) -> tuple[TwinKernel, ...]:
        """All."""
        return tuple(twin for part in self.parts for twin in part)


def assemble(job: Job) -> Outcomes:
    """The outcome of each twin. Raises as ``Assembler.assemble`` for failures of the machine, and FormatError."""
    outcomes: dict[str, Outcome] = {}
    for attempt in ATTEMPTS:
        groups = _groups(attempt, job, outcomes)
        for made in run_parallel([partial(group, attempt, job) for group in groups], job.slots):
            outcomes |= {outcome.twin.name: _after(outcomes.get(outcome.twin.name), outcome) for outcome in made}
    if all(outcome.refusal is not None for outcome in outcomes.values()):
        # Report the refusal of the first attempt: it says more than that of a retry.
        outcomes = {name: replace(outcome, refusal=outcome.first) for name, outcome in outcomes.items()}
    return outcomes


_Group = Callable[[Attempt, Job], list[Outcome]]
"""Twins of an attempt that are assembled together; returns their new outcomes."""


def _groups(attempt: Attempt, job: Job, outcomes: Outcomes) -> list[_Group]:
    """The twins that an attempt is for, by their outcomes so far."""
    if attempt.way is Way.AS_WRITTEN:
        if attempt.in_parts:
            return [partial(_as_written, part, number) for number, part in enumerate(job.parts)]
        is_cut = any(outcome.run is None for outcome in outcomes.values())
        refusals = {outcome.refusal.reason if outcome.refusal else Reason.PROBED for outcome in outcomes.values()}
        is_needed = refusals <= job.unfused_after if attempt.options else is_cut
        return [partial(_as_written, job.twins, None)] if is_needed else []
    is_capped = attempt.way is Way.CAPPED
    by_run: dict[int, list[Outcome]] = {}
    for outcome in outcomes.values():
        if (is_capped and outcome.limit is not None) or (not is_capped and _may_be_explicit(outcome, attempt)):
            by_run.setdefault(id(outcome.run), []).append(outcome)
    return [partial(_capped if is_capped else _explicit, together) for together in by_run.values()]


def _may_be_explicit(outcome: Outcome, attempt: Attempt) -> bool:
    # Only for machine code: a driver that compiles the text, or the embedded device, may fuse differently.
    return (
        outcome.refusal is not None
        and outcome.refusal.reason is Reason.NUMERICS
        and outcome.options == attempt.options
        and outcome.run is not None
        and isinstance(outcome.run.assembly, OneModule)
        and outcome.run.assembly.emit is Emit.SASS
    )


def _after(before: Outcome | None, outcome: Outcome) -> Outcome:
    """An outcome, with the refusal of the first attempt."""
    if outcome.options and before is not None:
        return replace(outcome, first=before.first)
    return replace(outcome, first=outcome.refusal)


def _as_written(twins: Sequence[TwinKernel], number: int | None, attempt: Attempt, job: Job) -> list[Outcome]:
    """number: of the part; None for the whole module."""
    is_part = number is not None and len(job.parts) > 1
    mark = f"-{number}{attempt.mark}" if is_part else attempt.mark
    assembly = job.assembly
    if isinstance(assembly, OneModule):
        assembly = assembly.of(twins, mark, is_part=is_part, options=attempt.options)
    try:
        return _verified(twins, assembly, job, attempt.options)
    except CutError:
        return [Outcome(twin, None, Verdict(Reason.ASSEMBLER, "")) for twin in twins]


def _explicit(outcomes: Sequence[Outcome], attempt: Attempt, job: Job) -> list[Outcome]:
    """outcomes: refused for their numerics, all of one run."""
    run, twins = outcomes[0].run, [outcome.twin for outcome in outcomes]
    if run is None or not isinstance(run.assembly, OneModule):
        return []
    module = run.assembly
    try:
        explicit = _written_explicitly(twins, module)
        again: list[Outcome] = []
        if explicit.twins:
            written = tuple(explicit.twins.values())
            mark = f"{module.mark.removesuffix('-unfused')}{attempt.mark}"
            assembly = module.of(written, mark, is_part=module.is_part, options=())
            again = _verified(written, assembly, job, attempt.options, explicit)
    except (AssemblyError, CutError):
        return []
    refused = [
        replace(outcome, refusal=Verdict(Reason.NUMERICS, f"{outcome.refusal.detail}; {explicit.refused[name]}"))
        for outcome in outcomes
        if (name := outcome.twin.name) in explicit.refused and outcome.refusal is not None
    ]
    return [*refused, *again]


def _written_explicitly(twins: Sequence[TwinKernel], module: OneModule) -> ExplicitTwins:
    names = [twin.name for twin in twins]
    original = module.originals(names)
    try:
        unlike = unlike_originals(twins, module.machine, original, module.name)
        explicit = write_explicit(
            [twin for twin in twins if twin.name not in unlike], module.originals_text(names), original,
            module.assemble, module.rendered, module.arch,
        )  # fmt: skip
    except (FormatError, PtxError) as error:
        # A newer assembler may write line information, or a twin's text may have a form, that is not supported.
        return ExplicitTwins({}, dict.fromkeys(names, str(error)))
    return replace(explicit, refused={**explicit.refused, **unlike})


def _capped(outcomes: Sequence[Outcome], attempt: Attempt, job: Job) -> list[Outcome]:
    """outcomes: good ones that take more registers than their originals, all of one run."""
    run = outcomes[0].run
    if run is None or run.original is None:
        return []
    limits = {outcome.twin.name: limit for outcome in outcomes if (limit := outcome.limit) is not None}
    try:
        built = build_twins(run.assembly, list(limits), "capped", limits)
        there = [outcome for outcome in outcomes if outcome.twin.twin_name in built.kernels]
        refusals = run.verifier.verdicts([outcome.twin for outcome in there], run.original, built)
    except CutError:
        return []
    made = replace(run, built=built)
    return [
        outcome.with_cap(_result(outcome.twin, made))
        for outcome in there
        if refusals[outcome.twin.name] is None
        and built.kernels[outcome.twin.twin_name].registers <= limits[outcome.twin.name]
    ]


def _verified(
    twins: Sequence[TwinKernel],
    assembly: Assembly,
    job: Job,
    options: tuple[str, ...],
    explicit: ExplicitTwins | None = None,
) -> list[Outcome]:
    """Assemble originals and twins, and compare each twin with its original."""
    names = [twin.name for twin in twins]
    verifier = Verifier(assembly, job.retargeting, explicit)
    with ThreadPoolExecutor(2) as pool:
        # The original's spills are only known by assembling its text; ptxas has a process of its own meanwhile.
        originals = pool.submit(build_originals, assembly, names, is_variant=job.retargeting is not None)
        built = build_twins(assembly, names, "probed")
        try:
            original = originals.result()
        except OriginalsRefusedError as error:
            refused = Run(assembly, verifier)
            return [
                Outcome(twin, refused, verifier.of_refused_original(error.reasons[twin.name]), options=options)
                for twin in twins
            ]
    run = Run(assembly, verifier, original, built)
    refusals = verifier.verdicts(twins, original, built)
    return [
        Outcome(
            twin,
            run,
            refusals[twin.name],
            _result(twin, run) if refusals[twin.name] is None else None,
            options=options,
        )
        for twin in twins
    ]


def _result(twin: TwinKernel, run: Run) -> Result:
    if run.original is None:
        raise LookupError(f"{twin.name}: no original to compare it with")
    name = twin.twin_name
    numerics = run.verifier.numerics(twin, run.original, run.built)
    return Result(run.built, run.built.kernels[name], run.built.resources[name], numerics)
