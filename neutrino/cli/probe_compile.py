"""``neutrino-probe compile``: the assembly of probes, as a probe file in TOML that records the same."""

from __future__ import annotations

import argparse
from pathlib import Path

from neutrino.cli.arguments import given_path
from neutrino.cli.defines import add_define
from neutrino.cli.overwriting import refuse_foreign
from neutrino.cli.probe_status import DONE, Commands, say
from neutrino.errors import NeutrinoError


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe compile`` and its options. commands: the subparsers of ``neutrino-probe``."""
    parser = commands.add_parser(
        "compile",
        help="the assembly of probes in Python, as a probe file in TOML",
        description="Verify probes and print them as one probe file in TOML, whose snippets are PTX. It records the "
        "same as the probes that it is made of. Several PROBEs are merged, as -p does.",
        epilog="Exit status: 0 done; 2 an invalid probe, or a file that cannot be written.",
    )
    parser.add_argument("probe", nargs="+", metavar="PROBE", help="a probe file, a shipped probe or probes in one line")
    add_define(parser)
    parser.add_argument("-o", "--output", type=given_path, metavar="FILE", help="write the file there, not to stdout")
    parser.add_argument(
        "--target", metavar="ARCH", help="architecture to compile for, such as sm_90 (default: any; the text is the "
        "same for all of NVIDIA's, so far)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the file. Returns the exit status. Raises NeutrinoError for an output that is one of the probes' files."""
    from neutrino.cli.loading import load
    from neutrino.targets import lowered, written

    if options.target is not None:
        from neutrino.backend.registry import device_arch, target_of_device
        from neutrino.probing.model import DEFAULT_PLATFORM

        try:
            device = device_arch(options.target)
        except NeutrinoError as error:
            raise NeutrinoError(str(error).replace("--arch", "--target", 1)) from error
        target = target_of_device(device)
        if target.platform != DEFAULT_PLATFORM:
            raise NeutrinoError(
                f"--target {options.target}: what probes become in {target.language} differs between processors; "
                "neutrino-probe show has it for a kernel"
            )
    probes = load(options.probe, defines=options.define)
    text = written(lowered(probes))
    output: Path | None = options.output
    if output is None:
        print(text, end="")
        return DONE
    files = [part.file for part in probes.parts] or [probes.file]
    if any(output.exists() and Path(file).exists() and output.samefile(file) for file in files):
        raise NeutrinoError(f"-o {output}: that is the probe itself, which would be lost")
    refuse_foreign(output, lambda text: b"[probe." in text, "a probe file in TOML")
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NeutrinoError(f"-o {output}: cannot be written: {error.strerror}") from error
    say(f"wrote {output}")
    return DONE
