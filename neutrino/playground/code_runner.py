"""A program that runs one kernel of machine code in an interpreter, and saves what came of it.

    python -m neutrino.playground.code_runner FOLDER PARENT_PID

FOLDER/run.pickle has the ``KernelRun``. The program writes into FOLDER: ``result.pickle`` with the ``KernelResult``, or
``error.txt`` with why there is none.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from neutrino.backend.kernel_runs import KernelRun
from neutrino.backend.registry import target_of_device
from neutrino.errors import NeutrinoError
from neutrino.playground.launcher import end_with_parent


def main(folder: Path) -> None:
    """Run what the folder has, and save the result in it."""
    # Written by the process that started this one, for it alone.
    run: KernelRun = pickle.loads((folder / "run.pickle").read_bytes())
    try:
        result = target_of_device(run.arch).run_kernel(run)
    except NeutrinoError as error:
        (folder / "error.txt").write_text(str(error), "utf-8")
        return
    (folder / "result.pickle").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    main(Path(sys.argv[1]))
