/* Records of accesses to memory, as a log's groups have them. docs/trace.md has the layout of a log. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

enum {
    LANES = 64,       /* of a warp, at most */
    WANTED = 5,       /* fields of these are read: address, clock, site, bytes, kind */
    KINDS = 5,        /* of accesses: loads, stores, atomics, reductions, asynchronous copies */
};

struct access {
    uint64_t address, clock;
    uint32_t slot, site;
    uint16_t bytes;
    uint8_t kind, lane;
    uint32_t spare;
};

/* Where the fields of a record are, in the order of WANTED: size 0 where a record has no such field. */
struct fields {
    uint64_t size, offsets[WANTED], sizes[WANTED];
};

struct facts;

/* Look at records: those that follow each other with the same slot, clock and site are of one execution. */
void nt_accesses_look_at(struct facts *facts, const struct access *accesses, size_t count);
/* Say that there was no memory. */
void nt_accesses_lack_memory(struct facts *facts);
