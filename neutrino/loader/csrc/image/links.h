/*
 * Links in progress (the driver's cuLink*, nvJitLink), by their handles: which PTX a cubin (machine code for a GPU) is
 * made from. It is known of a link that has a single input, PTX, and of one that has LTO IR alone (input of optimization
 * at link time), once somebody has linked that for its PTX.
 */
#ifndef NEUTRINO_LINKS_H
#define NEUTRINO_LINKS_H

#include <stddef.h>

#include "image/ltoir.h"

/*
 * A link begins. unsupported: why its result cannot be probed, a text that is never freed; NULL: nothing is known yet.
 * ltoir: where its LTO IR is kept, the link's from now on; NULL: its PTX cannot be made from LTO IR.
 */
void nt_links_begin(const void *handle, const char *unsupported, struct nt_ltoir *ltoir);

/* It gets an input. text: PTX, of size bytes or up to its NUL; NULL: it is something else. */
void nt_links_add(const void *handle, const char *text, size_t size, const char *unsupported);

/* It gets LTO IR. */
void nt_links_add_ltoir(const void *handle, const void *data, size_t size);

/* Its LTO IR, if its inputs are nothing else, whose PTX is wanted: the caller's, and given once. Else NULL. */
struct nt_ltoir *nt_links_take_ltoir(const void *handle);

/* The PTX of that LTO IR: memory of nt_memory_alloc, the link's from now on; NULL: why there is none, never freed. */
void nt_links_give_ptx(const void *handle, char *text, size_t size, const char *why);

/* It is done: this is its result. by: whose link it is, a text that is never freed. */
void nt_links_done(const void *handle, const void *cubin, size_t size, const char *by);

/* Its handle ends. */
void nt_links_end(const void *handle);

#endif
