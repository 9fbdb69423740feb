/* The records of a log's chunks of groups, in which lanes of a warp that save together share what they can. */
#include <stdlib.h>
#include <string.h>

#include "accesses.h"

enum {
    FIELDS = 10,      /* of a record in groups, at most */
};

static inline uint64_t load(const uint8_t *at, unsigned size)
{
    uint64_t eight;
    uint32_t four;
    uint16_t two;
    switch (size) {
    case 8:
        memcpy(&eight, at, sizeof eight);
        return eight;
    case 4:
        memcpy(&four, at, sizeof four);
        return four;
    case 2:
        memcpy(&two, at, sizeof two);
        return two;
    default:
        return *at;
    }
}

static uint64_t align(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* How the records of groups lie, by the shape in the head of their chunk. */
struct group_layout {
    unsigned count, sizes[FIELDS], offsets[FIELDS], wanted[WANTED];
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
        layout->offsets[layout->count] = (unsigned)offset;
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

/* The lanes of one part of a group: how many there are, their numbers, and how many lanes of the group are before each. */
struct lanes {
    unsigned count;
    uint8_t numbers[LANES], ranks[LANES];
};

static void list_lanes(struct lanes *lanes, uint64_t mask, uint64_t own)
{
    lanes->count = 0;
    for (uint64_t left = own; left; left &= left - 1) {
        uint64_t lowest = left & -left;
        lanes->numbers[lanes->count] = (uint8_t)__builtin_ctzll(left);
        lanes->ranks[lanes->count] =
            (uint8_t)(own == mask ? lanes->count : (unsigned)__builtin_popcountll(mask & (lowest - 1)));
        lanes->count++;
    }
}

/*
 * A group, where in it are the areas and strides of its fields, and how many records each lane has. places: of the fields
 * in its further records, ABSENT for those that are as in the first one; order_at, mask_at: in them, too; size: of each.
 */
enum { ABSENT = 255 };
struct group {
    const uint8_t *begin, *after, *areas[FIELDS], *further;
    uint64_t stride_at[FIELDS], mask, forms, mask_at, size;
    uint8_t places[FIELDS];
    unsigned times;
    int are_short;
};

/* Find out what the further records of a group are like, and leave of its forms those of the first record. */
static void lay_out_further(const struct group_layout *layout, struct group *group)
{
    unsigned at = 0;
    uint64_t forms = group->forms;
    int has_mask = forms >> 23 & 1;
    group->are_short = group->times > 1 && layout->count < FIELDS && forms >> 19 & 1;
    group->mask_at = layout->later + 4, group->size = layout->further;
    if (!group->are_short)
        return;
    for (unsigned i = 0; i < layout->count; i++) {
        unsigned form = forms >> 2 * i & 3;
        int is_two = layout->sizes[i] <= 2 && form == 1;
        has_mask |= is_two;
        group->places[i] = form == 3 || is_two ? ABSENT : (uint8_t)at;
        at += form == 3 || is_two ? 0 : 4;
        if (form == 3)
            group->forms &= ~((uint64_t)3 << 2 * i);
    }
    group->mask_at = at + (forms >> 18 & 1 ? 0 : 4);
    group->size = align(group->mask_at + (has_mask ? layout->mask_bytes : 0), 16);
    group->forms &= ~((uint64_t)3 << 18);
}

/* Read the head of the group at `begin`. Returns whether there is a whole one before `end`. */
static int read_group(const uint8_t *begin, const uint8_t *end, const struct group_layout *layout, struct group *group)
{
    uint64_t next_stride = layout->strides, size = layout->head, room = (uint64_t)(end - begin);
    if (room < layout->head)
        return 0;
    group->begin = begin;
    group->mask = load(begin, (unsigned)layout->mask_bytes), group->forms = load(begin + layout->mask_bytes, 4);
    unsigned count = (unsigned)__builtin_popcountll(group->mask);
    group->times = 1 + (unsigned)(group->forms >> 28 & 15);
    lay_out_further(layout, group);
    for (unsigned i = 0; i < layout->count; i++) {
        unsigned form = group->forms >> 2 * i & 3, width = (1u << form) & ~1u;
        width = width < layout->sizes[i] ? width : layout->sizes[i];
        group->areas[i] = begin + size;
        size += layout->sizes[i] <= 2 && form == 1 ? 2 * layout->mask_bytes : align((uint64_t)count * width, 8);
        group->stride_at[i] = next_stride;
        next_stride += layout->sizes[i] == 8 ? 4 : 0;
        if (size > room)
            return 0;
    }
    size = align(size, 16) + (layout->are_rows_after_head && group->forms >> 20 & 7 ? 16 : 0);
    uint64_t further_at = size;
    size += group->size * (group->times - 1);
    if (!count || size > room)
        return 0;
    group->further = begin + further_at;
    group->after = begin + size;
    return 1;
}

/* The first or a further record of a group's lowest lane. */
static const uint8_t *record_of(const struct group *group, const struct group_layout *layout, unsigned part)
{
    return part ? group->further + (part - 1) * group->size : group->begin + layout->record;
}

/* The lanes that have the first or a further record of a group. */
static uint64_t lanes_of(const struct group *group, const struct group_layout *layout, unsigned part)
{
    if (!part || !(group->forms >> 23 & 1))
        return group->mask;
    return load(record_of(group, layout, part) + group->mask_at, (unsigned)layout->mask_bytes) & group->mask;
}

/* How a field of a group is written: FORM_SAME and FORM_STRIDES have nothing for each lane. */
enum { FORM_SAME, FORM_STRIDES, FORM_TWO, FORM_16, FORM_32, FORM_ALL };

static unsigned form_of(const struct group *group, const struct group_layout *layout, unsigned number, int is_further)
{
    unsigned size = layout->sizes[number], form = group->forms >> 2 * number & 3;
    if (size <= 2 && form == 1)
        return FORM_TWO;
    if (form && !is_further) {
        /* Differences are of wider fields than they are themselves. */
        unsigned width = 1u << form;
        return form == 3 ? FORM_ALL : width >= size ? FORM_SAME : form == 1 ? FORM_16 : FORM_32;
    }
    if (size < 8)
        return FORM_SAME;
    int has_rows = (group->forms >> 24 & 15) == number && group->forms >> 20 & 7;
    return has_rows || load(group->begin + group->stride_at[number], 4) ? FORM_STRIDES : FORM_SAME;
}

/* The value of a field that the lowest lane has in a record. is_further: it is not the first. */
static uint64_t lowest_of(
    const struct group *group, const struct group_layout *layout, unsigned number, const uint8_t *record, int is_further)
{
    unsigned size = layout->sizes[number];
    if (!is_further || !group->are_short)
        return load(record + layout->offsets[number], size);
    uint64_t first = load(group->begin + layout->record + layout->offsets[number], size);
    if (group->places[number] == ABSENT)
        return first;
    uint64_t word = load(record + group->places[number], 4);
    if (size == 8)
        return first + (uint64_t)(int64_t)(int32_t)word;
    return size == 4 ? word : word & (((uint64_t)1 << 8 * size) - 1);
}

/* Values of a field of a group's lanes that have a record. is_further: it is not the first. */
static void values_of(
    const struct group *group, const struct group_layout *layout, unsigned number, unsigned form,
    const uint8_t *record, int is_further, const struct lanes *lanes, uint64_t *values)
{
    unsigned size = layout->sizes[number], count = lanes->count;
    uint64_t most = size == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * size) - 1;
    const uint8_t *area = group->areas[number], *ranks = lanes->ranks;
    uint64_t base = lowest_of(group, layout, number, record, is_further), other, others, stride, to_next;
    unsigned log;
    switch (form) {
    case FORM_TWO:
        other = load(area + layout->mask_bytes, size);
        others = load(is_further ? record + group->mask_at : area, (unsigned)layout->mask_bytes);
        for (unsigned i = 0; i < count; i++)
            values[i] = others >> lanes->numbers[i] & 1 ? other : base;
        return;
    case FORM_16:
        for (unsigned i = 0; i < count; i++)
            values[i] = (base + (uint64_t)(int64_t)(int16_t)load(area + (size_t)ranks[i] * 2, 2)) & most;
        return;
    case FORM_32:
        for (unsigned i = 0; i < count; i++)
            values[i] = (base + (uint64_t)(int64_t)(int32_t)load(area + (size_t)ranks[i] * 4, 4)) & most;
        return;
    case FORM_ALL:
        /* Of no part but the first, whose lanes are all that the group has. */
        if (size == 8)
            memcpy(values, area, 8 * (size_t)count);
        else
            for (unsigned i = 0; i < count; i++)
                values[i] = load(area + (size_t)i * size, size);
        return;
    case FORM_STRIDES:
        stride = (uint64_t)(int64_t)(int32_t)load(group->begin + group->stride_at[number], 4);
        log = (group->forms >> 24 & 15) == number ? group->forms >> 20 & 7 : 0;
        to_next = log ? (uint64_t)(int64_t)(int32_t)load(group->begin + layout->rows_at, 4) : 0;
        log = log ? log : 6;
        for (unsigned i = 0; i < count; i++)
            values[i] = base + stride * (ranks[i] & ((1u << log) - 1)) + to_next * (ranks[i] >> log);
        return;
    default:
        for (unsigned i = 0; i < count; i++)
            values[i] = base;
    }
}

/* Executions that are not looked at yet, since more lanes of theirs may follow: the last one, and room for another. */
struct decoder {
    struct facts *facts;
    uint32_t slot;
    struct execution *last, *next;
    struct execution executions[2];
};

/* Look at the last execution, unless the next one is of further lanes of it. */
static void put_next(struct decoder *decoder)
{
    struct execution *last = decoder->last, *next = decoder->next;
    if (last->count && last->slot == next->slot && last->clock == next->clock && last->site == next->site
        && last->count + next->count <= LANES && next->lanes[0] > last->lanes[last->count - 1]) {
        memcpy(last->addresses + last->count, next->addresses, next->count * sizeof *next->addresses);
        memcpy(last->bytes + last->count, next->bytes, next->count * sizeof *next->bytes);
        memcpy(last->kinds + last->count, next->kinds, next->count);
        memcpy(last->lanes + last->count, next->lanes, next->count);
        last->count += next->count;
        last->is_one_kind = 0;
        return;
    }
    nt_accesses_look_at(decoder->facts, last);
    decoder->last = next;
    decoder->next = last;
}

/* As many bytes as an execution has room for: more are no fewer than that. */
static inline uint16_t bytes_of(uint64_t bytes)
{
    return bytes > UINT16_MAX ? UINT16_MAX : (uint16_t)bytes;
}

/*
 * Put the accesses of lanes, whose addresses and lanes the next execution has. values: of the fields of WANTED; is_same:
 * whether the first one is that of all lanes.
 */
static void put_lanes(struct decoder *decoder, unsigned count, uint64_t (*values)[LANES], const int *is_same)
{
    struct execution *next = decoder->next;
    next->slot = decoder->slot, next->count = count;
    next->clock = values[1][0], next->site = (uint32_t)values[2][0];
    for (unsigned i = 0; i < count; i++)
        next->bytes[i] = bytes_of(values[3][is_same[3] ? 0 : i]);
    next->is_one_kind = is_same[4];
    for (unsigned i = 0; i < count; i++) {
        uint64_t kind = values[4][is_same[4] ? 0 : i];
        next->kinds[i] = kind < KINDS ? (uint8_t)kind : KINDS;
    }
    if (is_same[1] && is_same[2]) {
        put_next(decoder);
        return;
    }
    /* Lanes with clocks or sites of their own are executions of their own, but for neighbours with the same. */
    struct execution all = *next;
    for (unsigned i = 0; i < count; i++) {
        next = decoder->next;
        next->slot = all.slot, next->count = 1, next->is_one_kind = 1;
        next->clock = values[1][is_same[1] ? 0 : i], next->site = (uint32_t)values[2][is_same[2] ? 0 : i];
        next->addresses[0] = all.addresses[i], next->bytes[0] = all.bytes[i];
        next->kinds[0] = all.kinds[i], next->lanes[0] = all.lanes[i];
        put_next(decoder);
    }
}

/* Decode a chunk of groups into executions. begin: of the first group, end: of the chunk. */
static void decode_chunk(
    struct decoder *decoder, const struct group_layout *layout, const uint8_t *begin, const uint8_t *end)
{
    struct lanes lanes = { 0 };
    uint64_t listed = 0, values[WANTED][LANES];
    int is_same[WANTED];
    for (struct group group; read_group(begin, end, layout, &group); begin = group.after) {
        for (unsigned part = 0; part < group.times; part++) {
            const uint8_t *record = record_of(&group, layout, part);
            uint64_t own = lanes_of(&group, layout, part);
            if (!own)
                continue;
            /* Most groups have the lanes of the one before. */
            if (own != group.mask || own != listed)
                list_lanes(&lanes, group.mask, own);
            listed = own == group.mask ? own : 0;
            for (unsigned i = 0; i < WANTED; i++) {
                unsigned number = layout->wanted[i];
                is_same[i] = 1;
                values[i][0] = 0;
                if (number == FIELDS)
                    continue;
                unsigned form = form_of(&group, layout, number, part > 0);
                if (form == FORM_SAME && i) {
                    values[i][0] = lowest_of(&group, layout, number, record, part > 0);
                    continue;
                }
                values_of(&group, layout, number, form, record, part > 0, &lanes,
                          i ? values[i] : decoder->next->addresses);
                is_same[i] = 0;
            }
            memcpy(decoder->next->lanes, lanes.numbers, lanes.count);
            put_lanes(decoder, lanes.count, values, is_same);
        }
    }
}

/* Write the records of a chunk of groups, lane by lane, if there is somewhere; return how many there are. */
static uint64_t write_chunk(
    const struct group_layout *layout, const uint8_t *begin, const uint8_t *end, uint8_t *records)
{
    struct lanes lanes = { 0 };
    uint64_t listed = 0, values[LANES], size = layout->record_size, count = 0;
    for (struct group group; read_group(begin, end, layout, &group); begin = group.after) {
        for (unsigned part = 0; part < group.times; part++) {
            const uint8_t *record = record_of(&group, layout, part);
            uint64_t own = lanes_of(&group, layout, part);
            uint8_t *rows = records ? records + count * size : NULL;
            count += (uint64_t)__builtin_popcountll(own);
            if (!records || !own)
                continue;
            if (own != group.mask || own != listed)
                list_lanes(&lanes, group.mask, own);
            listed = own == group.mask ? own : 0;
            memset(rows, 0, lanes.count * size);
            for (unsigned number = 0; number < layout->count; number++) {
                unsigned width = layout->sizes[number];
                uint8_t *at = rows + layout->offsets[number];
                values_of(&group, layout, number, form_of(&group, layout, number, part > 0), record, part > 0, &lanes,
                          values);
                switch (width) {
                case 8:
                    for (unsigned i = 0; i < lanes.count; i++, at += size)
                        memcpy(at, &values[i], 8);
                    break;
                case 4:
                    for (unsigned i = 0; i < lanes.count; i++, at += size)
                        memcpy(at, &values[i], 4);
                    break;
                default:
                    for (unsigned i = 0; i < lanes.count; i++, at += size)
                        memcpy(at, &values[i], width);
                }
            }
        }
    }
    return count;
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
 * end, its slot, the shape of its records.
 */
EXPORTED void nt_accesses_of_groups(
    struct facts *facts, const struct fields *fields, const uint8_t *log, uint64_t length,
    const uint64_t (*chunks)[4], uint64_t count)
{
    struct group_layout layout;
    uint64_t shape = UINT64_MAX;
    int is_ours = 0;
    struct decoder decoder;
    decoder.facts = facts;
    decoder.last = &decoder.executions[0], decoder.next = &decoder.executions[1];
    decoder.last->count = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (chunks[i][1] > length || chunks[i][0] + 16 > chunks[i][1])
            continue;
        /* Records of another shape are not this map's, and not read by others either. */
        if (chunks[i][3] != shape)
            is_ours = lay_out(shape = chunks[i][3], fields, &layout);
        if (!is_ours)
            continue;
        decoder.slot = (uint32_t)chunks[i][2];
        decode_chunk(&decoder, &layout, log + chunks[i][0] + 16, log + chunks[i][1]);
    }
    nt_accesses_look_at(facts, decoder.last);
}

/*
 * Write the records of a log's chunks of groups, each of record_size bytes, one after the other; return how many there
 * are. records: NULL to count them.
 *
 * log, length, chunks, count: as above.
 */
EXPORTED uint64_t nt_log_records(
    const uint8_t *log, uint64_t length, const uint64_t (*chunks)[4], uint64_t count, uint64_t record_size,
    uint8_t *records)
{
    struct fields fields = { .size = record_size };
    struct group_layout layout;
    uint64_t shape = UINT64_MAX, found = 0;
    int is_ours = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (chunks[i][1] > length || chunks[i][0] + 16 > chunks[i][1])
            continue;
        if (chunks[i][3] != shape)
            is_ours = lay_out(shape = chunks[i][3], &fields, &layout);
        if (is_ours)
            found += write_chunk(&layout, log + chunks[i][0] + 16, log + chunks[i][1],
                                 records ? records + found * record_size : NULL);
    }
    return found;
}
