"""Coverage-guided fuzzing by Atheris of everything that reads what others made.

    pip install neutrino-gpu[fuzz]
    python -m tests.fuzz.run TARGET CORPUS [-max_total_time=480 …]

TARGET is a name of ``targets.TARGETS``; CORPUS a folder, which gets the seeds first and then what reaches new
branches; the other words are libFuzzer's. It ends at the first input that a reader must not answer so: any exception
but FormatError, a reading that contradicts itself, much time, or memory beyond what the input declares and its size
allows. Inputs that failed become tests (``tests/fatbin/test_crashes.py``).
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from neutrino.errors import FormatError

SLOW = 5.0
"""Seconds of CPU time that one input may take; a thousand times what any of the seeds takes."""
MEMORY = 24 << 20
"""Bytes that any input may allocate."""
MEMORY_PER_BYTE = 64
"""Bytes more for each byte of the input: a Python object for each field."""
MEMORY_PER_CLAIM = 3
"""Bytes more for each byte that the input declares to decode to, within the cap: the decoder's, ours, PTX's copy."""
_GROWTH = 4 << 20
"""An input after which the process's peak grew by as many bytes is run again with every allocation counted."""


class CostError(AssertionError):
    """An input that took more time or memory than it may."""


def check_input(run: Callable[[bytes], int], data: bytes) -> None:
    """Run a parser on an input for the fuzzer: raise whatever goes wrong but a FormatError, which is a proper answer.

    run: calls the parser, and returns the bytes that the input claims to decode to. Raises CostError for too much time
    or memory, and what ``run`` raises.
    """
    before, begin = _peak(), time.process_time()
    claimed = 0
    with contextlib.suppress(FormatError):
        claimed = run(data)
    seconds = time.process_time() - begin
    if seconds > SLOW:
        raise CostError(f"{seconds:.1f} s for {len(data)} bytes")
    if _peak() > before + _GROWTH:
        used, allowed = _allocated(run, data), MEMORY + MEMORY_PER_BYTE * len(data) + MEMORY_PER_CLAIM * claimed
        if used > allowed:
            raise CostError(f"{used >> 20} MiB allocated, {allowed >> 20} MiB allowed")


def _peak() -> int:
    """Return the most bytes of memory that this process has held so far; getrusage(2) would include those of who
    started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _allocated(run: Callable[[bytes], int], data: bytes) -> int:
    """Run a parser on an input; return the most bytes that Python held allocated meanwhile."""
    tracemalloc.start()
    try:
        run(data)
    except FormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def main(words: list[str]) -> None:
    """Fuzz one parser with Atheris, which ends the process. words: the target's name, the corpus's folder, libFuzzer's
    options."""
    import atheris

    with atheris.instrument_imports(include=["neutrino"]):
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.fields import field_values, places
    from tests.fuzz.seeds import LIMIT

    if len(words) < 2 or words[0] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz.run TARGET CORPUS [OPTION …]\ntargets: {', '.join(TARGETS)}")
    target, corpus = TARGETS[words[0]], Path(words[1])
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:20]).write_bytes(seed)

    def mutate(data: bytes, limit: int, number: int) -> bytes:
        """A changed input: by libFuzzer, or every other time with a header's field set to what sizes and offsets fail
        at. limit: of its bytes. number: a seed.
        """
        chosen, found = random.Random(number), places(data) if number % 2 else []
        if not found:
            return bytes(atheris.Mutate(data, limit))
        changed, place = bytearray(data), chosen.choice(found)
        place.put(changed, chosen.choice(field_values(place, found, data)))
        return bytes(changed[:limit])

    options = [f"-max_len={LIMIT}", "-timeout=30", "-rss_limit_mb=6000", "-use_value_profile=1"]
    atheris.Setup([sys.argv[0], str(corpus), *options, *words[2:]], lambda data: check_input(target.run, data),
                  custom_mutator=mutate)  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
