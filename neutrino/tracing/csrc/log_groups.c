/* The records of a log's chunks of groups, in which lanes of a warp that save together share what they can. */
#include <stdlib.h>
#include <string.h>

#include "accesses.h"

enum {
    FURTHER = 16,     /* records of a lane in a group, at most */
    FIELDS = 10,      /* of a record in groups, at most */
    BUFFER = 1 << 14, /* records that are decoded before they are looked at */
};

static uint64_t load(const uint8_t *at, unsigned size)
{
    uint64_t value = 0;
    memcpy(&value, at, size);
    return value;
}

static uint64_t align(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* How the records of groups lie, by the shape in the head of their chunk. */
struct group_layout {
    unsigned count, sizes[FIELDS], wanted[WANTED];
    uint64_t mask_bytes, strides, rows_at, record, head, later, further, record_size;
    int are_rows_after_head;
};

/* Whether a shape is that of the records: the fields' sizes, and where those are that are wanted. */
static int lay_out(uint64_t shape, const struct fields *fields, struct group_layout *layout)
{
    uint64_t end = 0, widest = 1, wide = 0;
    memset(layout, 0, sizeof *layout);
    layout->mask_bytes = shape >> 30 & 1 ? 8 : 4;
    shape &= ~((uint64_t)1 << 30);
    for (unsigned i = 0; i < WANTED; i++)
        layout->wanted[i] = FIELDS;
    for (; (shape & 7) >= 1 && (shape & 7) <= 4; shape >>= 3) {
        if (layout->count == FIELDS)
            return 0;
        unsigned size = 1u << ((shape & 7) - 1);
        uint64_t offset = align(end, size);
        for (unsigned i = 0; i < WANTED; i++)
            if (fields->sizes[i] == size && fields->offsets[i] == offset)
                layout->wanted[i] = layout->count;
        layout->sizes[layout->count++] = size;
        end = offset + size;
        widest = size > widest ? size : widest;
        wide += size == 8;
    }
    for (unsigned i = 0; i < WANTED; i++)
        if (fields->sizes[i] && layout->wanted[i] == FIELDS)
            return 0;
    layout->record_size = fields->size;
    layout->strides = 8 + layout->mask_bytes;
    layout->rows_at = layout->strides + 4 * wide;
    layout->record = align(layout->rows_at, widest);
    layout->head = align(layout->record + fields->size, 16);
    layout->later = align(fields->size, 4);
    layout->further = align(layout->later + 4 + layout->mask_bytes, 16);
    layout->are_rows_after_head = layout->rows_at == layout->record;
    if (layout->are_rows_after_head)
        layout->rows_at = layout->head;
    return !shape && layout->count && align(end, widest) == fields->size;
}

/* Values of a field of a group's lanes. base: of the lowest lane. */
static void values_of(
    const uint8_t *group, const struct group_layout *layout, unsigned number, uint64_t forms, uint64_t base,
    const uint8_t *area, uint64_t stride_at, const uint8_t *ranks, unsigned count, uint64_t others, uint64_t mask,
    int is_further, uint64_t *values)
{
    unsigned size = layout->sizes[number], form = forms >> 2 * number & 3;
    uint64_t most = size == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * size) - 1;
    if (size <= 2 && form == 1) {
        uint64_t other = load(area + layout->mask_bytes, size), lanes = mask;
        for (unsigned i = 0; i < count; i++, lanes &= lanes - 1)
            values[i] = others >> __builtin_ctzll(lanes) & 1 ? other : base;
        return;
    }
    if (is_further)
        form = 0;
    if (form == 3) {
        for (unsigned i = 0; i < count; i++)
            values[i] = load(area + (size_t)ranks[i] * size, size);
    } else if (form) {
        for (unsigned i = 0; i < count; i++) {
            uint64_t added = form == 1 ? (uint64_t)(int64_t)(int16_t)load(area + (size_t)ranks[i] * 2, 2)
                                       : (uint64_t)(int64_t)(int32_t)load(area + (size_t)ranks[i] * 4, 4);
            values[i] = (base + added) & most;
        }
    } else if (size == 8) {
        uint64_t stride = (uint64_t)(int64_t)(int32_t)load(group + stride_at, 4);
        unsigned log = (forms >> 24 & 15) == number ? forms >> 20 & 7 : 0;
        uint64_t to_next = log ? (uint64_t)(int64_t)(int32_t)load(group + layout->rows_at, 4) : 0;
        log = log ? log : 6;
        for (unsigned i = 0; i < count; i++)
            values[i] = base + stride * (ranks[i] & ((1u << log) - 1)) + to_next * (ranks[i] >> log);
    } else {
        for (unsigned i = 0; i < count; i++)
            values[i] = base;
    }
}

/*
 * Decode a chunk of groups into records, and look at them whenever there may be no room for another group.
 *
 * begin: of the first group, end: of the chunk. Returns how many records are in the buffer then.
 */
