"""Host libraries and programs of every form that the linkers on this machine make.

Each holds ``answer() == 42``, which needs a constructor, relocated data, .bss and thread-local storage, a fatbin with
its wrapper, and ``show_section``, which writes the section that it finds in memory at the start of a PT_LOAD to a file.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ready;
static const char *words[] = {"four", "ty", "-two"};
const char **volatile table = words;
int zeros[BSS];
__thread int local = 7;

__attribute__((constructor)) static void begin(void) { ready = 1; }

int answer(void)
{
	/* addressed through relocations, .bss, thread-local storage and a constructor */
	int length = (int)strlen(table[0]) + 2 * (int)strlen(table[1]) + 4 * (int)strlen(table[2]);

	return length + ready * 18 - zeros[BSS - 1] - (local - 7);
}

struct found {
	const char *path;
	int segments;
};

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	struct found *found = data;
	uintptr_t here = (uintptr_t)answer;
	int mine = 0;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *row = &info->dlpi_phdr[i];
		uintptr_t begin = info->dlpi_addr + row->p_vaddr;
		if (row->p_type == PT_LOAD && here >= begin && here < begin + row->p_memsz)
			mine = 1;
	}
	/* Not as a string constant, which could be what a segment begins with. */
	char magic[8] = {0};
	for (int i = 0; i < 7; i++)
		magic[i] = (char)("OUTFDUO"[i] - 1);
	for (int i = 0; mine && i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *row = &info->dlpi_phdr[i];
		const char *begin = (const char *)(info->dlpi_addr + row->p_vaddr);
		if (row->p_type != PT_LOAD || row->p_filesz < 24 || memcmp(begin, magic, 8) != 0)
			continue;
		found->segments++;
		unsigned long long bytes;
		memcpy(&bytes, begin + 16, 8);
		FILE *file = fopen(found->path, "wb");
		if (!file || bytes > row->p_filesz || fwrite(begin, 1, bytes, file) != bytes || fclose(file))
			exit(90);
	}
	return 0;
}

int show_section(const char *path)
{
	struct found found = {path, 0};

	dl_iterate_phdr(look, &found);
	return found.segments;
}
"""
MAIN = r"""
#include <stdio.h>
#include <stdlib.h>

int answer(void);
int show_section(const char *path);

int main(int argc, char **argv)
{
	/* Small: from the heap that begins after the last segment. */
	char *heap = malloc(1000);
	if (!heap)
		return 91;
	heap[0] = 1;
	printf("%d %d\n", answer(), argc > 1 ? show_section(argv[1]) : -1);
	free(heap);
	return 3;
}
"""
LOADER = r"""
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *libraries[8];
	int count = 0;

	/* Pairs of a library and the file for its section; the last file may be left out. */
	for (int i = 1; i < argc && count < 8; i += 2) {
		void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			return 92;
		}
		int (*answer)(void) = (int (*)(void))dlsym(library, "answer");
		int (*show_section)(const char *) = (int (*)(const char *))dlsym(library, "show_section");
		if (!answer || !show_section)
			return 93;
		printf("%d %d\n", answer(), i + 1 < argc ? show_section(argv[i + 1]) : -1);
		libraries[count++] = library;
	}
	fflush(stdout);
	while (count)
		if (dlclose(libraries[--count]))
			return 94;
	return 3;
}
"""
STUB = r"""
#include <stdio.h>
__attribute__((constructor)) static void begin(void) { fprintf(stderr, "stub loaded\n"); }
"""
FATBIN = r"""
    .section .nv_fatbin,"a"
    .balign 8
container:
    .quad 0x00100001ba55ed50, 64
    .fill 64, 1, 0x5a
    .section .nvFatBinSegment,"aw"
    .balign 8
    .long 0x466243b1, 1
    .quad container
    .quad 0
    .section .note.GNU-stack,"",@progbits
"""
NO_NOTES = "SECTIONS { /DISCARD/ : { *(.note.gnu.property) *(.note.ABI-tag) } } INSERT BEFORE .init;\n"
BEHIND_BSS = "SECTIONS { .nv_fatbin : { *(.nv_fatbin) } } INSERT AFTER .bss;\n"

