"""The command line's parser: an option that there is not is answered with the nearest one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_UNKNOWN = re.compile(r"unrecognized arguments: (?P<words>.*)", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)", re.DOTALL)
_NO_VALUE = re.compile(r"argument (?P<names>[-\w/]+): expected one argument")
_OTHER_OPTIONS = {
    "--output": ("--tracedir", "--html"), "--out": ("--tracedir", "--html"), "-o": ("--tracedir", "--html"),
    "--verbose": ("--save-temps",), "--kernels": ("--kernel",), "--gpu": ("--device",), "--time": ("--duration",),
    "--dir": ("--tracedir",), "--ptx": ("--output",), "--probes": ("--probe",),
}  # fmt: skip
"""What others call an option → what it may be here, of which the parser has one."""
_OTHER_WORDS = {
    "stop": "off", "pause": "off", "disable": "off", "start": "on", "resume": "on", "enable": "on", "dump": "flush",
    "info": "status", "run": "try", "validate": "check", "verify": "check", "init": "new", "create": "new",
    "ls": "list", "build": "compile", "match": "sites", "diff": "show",
}  # fmt: skip
"""What others call a command."""


def given_path(text: str) -> Path:
    """Parse a path, for argparse: one that is empty, as of a shell's variable that is not set, would be the folder at
    hand.
    """
    return Path(given(text))


def given(text: str) -> str:
    """Parse a path that stays text, for argparse; see ``given_path``."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def given_target(text: str) -> str:
    """Parse the path of a file or folder to write, for argparse: ``-`` would be a file of that name, where other
    programs mean their output.
    """
    if text == "-":
        raise argparse.ArgumentTypeError("it is not written to standard output: give a path (./- is a file named -)")
    return given(text)


def number_of(what: str, most: int) -> Callable[[str], int]:
    """Return a parser of a whole number from 1 to most, for argparse. what: is counted, in the plural."""

    def parse(text: str) -> int:
        """Parse the number."""
        if not text.isascii() or not text.isdigit() or not 0 < int(text[: len(str(most)) + 1]) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what} from 1 to {most}")
        return int(text)

    return parse


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors are one line and suggest what may be meant."""

    def error(self, message: str) -> NoReturn:
        """Exit with argparse's status 2 and a message."""
        self.exit(2, f"{self.prog}: {suggested(self, message)}; see {self.prog} --help\n")


def suggested(parser: argparse.ArgumentParser, message: str) -> str:
    """Return an error of argparse; of an option or a choice that the parser has not, with the one that may be meant."""
    if (choice := _CHOICE.search(message)) is not None:
        from neutrino.probing.nearest import nearest

        known = re.findall(r"[\w-]+", choice["known"])
        meant = _OTHER_WORDS.get(choice["word"])
        meant = meant if meant in known else nearest(choice["word"], known)
        return f"{message}; did you mean {meant}?" if meant else message
    if (lacks := _NO_VALUE.fullmatch(message)) is not None:
        names = lacks["names"].split("/")
        action = next((each for each in parser._actions if names[-1] in each.option_strings), None)
        metavar = action.metavar if action and isinstance(action.metavar, str) else "VALUE"
        return f"{message}: write {names[-1]} {metavar}"
    match = _UNKNOWN.fullmatch(message)
    words = match["words"].split() if match else []
    options = parser._option_string_actions
    others = [name for word in words for name in _OTHER_OPTIONS.get(word.partition("=")[0], ()) if name in options]
    if others:
        return f"{message}; did you mean {others[0]}?"
    if "--list" in words and "--probe" in options:
        return f"{message}; neutrino probe list lists the probes"
    option = next((word for word in words if word.startswith("--")), "")
    # As --format json, and a file after an option that prints.
    following = [f"--{word}" for word in words[words.index(option) + 1 :]] if option else []
    if following and following[0] in options:
        return f"{message}; did you mean {following[0]}?"
    positional = [action.dest for action in parser._actions if not action.option_strings]
    if option.lstrip("-") in positional:
        return f"{message}; it is given without {option}"
    if "--html" in options and words and words[0].endswith((".html", ".htm")):
        return f"{message}; --open takes no file, --html does: --html {words[0]}"
    if words and not any(word.startswith("-") for word in words) and "--csv" in options:
        return f"{message}; --csv, --json and --xml print on stdout: write > {words[0]}"
    if not option:
        # Of another case: -P for -p.
        short = next((word[:2] for word in words if re.match(r"-[a-zA-Z]", word)), "")
        # -device for --device.
        long = next((f"-{word}" for word in words if re.match(r"-[a-zA-Z]{2,}", word)), "")
        if long in options:
            return f"{message}; did you mean {long}?"
        if short and short.swapcase() in parser._option_string_actions:
            return f"{message}; did you mean {short.swapcase()}?"
        return message
    # Imported here: only a mistake needs it.
    from neutrino.probing.nearest import nearest

    guess = nearest(option.partition("=")[0], [name for name in parser._option_string_actions if name.startswith("--")])
    return f"{message}; did you mean {guess}?" if guess else message
