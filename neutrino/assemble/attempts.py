"""The attempts to assemble twins, in order. All retries are here.

Each attempt selects twins by their outcomes so far, and gives new outcomes:

    twins ─► as written, the parts of a big module side by side
          ─► as written, in one                        if a part cannot be assembled without the module's other kernels
          ─► explicit FMA                              if the counts of fused and unfused arithmetic differ
          ─► both again without fusing                if all counts differ and the original's options are not known
          ─► a register cap                            if a twin takes more of the register file than its original
          ─► fewer registers                           if that has many spills, and fewer blocks of the twin may run
          ─► all of this again with fewer probes       for twins with several that are refused for what probes do
          ─► outcomes

The cost at most, in runs of ``ptxas``. For the only kernel of a module, equal texts are assembled once:

    as written      2   the twin's text, and the original's if ptxas must report of it or its arithmetic is compared
    explicit FMA    3   the original's text by lines, the same with its fusions written down, the twin so
                   +1   the twin by lines, where a product within a division may be fused with a sum
    without fusing      the same again, for cubins that hold their PTX but not the options it was assembled with
    register cap    1
    fewer registers 1
    fewer probes    for each trial what is above, but for the original's text, which is assembled already

So usually 1 or 2, at most 8, and 14 for such a cubin. Where a probe has to be left out, a trial is 1 with the twin as
it is written, and at most 5 with explicit FMA; there are at most ``MOST_TRIALS``, in each of which all kernels with
such a probe have their twins assembled together. With several kernels these are per part, not per kernel, plus one
run if the originals cannot be assembled without the others. Only these are per kernel: one run each, and one for all,
if ptxas refuses some twins (or some originals whose text is for another architecture); two if it warns of a kernel that
it does not name; two if a division as above has to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from neutrino.abi.reasons import Reason
from neutrino.assemble.assembly import Assembly, CutError, ExplicitTwins
from neutrino.assemble.builds import (
    OriginalBuild,
    OriginalsRefusedError,
    TwinBuild,
    build_originals,
    build_twins,
    shipped_originals,
)
from neutrino.assemble.machine_code import MachineCode
from neutrino.assemble.outcome import Outcome, Result, Run
from neutrino.assemble.parallel import StoppableSlots, run_parallel
from neutrino.assemble.retargeting import Retargeting
from neutrino.assemble.verdict import Verdict, Verifier
from neutrino.toolchain.refusal import AssemblyError
from neutrino.twins.probe_units import Found, Refusal, search
from neutrino.twins.values import AssembledTwin, TwinsWithFewer

Outcomes = Mapping[str, Outcome]
"""Outcomes of twins (instrumented copies of kernels), by the original kernel's name."""


class Way(Enum):
    """In which form twins are assembled."""

    AS_WRITTEN = "as written"
    EXPLICIT_FMA = "explicit FMA"
    CAPPED = "register cap"
    FEWER_REGISTERS = "fewer registers"


@dataclass(frozen=True)
class Attempt:
    """One way to assemble twins.

    mark: part of the file names under ``--save-temps``. in_parts: whether the parts of a big module are assembled in
    parallel. unfused: whether the assembler is asked to fuse no product with a sum.
    """

    way: Way
    mark: str = ""
    in_parts: bool = False
    unfused: bool = False


_UNFUSED_MARK = "-unfused"
ATTEMPTS = (
    Attempt(Way.AS_WRITTEN, in_parts=True),
    Attempt(Way.AS_WRITTEN),
    Attempt(Way.EXPLICIT_FMA, "-explicit"),
    Attempt(Way.AS_WRITTEN, _UNFUSED_MARK, unfused=True),
    Attempt(Way.EXPLICIT_FMA, f"{_UNFUSED_MARK}-explicit", unfused=True),
    Attempt(Way.CAPPED),
    Attempt(Way.FEWER_REGISTERS),
)


MOST_TRIALS = 8
"""How often twins are assembled with fewer probes, to find out which ones have to be left out."""
_NOT_TRIED = "the assembler refused it together with other probes, and whether alone was not tried"