LINKS: dict[str, list[str]] = {
    "so": ["-shared"],
    "so-gold": ["-shared", "-fuse-ld=gold"],
    "so-lld": ["-shared", "-fuse-ld=lld"],
    "so-lld-build-id": ["-shared", "-fuse-ld=lld", "-Wl,--build-id"],
    "so-relr": ["-shared", "-Wl,-z,pack-relative-relocs"],
    "so-stripped": ["-shared", "-s"],
    "so-2mib": ["-shared", "-Wl,-z,max-page-size=0x200000"],
    "so-64k-lld": ["-shared", "-fuse-ld=lld", "-Wl,-z,max-page-size=0x10000"],
    "so-hash": ["-shared", "-Wl,--hash-style=both", "-Wl,-z,noseparate-code"],
    "so-behind-bss": ["-shared", "-Wl,-T,{folder}/behind_bss"],
    "so-no-notes": ["-shared", "-Wl,--build-id=none", "-nostartfiles", "-Wl,-T,{folder}/no_notes"],
    "so-build-id-only": ["-shared", "-Wl,--build-id", "-nostartfiles", "-Wl,-T,{folder}/no_notes"],
    "so-no-relro": ["-shared", "-Wl,-z,norelro"],
    "pie": ["-pie"],
    "pie-lld": ["-pie", "-fuse-ld=lld"],
    "pie-gold": ["-pie", "-fuse-ld=gold"],
    "pie-stripped": ["-pie", "-s"],
    "pie-no-notes": ["-pie", "-Wl,--build-id=none", "-Wl,-T,{folder}/no_notes"],
    "exe": ["-no-pie"],
    "exe-lld": ["-no-pie", "-fuse-ld=lld"],
    "exe-stripped": ["-no-pie", "-s"],
    "exe-no-notes": ["-no-pie", "-Wl,--build-id=none", "-Wl,-T,{folder}/no_notes"],
}
"""Arguments of the compiler, by the host's name. so: a library, pie and exe: programs."""
HEADERLESS = {
    "so-no-headers": "so",
    "pie-no-headers": "pie",
    "pie-no-notes-no-headers": "pie-no-notes",
    "exe-no-notes-no-headers": "exe-no-notes",
}
"""Hosts without section headers, and what they are made from."""
HOSTS = (*LINKS, *HEADERLESS, "so-patchelf")
REFUSED: dict[str, list[str]] = {
    "static": ["-static"],
    "static-pie": ["-static-pie"],
    "relocatable": ["-r", "-nostdlib"],
}


def need(tool: str, *others: str) -> str:
    """The path of the first of these tools, or the test is skipped with the reason."""
    for name in (tool, *others):
        # Beside the interpreter: tools that are Python packages.
        path = shutil.which(name) or shutil.which(str(Path(sys.executable).parent / name))
        if path:
            return path
    pytest.skip(f"{tool} is not on this machine")


def run(*argv: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. environment: added to this process's."""
    env = {**os.environ, "LC_ALL": "C", **(environment or {})}
    return subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False, env=env, timeout=600)


def must(*argv: str | Path) -> str:
    """Run a tool that must succeed; its standard output."""
    done = run(*argv)
    assert done.returncode == 0, f"{argv}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


