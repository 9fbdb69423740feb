/*
 * Links in progress (the driver's cuLink*, nvJitLink), by their handles: which PTX a cubin (machine code for a GPU) is
 * made from. Only of one that has a single input, PTX, is it known.
 */
#ifndef NEUTRINO_LINKS_H
#define NEUTRINO_LINKS_H

#include <stddef.h>

/* A link begins. unsupported: why its result cannot be probed, a text that is never freed; NULL: nothing is known yet. */
void nt_links_begin(const void *handle, const char *unsupported);

/* It gets an input. text: PTX, of size bytes or up to its NUL; NULL: it is something else. */
void nt_links_add(const void *handle, const char *text, size_t size, const char *unsupported);

/* It is done: this is its result. by: whose link it is, a text that is never freed. */
void nt_links_done(const void *handle, const void *cubin, size_t size, const char *by);

/* Its handle ends. */
void nt_links_end(const void *handle);

#endif
