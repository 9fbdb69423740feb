"""A model of the words by which launches and the drain thread share a segment, and a search of all their orders.

Two threads launch on one stream, as ``take`` and ``nt_room_submitted`` in room.c do; the drain thread does what drain.c
does. Each step is one access to a word that others write. In every state that can be reached, and at every end:

- a launch is drained once, after it was submitted and complete, and none is left;
- a segment is zeroed only while nobody holds it and all its launches were drained;
- two launches never have the same place at the same time.

A submitted launch may become complete at any time; a segment's event, once those are that were submitted when it was
recorded. ``broken`` names a step to leave out, by which the tests see that the model can fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

FULL, DONE, FINISHING = 0x80, 0x40, 0x20
PLACES = 2
"""Launches that a segment has room for."""


class ViolationError(AssertionError):
    """A state that must not be."""


@dataclass(frozen=True)
class Launcher:
    """A thread: step is where it is; seen, what it read of the stream's state; got, its place."""

    left: int
    step: str = "read"
    seen: tuple[int, int, int] = (0, 0, 0)
    got: tuple[int, int] = (-1, -1)
    closing: int = -1
    taken: int = -1


@dataclass(frozen=True)
class State:
    """hold, count, events: of each segment; events are the places that its event waits for, as bits.

    free: segments, as bits. stream: (segment + 1, generation, launches). slots: by segment, what the launch in each
    place has reached. drained: how many were copied. lost: launches that found no room.
    """

    launchers: tuple[Launcher, ...]
    hold: tuple[int, ...]
    count: tuple[int, ...]
    free: int
    stream: tuple[int, int, int]
    slots: tuple[tuple[int, ...], ...]
    events: tuple[int, ...]
    drained: tuple[int, ...]
    lost: int = 0
    finished: int = 0

    def with_hold(self, segment: int, value: int) -> State:
        return replace(self, hold=_put(self.hold, segment, value))


EMPTY, TAKEN, SUBMITTED, COMPLETE, COPIED = range(5)


def _put(row: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*row[:index], value, *row[index + 1 :])


def _slot(state: State, segment: int, place: int, value: int) -> State:
    slots = list(state.slots)
    slots[segment] = _put(slots[segment], place, value)
    return replace(state, slots=tuple(slots))


def _finish_if_last(state: State, segment: int) -> State:
    """FINISHING is one exchange and DONE another; nobody else acts on a segment between them, so they are one step."""
    hold = state.hold[segment]
    if hold & FULL and not hold & (DONE | FINISHING) and not hold & 0x1F:
        event = sum(1 << place for place, found in enumerate(state.slots[segment]) if found >= SUBMITTED)
        return replace(state.with_hold(segment, hold | DONE), events=_put(state.events, segment, event))
    return state


def _launch_steps(state: State, who: int, broken: str) -> Iterator[State]:
    me = state.launchers[who]

    def then(after: State, **changes: object) -> State:
        launchers = list(after.launchers)
        launchers[who] = replace(me, **changes)  # type: ignore[arg-type]
        return replace(after, launchers=tuple(launchers))

    if me.step == "read":
        if not me.left:
            return
        segment, _, launches = state.stream
        fits = segment and launches < PLACES
        yield then(state, seen=state.stream, step="hold" if fits else "free")
    elif me.step == "hold":
        segment = me.seen[0] - 1
        held = state if broken == "hold" else state.with_hold(segment, state.hold[segment] + 1)
        yield then(held, step="take")
    elif me.step == "take":
        segment, generation, launches = me.seen
        if state.stream == me.seen:
            if state.slots[segment - 1][launches] != EMPTY:
                raise ViolationError("two launches in one place")
            after = replace(state, stream=(segment, generation, launches + 1))
            yield then(_slot(after, segment - 1, launches, TAKEN), got=(segment - 1, launches), step="submit")
        else:
            yield then(state, step="unhold")
    elif me.step == "unhold":
        segment = me.seen[0] - 1
        after = state if broken == "hold" else state.with_hold(segment, state.hold[segment] - 1)
        yield then(_finish_if_last(after, segment), step="read")
    elif me.step == "free":
        for segment in range(len(state.hold)):
            if state.free >> segment & 1:
                yield then(replace(state, free=state.free & ~(1 << segment)), taken=segment, step="new")
                return
        # None is free: the current one is closed, and the launch is not probed.
        if me.seen[0] and state.stream == me.seen:
            after = replace(state, stream=(0, (me.seen[1] + 1) % 4, 0), lost=state.lost + 1)
            yield then(after, closing=me.seen[0] - 1, left=me.left - 1, step="close")
        else:
            yield then(replace(state, lost=state.lost + 1), left=me.left - 1, step="read")
    elif me.step == "new":
        yield then(state.with_hold(me.taken, state.hold[me.taken] + 1), step="install")
    elif me.step == "install":
        if state.stream == me.seen:
            after = replace(state, stream=(me.taken + 1, (me.seen[1] + 1) % 4, 1))
            after = _slot(after, me.taken, 0, TAKEN)
            yield then(after, got=(me.taken, 0), closing=me.seen[0] - 1, step="close" if me.seen[0] else "submit")
        else:
            after = state.with_hold(me.taken, state.hold[me.taken] - 1)
            after = replace(after, free=after.free | 1 << me.taken)
            yield then(after, step="read")
    elif me.step == "close":
        segment = me.closing
        after = replace(state, count=_put(state.count, segment, me.seen[2]))
        after = _finish_if_last(after.with_hold(segment, after.hold[segment] | FULL), segment)
        yield then(after, closing=-1, step="submit" if me.got != (-1, -1) else "read")
    elif me.step == "submit":
        segment, place = me.got
        if state.slots[segment][place] != TAKEN:
            raise ViolationError("a place changed hands under its launch")
        yield then(_slot(state, segment, place, SUBMITTED), step="release")
    elif me.step == "release":
        segment = me.got[0]
        # The first launch of a segment holds it in any case.
        held = broken != "hold" or state.hold[segment] & 0x1F
        after = state.with_hold(segment, state.hold[segment] - 1) if held else state
        yield then(_finish_if_last(after, segment), got=(-1, -1), left=me.left - 1, step="read")