class Workshop:
    """Builds hosts in a folder, each once. bss: elements of an array of int in .bss."""

    def __init__(self, folder: Path, bss: int = 5000) -> None:
        if os.uname().machine != "x86_64":
            pytest.skip("the hosts are linked for x86-64")
        self.folder = folder
        self.bss = bss
        self._made: dict[str, Path | str] = {}
        texts = {"host.c": SOURCE, "main.c": MAIN, "loader.c": LOADER, "stub.c": STUB, "fatbin.s": FATBIN}
        for name, text in {**texts, "behind_bss": BEHIND_BSS, "no_notes": NO_NOTES}.items():
            (folder / name).write_text(text)
        self._cc = need("cc", "gcc", "clang")
        # gcc looks for ld.lld on PATH, clang beside itself too.
        self._clang = shutil.which("clang-19") or shutil.which("clang") or self._cc

    def host(self, name: str) -> Path:
        """A host of HOSTS or REFUSED, or the test is skipped because it cannot be linked here."""
        if name in HEADERLESS:
            return self._once(name, lambda target: without_section_headers(self.host(HEADERLESS[name]), target))
        if name == "so-patchelf":
            return self._once(name, lambda target: in_segments_of_its_own(self.host("so"), target))
        return self._once(name, lambda target: self._link(target, {**LINKS, **REFUSED}[name]))

    def stub(self) -> Path:
        """A library that says on stderr that it is loaded."""
        return self._once("libstub.so", lambda target: self._compile(target, "stub.c", "-shared", "-fPIC"))

    def loader(self) -> Path:
        """A program that loads libraries one after the other, calls them, and unloads them."""
        return self._once("loader", lambda target: self._compile(target, "loader.c", "-ldl"))

    def user(self, library: Path, target: Path, *arguments: str) -> Path:
        """A program linked with a library."""
        compiler = self._clang if "-fuse-ld=lld" in arguments else self._cc
        must(compiler, self.folder / "main.c", library, f"-Wl,-rpath,{library.parent}", *arguments, "-o", target)
        return target

    def run(
        self, host: Path, *arguments: str | Path, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program, or load a library: ``42`` and how many sections are in memory, exit status 3.

        arguments: the file in which to put the section's bytes in memory.
        """
        program = [host] if is_program(host) else [self.loader(), host]
        return run(*program, *arguments, environment=environment)

    def _compile(self, target: Path, source: str, *arguments: str | Path) -> None:
        must(self._cc, self.folder / source, "-o", target, *arguments)

    def _once(self, name: str, make: Callable[[Path], object]) -> Path:
        if name not in self._made:
            target = self.folder / name
            try:
                make(target)
                self._made[name] = target
            except AssertionError as error:
                self._made[name] = f"this machine cannot link {name}: {str(error)[-300:]}"
        made = self._made[name]
        if isinstance(made, str):
            pytest.skip(made)
        return made

    def _link(self, target: Path, arguments: list[str]) -> None:
        arguments = [argument.format(folder=self.folder) for argument in arguments]
        library = "-shared" in arguments or "-r" in arguments
        code = "-fPIC" if library else "-fPIE" if {"-pie", "-static-pie"} & set(arguments) else "-fno-pie"
        sources = ["host.c", *([] if library else ["main.c"]), "fatbin.s"]
        compiler = self._clang if "-fuse-ld=lld" in arguments else self._cc
        paths = [self.folder / source for source in sources]
        must(compiler, "-g", "-O1", f"-DBSS={self.bss}", code, *arguments, *paths, "-o", target)


def is_program(host: Path) -> bool:
    """Whether a host is run by itself."""
    return not host.name.startswith("so")


def in_segments_of_its_own(path: Path, target: Path) -> None:
    """A copy that patchelf changed several times, as wheels have it: ``.dynstr`` is alone in a PT_LOAD."""
    shutil.copy(path, target)
    patchelf = need("patchelf")
    must(patchelf, "--set-rpath", "$ORIGIN/" + "x" * 3000, target)
    must(patchelf, "--set-soname", "y" * 5000, target)


def without_section_headers(path: Path, target: Path) -> Path:
    """A copy without section headers, as some packers leave it."""
    shutil.copy(path, target)
    with target.open("r+b") as file:
        data = bytearray(file.read(64))
        struct.pack_into("<Q", data, 0x28, 0)
        struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
        file.seek(0)
        file.write(data)
    return target