@dataclass(frozen=True)
class Job:
    """Twins to assemble.

    parts: all twins, in parts that may be assembled in parallel; a small module has one. assembly: assembles them.
    slots: limit how many assemblers run. retargeting: set if their text is for another architecture than their
    originals' code. unfused_after: if all twins are refused, and only for these reasons, the originals may have been
    assembled without fusing; empty if the originals' options are known. keeps_files: whether originals are assembled in
    any case, for the files of ``--save-temps``. fewer: by the kernel's name, its twins with fewer probes; for a kernel
    with several. mark: part of the file names there.
    """

    parts: Sequence[tuple[AssembledTwin, ...]]
    assembly: Assembly
    slots: StoppableSlots
    retargeting: Retargeting | None = None
    unfused_after: frozenset[Reason] = frozenset()
    keeps_files: bool = False
    fewer: Mapping[str, TwinsWithFewer] = field(default_factory=dict)
    mark: str = ""

    @property
    def twins(self) -> tuple[AssembledTwin, ...]:
        """All twins (copies of kernels with probes) to assemble, of all parts of the module."""
        return tuple(twin for part in self.parts for twin in part)


def assemble(job: Job) -> Outcomes:
    """Assemble twins (instrumented kernels), again in other ways if they are refused, and return their final outcomes.

    The outcomes are by the original kernel's name. Raises ToolError and OSError for failures of the machine, and
    FormatError.
    """
    outcomes = _attempt(job)
    return outcomes | _with_fewer_probes(job, outcomes)


def _attempt(job: Job) -> dict[str, Outcome]:
    """Make the attempts for twins (instrumented kernels), all with the probes that they have; return their outcomes.

    Of all attempts, each is only made for twins that it may help.
    """
    outcomes: dict[str, Outcome] = {}
    for attempt in ATTEMPTS:
        # One for each group of twins; none if the attempt is not needed.
        assemblers = _group_assemblers(attempt, job, outcomes)
        assemblies = [partial(assemble_group, attempt, job) for assemble_group in assemblers]
        for group_outcomes in run_parallel(assemblies, job.slots):
            outcomes |= {
                outcome.twin.name: _with_first_refusal(outcome, outcomes.get(outcome.twin.name))
                for outcome in group_outcomes
            }
    if all(outcome.refusal is not None for outcome in outcomes.values()):
        # The attempts without fusing did not help, so the refusals of the others are reported: they say more.
        outcomes = {name: replace(outcome, refusal=outcome.first) for name, outcome in outcomes.items()}
    return outcomes


def _with_fewer_probes(job: Job, outcomes: Outcomes) -> dict[str, Outcome]:
    """Assemble refused twins (instrumented kernels) again without the probes that they are refused for.

    outcomes: of the twins with all probes. Returns the outcomes of those that are accepted now, by the kernel's name,
    with a note about each probe that is not in them. Raises as ``assemble``.
    """
    trials = {
        name: _trials(job.fewer[name], outcome.refusal)
        for name, outcome in outcomes.items()
        if outcome.refusal is not None and outcome.refusal.of_probes and name in job.fewer
    }
    # By the kernel's name, the twins to assemble next; and the outcomes of trials that have ended.
    wanted: dict[str, AssembledTwin] = {}
    found: dict[str, Outcome] = {}

    def advance(name: str, outcome: Outcome | None) -> None:
        """Note what the trials of a kernel want next. outcome: of what they wanted last, None at the beginning."""
        try:
            wanted[name] = next(trials[name]) if outcome is None else trials[name].send(outcome)
        except StopIteration as end:
            wanted.pop(name, None)
            if end.value is not None:
                found[name] = end.value

    for name in trials:
        advance(name, None)
    # Without fusing only if no other twin was accepted with it.
    is_unfused = all(outcome.refusal is not None or outcome.unfused for outcome in outcomes.values())
    unfused_after = job.unfused_after if is_unfused else frozenset[Reason]()
    number = 0
    while wanted:
        number += 1
        twins, mark = tuple(wanted.values()), f"-fewer{number}"
        tried = _attempt(replace(job, parts=[twins], unfused_after=unfused_after, mark=mark))
        for name in tuple(wanted):
            advance(name, tried[name])
    return found