def _copy(state: State, segment: int, until: int) -> State:
    for place in range(state.drained[segment], until):
        found = state.slots[segment][place]
        if found != COMPLETE:
            raise ViolationError(f"drained in state {found}")
        state = replace(_slot(state, segment, place, COPIED), finished=state.finished + 1)
    return replace(state, drained=_put(state.drained, segment, until))


def _drain_steps(state: State, broken: str) -> Iterator[State]:
    for segment, hold in enumerate(state.hold):
        if hold & DONE:
            count = state.count[segment]
            event = state.events[segment]
            waits_for = [found for place, found in enumerate(state.slots[segment]) if event >> place & 1]
            if any(found == SUBMITTED for found in waits_for) and broken != "event":
                continue
            if hold & 0x1F:
                # Threads that will find the stream's state changed, and give up their holds.
                late = [who for who in state.launchers if who.step in ("take", "unhold") and who.seen[0] - 1 == segment]
                if len(late) != hold & 0x1F:
                    raise ViolationError("recycled under a holder")
            after = _copy(state, segment, count)
            if any(found not in (EMPTY, COPIED) for found in after.slots[segment]):
                raise ViolationError("zeroed over a launch")
            slots = list(after.slots)
            slots[segment] = (EMPTY,) * PLACES
            after = replace(after, slots=tuple(slots), drained=_put(after.drained, segment, 0))
            after = after.with_hold(segment, after.hold[segment] & ~(FULL | DONE))
            yield replace(after, free=after.free | 1 << segment)
    segment, generation, launches = state.stream
    if segment:
        until = state.drained[segment - 1]
        while until < launches and state.slots[segment - 1][until] == COMPLETE:
            until += 1
        if until > state.drained[segment - 1]:
            yield _copy(state, segment - 1, until)
        elif until == launches:
            # All is drained: taken from the stream, so that it can be recycled.
            after = replace(state, stream=(0, (generation + 1) % 4, 0))
            after = replace(after, count=_put(after.count, segment - 1, launches))
            yield _finish_if_last(after.with_hold(segment - 1, after.hold[segment - 1] | FULL), segment - 1)


def _device_steps(state: State) -> Iterator[State]:
    for segment, places in enumerate(state.slots):
        for place, found in enumerate(places):
            if found == SUBMITTED:
                yield _slot(state, segment, place, COMPLETE)


def search(launches: tuple[int, ...] = (2, 2), segments: int = 2, broken: str = "") -> int:
    """Search all orders; returns the number of states. Raises ViolationError."""
    first = State(
        tuple(Launcher(left) for left in launches), (0,) * segments, (0,) * segments, (1 << segments) - 1, (0, 0, 0),
        ((EMPTY,) * PLACES,) * segments, (0,) * segments, (0,) * segments,
    )  # fmt: skip
    seen, stack = {first}, [first]
    while stack:
        state = stack.pop()
        following = [*_drain_steps(state, broken), *_device_steps(state)]
        for who in range(len(state.launchers)):
            following += _launch_steps(state, who, broken)
        if not following and state.finished + state.lost != sum(launches):
            raise ViolationError(f"{state.finished} launches of {sum(launches)} were drained")
        for after in following:
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return len(seen)
