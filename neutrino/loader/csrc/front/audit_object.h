/* What an object (program or library) that the dynamic loader has mapped says of itself. Without libc. */
#ifndef NEUTRINO_AUDIT_OBJECT_H
#define NEUTRINO_AUDIT_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a text begins with a prefix, and whether two texts are equal. */
bool nt_audit_object_begins(const char *text, const char *prefix);
bool nt_audit_object_is_same(const char *a, const char *b);

/* The length of a text in bytes, without NUL. */
size_t nt_audit_object_length(const char *text);

/* The part of a path after its last slash. */
const char *nt_audit_object_base(const char *path);

/* The value of the first entry with that tag in the object's dynamic section; 0 if it has none. */
uint64_t nt_audit_object_value(const struct link_map *object, int64_t tag);

/* The address of what the object defines under that name; NULL if it does not define it. */
const void *nt_audit_object_symbol(const struct link_map *object, const char *name);

/* Whether the object depends (DT_NEEDED) on a library whose name, without folder, begins so. */
bool nt_audit_object_needs(const struct link_map *object, const char *prefix);

#endif
