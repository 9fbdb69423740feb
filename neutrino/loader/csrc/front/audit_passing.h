/*
 * NVRTC and nvJitLink in the program's process: whoever looks up one of a few of their functions gets one of ours, which
 * calls it, and tells the hook once that is there. The libraries themselves are as the program has chosen them.
 */
#ifndef NEUTRINO_AUDIT_PASSING_H
#define NEUTRINO_AUDIT_PASSING_H

#include <link.h>
#include <stdint.h>

/* An object was mapped: what la_objopen returns for it. */
unsigned nt_audit_passing_flags(const struct link_map *object);

/* A name was found in an object, at that address: the address that who looks it up gets. */
uintptr_t nt_audit_passing_bound(const struct link_map *object, const char *name, uintptr_t address);

/* The hook is there, and says so: from now on it is told. */
void nt_audit_passing_starts(const struct link_map *hook);

#endif
