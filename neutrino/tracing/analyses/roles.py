"""Roles of warps: what the warps of a block are for, which of them the others wait for, and how far they overlap."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.tracing.analyses.evidence import Analysis, Evidence
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold
from neutrino.tracing.percent import percent
from neutrino.tracing.roles import Role, RoleFacts

_REMEDIES = {
    Role.MMA: "the products limit the kernel: larger tiles for each warp, or ordinary arithmetic in other warps",
    Role.PRODUCER: "the copies limit the kernel: wider copies (TMA), or more warps that copy",
    Role.SCHEDULER: "handing out work limits the kernel: hand out more at a time",
    Role.EPILOGUE: "the stores limit the kernel: more warps for them, or a second buffer for what is stored",
}


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield which roles the warps of a block have, and which of these is waited for."""
    found = evidence.roles
    if len(found.roles) < 2:
        return
    values: dict[str, int | float | str] = {
        "roles": len(found.roles), "named": ", ".join(f"{facts.role.value} {len(facts.warps)}" for facts in found.roles)
    }  # fmt: skip
    sentence = f"the warps of a block have {len(found.roles)} roles: " + "; ".join(map(_of_role, found.roles))
    waiting = {facts.role: facts.waiting_share for facts in found.roles if facts.waiting_share is not None}
    remedies = []
    if found.critical is not None:
        values["critical"] = found.critical.value
        sentence += f"; the others depend on {found.critical.value}: {found.why}"
        remedies += [_REMEDIES[found.critical]] if found.critical in _REMEDIES else []
    if found.critical is not None and len(waiting) == len(found.roles):
        values |= {"critical_waiting": waiting[found.critical], "most_waiting": max(waiting.values())}
        remedies.insert(0, "even the role that waits least waits: more stages between the roles, or more blocks at a "
                           "time on a multiprocessor")  # fmt: skip
    if found.overlap is not None:
        values["overlap"] = found.overlap
        sentence += f"; warps of two roles or more are there {percent(found.overlap)} of the time of a block"
    certainty = evidence.certainty(
        [entry.name for entry in evidence.summary.maps], is_timed="overlap" in values or bool(waiting),
        launches=1, caveats=[found.reason] if found.reason else (),
    )  # fmt: skip
    yield analysis.finding(evidence, sentence, values, certainty, remedies=tuple(remedies))


def _of_role(facts: RoleFacts) -> str:
    """Return what a role's warps are, in words."""
    warps = "1 warp" if len(facts.warps) == 1 else f"{len(facts.warps)} warps"
    share = facts.waiting_share
    return f"{facts.role.value} ({warps})" + ("" if share is None else f", which waits {percent(share)} of its time")


ANALYSIS = Analysis(
    "roles",
    "Do warps of a block have roles, and which of these do the others wait for?",
    (("program_progress",), ("dmat",)),
    (
        FigureKind("roles", "", "kinds of warps of a block, by what they execute"),
        FigureKind("named", "", "the roles, each with how many warps of a block have it", words=()),
        FigureKind(
            "critical", "", "the role that waits least, or whose warps end last", tuple(role.value for role in Role)
        ),
        FigureKind("critical_waiting", "share", "time that its warps wait, of their own"),
        FigureKind("most_waiting", "share", "the same, of the role that waits most"),
        FigureKind("overlap", "share", "time of a block in which warps of two roles or more are there"),
    ),
    (Threshold("critical_waiting", 0.3, 0.6),),
    run,
    is_cheap=False,
)