def _trials(fewer: TwinsWithFewer, refusal: Verdict) -> Generator[AssembledTwin, Outcome, Outcome | None]:
    """Yield twins of one kernel with fewer probes, to be assembled, and take their outcomes.

    refusal: why the twin with all probes is refused. Returns the outcome of the twin with those probes that are
    accepted together; None without any.
    """
    if len(fewer.units) < 2:
        return None
    steps = search(fewer.units, Refusal(refusal.reason, refusal.detail))
    accepted: dict[frozenset[str], Outcome] = {}
    count = 0
    names = next(steps)
    while True:
        answer = None
        twin = fewer.twin(names)
        if isinstance(twin, Refusal):
            answer = twin if twin.reason is not Reason.NO_SITE else None
        elif count == MOST_TRIALS:
            answer = Refusal(refusal.reason, _NOT_TRIED)
        else:
            count += 1
            outcome = yield twin
            if outcome.refusal is None:
                accepted[names] = outcome
            else:
                answer = Refusal(outcome.refusal.reason, outcome.refusal.detail)
        try:
            names = steps.send(answer)
        except StopIteration as end:
            found: Found = end.value
            break
    if found.kept not in accepted:
        return None
    outcome = accepted[found.kept]
    return replace(outcome, twin=fewer.with_notes(outcome.twin, found))


_GroupAssembler = Callable[[Attempt, Job], list[Outcome]]
"""Assembles the twins of one group, which belong together in an attempt; returns their new outcomes."""


def _group_assemblers(attempt: Attempt, job: Job, outcomes: Outcomes) -> list[_GroupAssembler]:
    """Select the twins (instrumented kernels) that an attempt is for; return a function that assembles each group.

    They are selected by their outcomes so far. A group is a part of the module, all of it, or twins that an earlier
    attempt assembled together. The result is empty if the attempt is not needed.
    """
    if attempt.way is Way.AS_WRITTEN:
        if attempt.in_parts:
            return [partial(_assemble_as_written, part, number) for number, part in enumerate(job.parts)]
        if attempt.unfused:
            # Reason.PROBED, for a twin that was accepted, is never in unfused_after.
            reasons = {outcome.refusal.reason if outcome.refusal else Reason.PROBED for outcome in outcomes.values()}
            is_needed = reasons <= job.unfused_after
        else:
            # Some part could not be assembled alone.
            is_needed = any(outcome.run is None for outcome in outcomes.values())
        return [partial(_assemble_as_written, job.twins, None)] if is_needed else []

    # The other attempts repeat an earlier run for some of its twins.
    # Grouped by run, whose assembly is used again. By id, since a Run cannot be hashed; outcomes keeps it alive.
    by_run: dict[int, list[Outcome]] = {}
    for outcome in outcomes.values():
        if _is_selected(outcome, attempt):
            by_run.setdefault(id(outcome.run), []).append(outcome)
    assemble_group = _assemble_explicit if attempt.way is Way.EXPLICIT_FMA else _assemble_capped
    return [partial(assemble_group, run_outcomes) for run_outcomes in by_run.values()]


def _is_selected(outcome: Outcome, attempt: Attempt) -> bool:
    """Whether an attempt is made for a twin (instrumented kernel) that was assembled before. outcome: its latest."""
    if attempt.way is Way.CAPPED:
        return outcome.limit is not None
    if attempt.way is Way.FEWER_REGISTERS:
        return outcome.fewer_registers is not None
    return _may_be_explicit(outcome, attempt)


def _may_be_explicit(outcome: Outcome, attempt: Attempt) -> bool:
    """Whether explicit FMA may help a twin (instrumented kernel).

    That is so if it was refused for its numerics, with or without fusing as in this attempt. attempt: one that writes
    explicit FMA. outcome: the twin's latest.
    """
    return (
        outcome.refusal is not None
        and outcome.refusal.reason is Reason.NUMERICS
        and outcome.unfused == attempt.unfused
        and outcome.run is not None
        and outcome.run.assembly.can_be_explicit
    )


