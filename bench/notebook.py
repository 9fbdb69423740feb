"""Cells of a notebook, run in a kernel of Jupyter's as a person would run them, and digests of what they recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neutrino.tracing.trace import TraceLaunch

Json = Any

_LIMIT = 150.0


def digests(kernels: Iterable[tuple[str, Iterable[TraceLaunch]]]) -> list[list[str]]:
    """Of each launch, in the order of submission, the kernel's name and a digest of what its maps (what probes save to)
    hold.
    """
    found = []
    for kernel, launches in kernels:
        for launch in launches:
            digest = hashlib.sha256()
            for name, view in sorted(launch.maps.items()):
                digest.update(name.encode() + view.valid().tobytes())
            found.append((int(launch.record["submit_ns"]), kernel, digest.hexdigest()[:16]))
    return [[kernel, digest] for _, kernel, digest in sorted(found)]


def run_cells(
    mode: str, cells: Sequence[str], workload: str, environment: Mapping[str, str], folder: Path, *, is_plain: bool
) -> str:
    """Run cells in a notebook's kernel, in a folder; return the last line that they printed.

    mode: for messages. workload: the text of the cell that is named WORKLOAD. is_plain: without Neutrino; then the
    embedded device is a driver like another. Raises SystemExit when a cell fails.
    """
    try:
        from jupyter_client.manager import start_new_kernel
    except ImportError:
        raise SystemExit("jupyter_client is not installed: pip install jupyter_client ipykernel") from None
    if is_plain and "NEUTRINO_BENCH_DEVICE" in environment:
        # Without the hook, the embedded device is a driver like another.
        start = "import os\nfrom neutrino.loader.embedded_driver import EmbeddedDevice, stand_in\n"
        start += "os.environ.update(EmbeddedDevice().environment(dict(os.environ)))\n"
        cells = (start + "import ctypes\nctypes.CDLL(str(stand_in()), ctypes.RTLD_GLOBAL)", *cells)
    output: list[str] = []

    def keep(message: Json) -> None:
        """Keep what a cell printed, or the traceback of its error. message: of Jupyter's protocol."""
        if message["msg_type"] == "stream":
            output.append(message["content"]["text"])
        elif message["msg_type"] == "error":
            output.append("\n".join(message["content"]["traceback"]))

    manager, client = start_new_kernel(env=dict(environment), cwd=str(folder))
    try:
        for cell in cells:
            code = workload if cell == "WORKLOAD" else cell
            reply = client.execute_interactive(code, timeout=_LIMIT, output_hook=keep)
            if reply["content"]["status"] != "ok":
                raise SystemExit(f"{mode}: a cell failed:\n{code}\n{''.join(output)[-3000:]}")
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    return "".join(output).strip().splitlines()[-1]
