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

/* A record that is decoded already. */
struct access {
    uint64_t address, clock;
    uint32_t slot, site;
    uint16_t bytes;
    uint8_t kind, lane;
    uint32_t spare;
};

/* What lanes of a warp (a slot) accessed as they executed an instruction (a site) together, in the order of lanes. */
struct execution {
    uint64_t clock;
    uint32_t slot, site;
    unsigned count;
    int is_one_kind; /* whether it is known that all have the kind of the first */
    uint64_t addresses[LANES];
    uint16_t bytes[LANES];
    uint8_t kinds[LANES], lanes[LANES];
};

/* Where the fields of a record are, in the order of WANTED: size 0 where a record has no such field. */
struct fields {
    uint64_t size, offsets[WANTED], sizes[WANTED];
};

struct facts;

/* The execution is not needed afterwards. */
void nt_accesses_look_at(struct facts *facts, struct execution *execution);