static size_t decode_chunk(
    struct facts *facts, const struct group_layout *layout, const struct fields *fields, const uint8_t *begin,
    const uint8_t *end, uint32_t slot, struct access *buffer, size_t filled, uint64_t *records)
{
    while ((size_t)(end - begin) >= layout->head) {
        const uint8_t *areas[FIELDS];
        uint64_t stride_at[FIELDS], next_stride = layout->strides, size = layout->head;
        uint64_t mask = load(begin, (unsigned)layout->mask_bytes), forms = load(begin + layout->mask_bytes, 4);
        unsigned lanes = (unsigned)__builtin_popcountll(mask);
        for (unsigned i = 0; i < layout->count; i++) {
            unsigned width = (1u << (forms >> 2 * i & 3)) & ~1u;
            width = width < layout->sizes[i] ? width : layout->sizes[i];
            areas[i] = begin + size;
            size += layout->sizes[i] <= 2 && (forms >> 2 * i & 3) == 1 ? 2 * layout->mask_bytes
                                                                       : align((uint64_t)lanes * width, 8);
            stride_at[i] = next_stride;
            next_stride += layout->sizes[i] == 8 ? 4 : 0;
            if (size > (size_t)(end - begin))
                return filled;
        }
        size = align(size, 16) + (layout->are_rows_after_head && forms >> 20 & 7 ? 16 : 0);
        unsigned times = 1 + (unsigned)(forms >> 28 & 15);
        uint64_t further_at = size;
        size += layout->further * (times - 1);
        if (!lanes || size > (size_t)(end - begin))
            return filled;
        if (filled + LANES * FURTHER > BUFFER) {
            nt_accesses_look_at(facts, buffer, filled);
            filled = 0;
        }
        for (unsigned part = 0; part < times; part++) {
            const uint8_t *record = part ? begin + further_at + (part - 1) * layout->further : begin + layout->record;
            const uint8_t *others = record + layout->later + 4;
            uint64_t own = mask;
            uint8_t ranks[LANES];
            uint64_t values[WANTED][LANES];
            unsigned count = 0;
            if (part && forms >> 23 & 1)
                own = load(others, (unsigned)layout->mask_bytes) & mask;
            for (uint64_t left = own; left; left &= left - 1)
                ranks[count++] = (uint8_t)__builtin_popcountll(mask & ((left & -left) - 1));
            for (unsigned i = 0; i < WANTED; i++) {
                unsigned number = layout->wanted[i];
                if (number == FIELDS) {
                    memset(values[i], 0, sizeof values[i]);
                    continue;
                }
                /* The area of another form may end where the chunk does. */
                int has_two = layout->sizes[number] <= 2 && (forms >> 2 * number & 3) == 1;
                uint64_t with_other = has_two ? load(part ? others : areas[number], (unsigned)layout->mask_bytes) : 0;
                uint64_t base = load(record + fields->offsets[i], layout->sizes[number]);
                values_of(begin, layout, number, forms, base, areas[number], stride_at[number], ranks, count,
                          with_other, own, part > 0, values[i]);
            }
            for (unsigned i = 0; i < count; i++, own &= own - 1)
                buffer[filled++] = (struct access){
                    values[0][i], values[1][i], slot, (uint32_t)values[2][i], (uint16_t)values[3][i],
                    values[4][i] < KINDS ? (uint8_t)values[4][i] : KINDS, (uint8_t)__builtin_ctzll(own), 0,
                };
            *records += count;
        }
        begin += size;
    }
    return filled;
}

/*
 * The chunks of groups of a log: of each its first byte, its end, its slot (the warp in the grid), the shape of its
 * records, as far as there is room. Returns how many there are; -1 if the log has a chunk of another kind, too.
 *
 * own, own_each: units (32 bytes) of the chunks of all warps, which come first, and of each of them.
 */
EXPORTED int64_t nt_accesses_chunks(
    const uint8_t *log, uint64_t length, uint64_t own, uint64_t own_each, uint64_t (*chunks)[4], uint64_t room)
{
    uint64_t at = 0, taken = length / 32;
    int64_t count = 0;
    while (at < taken) {
        const uint8_t *head = log + at * 32;
        uint64_t slot = load(head, 4), shape = load(head + 4, 4), units = load(head + 12, 4);
        int is_groups = !load(head + 8, 4) && !(shape >> 31);
        if (is_groups && shape && units && units <= taken - at) {
            if ((uint64_t)count < room) {
                uint64_t *chunk = chunks[count];
                chunk[0] = at * 32, chunk[1] = (at + units) * 32, chunk[2] = slot, chunk[3] = shape;
            }
            count++;
        } else if (!is_groups) {
            return -1;
        } else if (at >= own || !own_each) {
            /* The last one did not fit, so that nothing was written; else it is a warp without records. */
            break;
        }
        at += at < own && own_each ? own_each : units;
    }
    return count;
}

/*
 * Look at the records of a log's chunks of groups.
 *
 * log: the whole region's bytes from the first chunk on, length of them. Of each of count chunks: its first byte, its
 * end, its slot, the shape of its records. Returns how many records there were.
 */
EXPORTED int64_t nt_accesses_of_groups(
    struct facts *facts, const struct fields *fields, const uint8_t *log, uint64_t length,
    const uint64_t (*chunks)[4], uint64_t count)
{
    struct group_layout layout;
    uint64_t shape = UINT64_MAX, records = 0;
    size_t filled = 0;
    int is_ours = 0;
    struct access *buffer = malloc(BUFFER * sizeof *buffer);
    if (!buffer) {
        nt_accesses_lack_memory(facts);
        return 0;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (chunks[i][1] > length || chunks[i][0] + 16 > chunks[i][1])
            continue;
        /* Records of another shape are not this map's, and not read by others either. */
        if (chunks[i][3] != shape)
            is_ours = lay_out(shape = chunks[i][3], fields, &layout);
        if (!is_ours)
            continue;
        filled = decode_chunk(facts, &layout, fields, log + chunks[i][0] + 16, log + chunks[i][1],
                              (uint32_t)chunks[i][2], buffer, filled, &records);
    }
    nt_accesses_look_at(facts, buffer, filled);
    free(buffer);
    return (int64_t)records;
}