def _with_first_refusal(outcome: Outcome, previous: Outcome | None) -> Outcome:
    """Return the new outcome of a twin (instrumented kernel), with its ``first`` refusal set.

    That is the refusal of the last attempt with fusing, which is reported if the attempts without it do not help
    either. previous: the twin's outcome before this attempt, None if this is the first.
    """
    # previous is never None without fusing: these attempts follow others.
    if outcome.unfused and previous is not None:
        return replace(outcome, first=previous.first)
    return replace(outcome, first=outcome.refusal)


def _assemble_as_written(
    twins: Sequence[AssembledTwin], number: int | None, attempt: Attempt, job: Job
) -> list[Outcome]:
    """Assemble twins (instrumented kernels) with the text that was written for them, and compare them with originals.

    number: of the part of a big module that they are, for the names of files; None for the whole module. If the
    originals of a part cannot be assembled without the other kernels, the outcomes have no run.
    """
    is_part = number is not None and len(job.parts) > 1
    mark = job.mark + (f"-{number}{attempt.mark}" if is_part else attempt.mark)
    assembly = job.assembly.of(twins, mark, is_part=is_part, unfused=attempt.unfused)
    try:
        return _assemble_and_verify(twins, assembly, job, attempt)
    except CutError:
        # The next attempt, which they are selected for because they have no run, replaces these outcomes.
        return [Outcome(twin, None, Verdict(Reason.ASSEMBLER, "")) for twin in twins]


def _assemble_explicit(outcomes: Sequence[Outcome], attempt: Attempt, job: Job) -> list[Outcome]:
    """Write twins (instrumented kernels) with their fused multiply-adds spelled out, assemble and verify them.

    Such a text leaves the assembler no choice of what to fuse, so a probe in it cannot change that. outcomes: those of
    one run that were refused because their arithmetic differs. Return new outcomes; a twin that cannot be written so is
    refused with a second reason. Empty if the assembler refuses the new texts, so that the earlier outcomes stay.
    """
    run, twins = outcomes[0].run, [outcome.twin for outcome in outcomes]
    # As _may_be_explicit has found already; repeated for the type checker.
    if run is None:
        return []
    assembly = run.assembly
    verified: list[Outcome] = []
    try:
        explicit = assembly.explicit(twins)
        if explicit.twins:
            explicit_twins = tuple(explicit.twins.values())
            # The run's assembly does not fuse where the attempt does not; both marks then say so.
            mark = f"{assembly.mark.removesuffix(_UNFUSED_MARK)}{attempt.mark}"
            assembly = assembly.of(explicit_twins, mark, is_part=assembly.is_part)
            verified = _assemble_and_verify(explicit_twins, assembly, job, attempt, explicit)
    except (AssemblyError, CutError):
        return []
    # Twins that cannot be written so stay refused; the obstacle is added to the difference in arithmetic.
    refused = []
    for outcome in outcomes:
        obstacle = explicit.refused.get(outcome.twin.name)
        if obstacle is not None and outcome.refusal is not None:
            # The obstacle is the original's. So is a loose sum, which no twin but an explicit one may have.
            of_probes = outcome.refusal.of_probes and outcome.twin.loose is None
            verdict = Verdict(Reason.NUMERICS, f"{outcome.refusal.detail}; {obstacle}", of_probes)
            refused.append(replace(outcome, refusal=verdict))
    return [*refused, *verified]


