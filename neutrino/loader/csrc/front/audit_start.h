/* The start of a process that has the auditing module: room for thread-local storage, and whether its children get it. */
#ifndef NEUTRINO_AUDIT_START_H
#define NEUTRINO_AUDIT_START_H

#include <link.h>

/* The loader has mapped an object of the program's namespace; the program is the first. May run the program anew. */
void nt_audit_start_object(const struct link_map *object);

/* The objects of the start are there and relocated, and no code of the program has run. */
void nt_audit_start_end(void);

#endif