def _assemble_capped(outcomes: Sequence[Outcome], attempt: Attempt, job: Job) -> list[Outcome]:
    """Assemble twins (instrumented kernels) again with limits on their registers, and verify them again.

    With its original's registers, as many blocks of a twin fit on a multiprocessor as of the original. outcomes:
    accepted ones of one run, of twins that take more registers than their originals. Return new outcomes for those that
    are accepted and stay within their limits, which depend on the attempt.
    """
    run = outcomes[0].run
    # Never so, since an outcome without a run and its original has no limit: for the type checker.
    if run is None or run.original is None:
        return []
    is_capped = attempt.way is Way.CAPPED
    wanted = {outcome.twin.name: outcome.limit if is_capped else outcome.fewer_registers for outcome in outcomes}
    limits = {name: limit for name, limit in wanted.items() if limit is not None}
    try:
        built = build_twins(run.assembly, list(limits), "capped" if is_capped else "fewer", limits)
        # ptxas may refuse some texts with a cap.
        assembled = [outcome for outcome in outcomes if outcome.twin.twin_name in built.kernels]
        refusals = run.verifier.verdicts([outcome.twin for outcome in assembled], run.original, built)
    except (CutError, OriginalsRefusedError):
        # From verdicts, for originals that cannot be assembled, or not without the others. The uncapped twins stay.
        return []
    capped_run = replace(run, built=built)
    # Without those for which ptxas did not keep to the cap.
    return [
        (outcome.with_cap if is_capped else outcome.with_fewer_registers)(_result(outcome.twin, capped_run))
        for outcome in assembled
        if refusals[outcome.twin.name] is None
        and built.kernels[outcome.twin.twin_name].registers <= limits[outcome.twin.name]
    ]


def _assemble_and_verify(
    twins: Sequence[AssembledTwin],
    assembly: Assembly,
    job: Job,
    attempt: Attempt,
    explicit: ExplicitTwins | None = None,
) -> list[Outcome]:
    """Assemble originals and twins (instrumented copies), and compare each twin with its original.

    attempt: whether it fuses is noted in the outcomes. explicit: the twins' explicit FMA, if they are
    written with it. Raises CutError if the originals of a part cannot be assembled alone, else as
    ``Assembler.assemble``.
    """
    verifier = Verifier(assembly, job.retargeting, explicit)
    run = Run(assembly, verifier)
    try:
        original, built = _assemble_both(twins, assembly, job)
        run = Run(assembly, verifier, original, built)
        refusals = verifier.verdicts(twins, original, built)
    except OriginalsRefusedError as error:
        return [
            Outcome(twin, run, verifier.of_refused_original(error.reasons[twin.name]), unfused=attempt.unfused)
            for twin in twins
        ]
    return [
        Outcome(
            twin,
            run,
            refusals[twin.name],
            _result(twin, run) if refusals[twin.name] is None else None,
            unfused=attempt.unfused,
        )
        for twin in twins
    ]


def _assemble_both(
    twins: Sequence[AssembledTwin], assembly: Assembly, job: Job
) -> tuple[OriginalBuild, TwinBuild]:  # fmt: skip
    """Assemble twins (instrumented copies), and where it is needed their originals. Raises OriginalsRefusedError,
    CutError, and else as ``Assembler.assemble``."""
    names = [twin.name for twin in twins]
    machine = assembly.machine
    if machine is not None and job.retargeting is None and not job.keeps_files and not _needs_originals(twins, machine):
        original = shipped_originals(assembly, names, machine)
        built = build_twins(assembly, names, "probed")
        # A part's text may refer to a kernel that was left out, or the assembler may refuse the original as well.
        if built.failed:
            original.of_text  # noqa: B018  # raises then
        return original, built
    with ThreadPoolExecutor(2) as pool:
        # Both runs are processes of their own, so they run at the same time.
        originals = pool.submit(build_originals, assembly, names, is_variant=job.retargeting is not None)
        built = build_twins(assembly, names, "probed")
        return originals.result(), built


def _needs_originals(twins: Sequence[AssembledTwin], machine: MachineCode) -> bool:
    """Whether ptxas must report of originals what their machine code does not show: spills, where a stack frame may
    hold some, and the frames of recursive functions."""
    return any(
        twin.name not in machine.kernels
        or machine.kernels[twin.name].frame
        or any(copy.is_recursive for copy in twin.all_copies)
        for twin in twins
    )


def _result(twin: AssembledTwin, run: Run) -> Result:
    """Return the result of a twin (instrumented kernel) that was accepted. run: in which it was assembled."""
    if run.original is None:
        raise LookupError(f"{twin.name}: no original to compare it with")
    name = twin.twin_name
    numerics = run.verifier.numerics(twin, run.original, run.built)
    return Result(run.built, run.built.kernels[name], run.built.resources[name], numerics)
