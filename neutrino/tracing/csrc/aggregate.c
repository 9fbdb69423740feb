/* Aggregates of the records of many launches: least, greatest, sum of some of their fields, and how many values are in
 * each bucket of a range. One pass over memory each; nothing is allocated, and nothing kept.
 *
 * docs/trace.md has the layout of slots. Values are extended to 64 bits; records may lie at any address. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define INLINED static inline __attribute__((always_inline))

enum { INTERFACE = 1, BUCKETS = 1 << 16, BLOCK = 512, GATHERED = 16 << 10 };

/* A field's type, as neutrino/tracing/aggregate.py numbers them. */
enum type { U8, U16, U32, U64, S8, S16, S32, S64, F32, F64 };

/* Where records are: tiles of cap rows of lanes records of size bytes. Each of blocks has so many tiles back to back, in
 * which the first threads lanes exist; the data of launches begin stride bytes apart. */
struct shape {
    uint64_t launches, stride, blocks, tiles, cap, lanes, threads, size;
};

/* What is known of a field. minimum, maximum: an integer or, of floating point, an f64, left alone without a value. sum:
 * of integers 128 bits, the lower half first; of floating point an f64. nans: values that are none. */
struct range {
    uint64_t minimum, maximum, sum[2], nans;
};

/* A field of a pass. Either range gets its aggregates; or counts gets how many values are in each bucket, by
 * (key - low) >> shift. A key is an unsigned number, greater for a greater value, and the greatest for NaNs. */
struct field {
    uint64_t offset, type, low, shift;
    struct range *range;
    uint64_t *counts;
};

/* Of the slots' counts, which go on beyond cap: the greatest one, and the sum of what is beyond. */
struct saves {
    uint64_t wanted, dropped;
};

/* A pass over records. visited: how many. gathered: bytes of those in scratch, which lay apart and are visited together. */
struct pass {
    void (*visit_field)(const struct field *field, const uint8_t *records, size_t count, size_t stride);
    const struct field *fields;
    uint64_t field_count, size, visited, gathered;
    uint8_t scratch[GATHERED];
};

#define LOAD(TYPE)                                                                                                     \
    TYPE value;                                                                                                        \
    memcpy(&value, at, sizeof value)

/* The integer of that type at an address, which need not be aligned, extended to 64 bits by its sign. */
INLINED uint64_t load_integer(enum type type, const uint8_t *at)
{
    switch (type) {
    case U8: { LOAD(uint8_t); return value; }
    case U16: { LOAD(uint16_t); return value; }
    case U32: { LOAD(uint32_t); return value; }
    case S8: { LOAD(int8_t); return (uint64_t)(int64_t)value; }
    case S16: { LOAD(int16_t); return (uint64_t)(int64_t)value; }
    case S32: { LOAD(int32_t); return (uint64_t)(int64_t)value; }
    default: { LOAD(uint64_t); return value; }
    }
}

/* The floating-point number (F32 or F64) at an address, which need not be aligned, as a double. */
INLINED double load_float(enum type type, const uint8_t *at)
{
    if (type == F32) { LOAD(float); return value; }
    LOAD(double);
    return value;
}

/*
 * The number of that type at an address as an unsigned key: keys of floating-point numbers are in the order of these,
 * and that of a NaN is the greatest. Keys of signed integers are their 64 bits.
 */
INLINED uint64_t load_key(enum type type, const uint8_t *at)
{
    if (type == F32) {
        LOAD(uint32_t);
        if ((value & INT32_MAX) > 0x7f800000)
            return UINT32_MAX;
        return value >> 31 ? (uint32_t)~value : value | (uint32_t)1 << 31;
    }
    if (type == F64) {
        LOAD(uint64_t);
        if ((value & INT64_MAX) > 0x7ff0000000000000)
            return UINT64_MAX;
        return value >> 63 ? ~value : value | (uint64_t)1 << 63;
    }
    return load_integer(type, at);
}

/*
 * Add `count` unsigned numbers, stride bytes apart from `at` on, to the least and greatest of a field (range) and to
 * its 128-bit sum.
 */
INLINED void add_unsigned(enum type type, const uint8_t *at, size_t count, size_t stride, struct range *range)
{
    uint64_t least = range->minimum, greatest = range->maximum, sum = 0;
    __extension__ unsigned __int128 all = (unsigned __int128)range->sum[1] << 64 | range->sum[0];
    for (size_t i = 0; i < count; i++, at += stride) {
        uint64_t value = load_integer(type, at);
        least = value < least ? value : least;
        greatest = value > greatest ? value : greatest;
        /* The sum of a block's narrow values fits in 64 bits. */
        if (type == U64)
            all += value;
        else
            sum += value;
    }
    all += sum;
    *range = (struct range){ least, greatest, { (uint64_t)all, (uint64_t)(all >> 64) }, 0 };
}

/*
 * Add `count` signed numbers, stride bytes apart from `at` on, to the least and greatest of a field (range) and to its
 * 128-bit sum.
 */
INLINED void add_signed(enum type type, const uint8_t *at, size_t count, size_t stride, struct range *range)
{
    int64_t least = (int64_t)range->minimum, greatest = (int64_t)range->maximum, sum = 0;
    __extension__ unsigned __int128 all = (unsigned __int128)range->sum[1] << 64 | range->sum[0];
    for (size_t i = 0; i < count; i++, at += stride) {
        int64_t value = (int64_t)load_integer(type, at);
        least = value < least ? value : least;
        greatest = value > greatest ? value : greatest;
        if (type == S64)
            __extension__ all += (unsigned __int128)(__int128)value;
        else
            sum += value;
    }
    __extension__ all += (unsigned __int128)(__int128)sum;
    *range = (struct range){ (uint64_t)least, (uint64_t)greatest, { (uint64_t)all, (uint64_t)(all >> 64) }, 0 };
}

/*
 * Add `count` floating-point numbers, stride bytes apart from `at` on, to the least and greatest of a field (range) and
 * to its sum, a double. NaNs are counted, and spoil the sum only.
 */
INLINED void add_floats(enum type type, const uint8_t *at, size_t count, size_t stride, struct range *range)
{
    double least, greatest, sum;
    uint64_t nans = range->nans;
    memcpy(&least, &range->minimum, sizeof least);
    memcpy(&greatest, &range->maximum, sizeof greatest);
    memcpy(&sum, &range->sum, sizeof sum);
    for (size_t i = 0; i < count; i++, at += stride) {
        double value = load_float(type, at);
        least = value < least ? value : least;
        greatest = value > greatest ? value : greatest;
        sum += value;
        nans += value != value;
    }
    memcpy(&range->minimum, &least, sizeof least);
    memcpy(&range->maximum, &greatest, sizeof greatest);
    memcpy(&range->sum, &sum, sizeof sum);
    range->nans = nans;
}

/*
 * Visit one field in `count` records that are stride bytes apart: add it to its range (least, greatest, sum), or count
 * it in the bucket of its key. type and stride are constants where this is inlined, so that the loops are fast.
 */
INLINED void visit_type(enum type type, const uint8_t *at, size_t count, size_t stride, const struct field *field)
{
    if (field->range) {
        /* On the stack, where no record can be, so that it is kept in registers. */
        struct range range = *field->range;
        if (type >= F32)
            add_floats(type, at, count, stride, &range);
        else if (type >= S8)
            add_signed(type, at, count, stride, &range);
        else
            add_unsigned(type, at, count, stride, &range);
        *field->range = range;
        return;
    }
    uint64_t low = field->low, shift = field->shift, *counts = field->counts;
    for (size_t i = 0; i < count; i++, at += stride) {
        uint64_t bucket = (load_key(type, at) - low) >> shift;
        if (bucket < BUCKETS)
            counts[bucket]++;
    }
}

/* The strides of most records are constants to the loops; all others share one. */
#define OF_TYPE(TYPE)                                                                                                  \
    case TYPE:                                                                                                         \
        switch (stride) {                                                                                              \
        case 4: visit_type(TYPE, at, count, 4, field); break;                                                          \
        case 8: visit_type(TYPE, at, count, 8, field); break;                                                          \
        case 16: visit_type(TYPE, at, count, 16, field); break;                                                        \
        case 24: visit_type(TYPE, at, count, 24, field); break;                                                        \
        case 32: visit_type(TYPE, at, count, 32, field); break;                                                        \
        case 48: visit_type(TYPE, at, count, 48, field); break;                                                        \
        case 64: visit_type(TYPE, at, count, 64, field); break;                                                        \
        default: visit_type(TYPE, at, count, stride, field); break;                                                    \
        }                                                                                                              \
        break;

/*
 * Visit one field, of any type, in `count` records that are stride bytes apart: add it to its range (least, greatest,
 * sum), or count it in its bucket. records: the first record.
 */
INLINED void visit_any(const struct field *field, const uint8_t *records, size_t count, size_t stride)
{
    const uint8_t *at = records + field->offset;
    switch ((enum type)field->type) {
        OF_TYPE(U8) OF_TYPE(U16) OF_TYPE(U32) OF_TYPE(U64) OF_TYPE(S8) OF_TYPE(S16) OF_TYPE(S32) OF_TYPE(S64)
        OF_TYPE(F32) OF_TYPE(F64)
    }
}

static void visit_field(const struct field *field, const uint8_t *records, size_t count, size_t stride)
{
    visit_any(field, records, count, stride);
}

#if defined(__x86_64__) && !defined(WITHOUT_512)
/* The same with the vectors of AVX-512, twice as fast. Floating point is added in the same order. */
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
static void visit_field_by_512(const struct field *field, const uint8_t *records, size_t count, size_t stride)
{
    visit_any(field, records, count, stride);
}

static int has_512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
#define visit_field_by_512 visit_field
static int has_512(void) { return 0; }
#endif

/* Visit all fields of `count` records that lie back to back, in blocks that stay in the cache for all fields. */
static void visit(struct pass *pass, const uint8_t *records, uint64_t count)
{
    pass->visited += count;
    while (count) {
        uint64_t block = count < BLOCK ? count : BLOCK;
        for (uint64_t number = 0; number < pass->field_count; number++)
            pass->visit_field(&pass->fields[number], records, block, pass->size);
        records += block * pass->size;
        count -= block;
    }
}

/* Visit the records that were gathered in pass->scratch, and empty it. */
static void flush(struct pass *pass)
{
    visit(pass, pass->scratch, pass->gathered / pass->size);
    pass->gathered = 0;
}

/*
 * Visit all fields of `count` records that lie back to back; if these are few, they are copied to pass->scratch, to be
 * visited together with others.
 */
static void visit_few(struct pass *pass, const uint8_t *records, uint64_t count)
{
    uint64_t bytes = count * pass->size;
    if (bytes > GATHERED / 4) {
        visit(pass, records, count);
        return;
    }
    if (pass->gathered + bytes > GATHERED)
        flush(pass);
    if (pass->size == 16 && count == 1)
        memcpy(pass->scratch + pass->gathered, records, 16);
    else
        memcpy(pass->scratch + pass->gathered, records, bytes);
    pass->gathered += bytes;
}

/*
 * Visit the records of a tile (slots of a warp, row by row) whose slots have counts: each lane has as many records as
 * its count, at most cap. counts: u32 for each lane; lanes: how many of them exist. saves gets the greatest count, and
 * how much counts exceed cap.
 */
static void visit_slots(struct pass *pass, const struct shape *shape, const uint8_t *tile, const uint8_t *counts,
                        uint64_t lanes, struct saves *saves)
{
    uint64_t full = UINT64_MAX, most = 0;
    for (uint64_t lane = 0; lane < shape->lanes; lane++) {
        uint32_t count;
        memcpy(&count, counts + lane * sizeof count, sizeof count);
        saves->wanted = count > saves->wanted ? count : saves->wanted;
        saves->dropped += count > shape->cap ? count - shape->cap : 0;
        if (lane < lanes) {
            full = count < full ? count : full;
            most = count > most ? count : most;
        }
    }
    full = lanes < shape->lanes ? 0 : full < shape->cap ? full : shape->cap;
    most = most < shape->cap ? most : shape->cap;
    if (full)
        visit_few(pass, tile, full * shape->lanes);
    for (uint64_t row = full; row < most; row++) {
        const uint8_t *records = tile + row * shape->lanes * shape->size;
        for (uint64_t lane = 0; lane < lanes; lane++) {
            uint32_t count;
            memcpy(&count, counts + lane * sizeof count, sizeof count);
            if (count > row)
                visit_few(pass, records + lane * shape->size, 1);
        }
    }
}

/* The version of these functions' parameters, which the Python side compares with its own. */
EXPORTED uint64_t nt_aggregate_interface(void)
{
    return INTERFACE;
}

/*
 * Visit all records of many launches once; return how many there are. shape: where they lie. counts: of the first
 * launch's slots, u32 [block][tile][lane], as far apart as launches; NULL where each slot that exists has one record.
 * fields: what is aggregated, and where to. saves: what counts say is added to it.
 */
EXPORTED uint64_t nt_aggregate(const uint8_t *records, const uint8_t *counts, const struct shape *shape,
                               const struct field *fields, uint64_t field_count, struct saves *saves)
{
    struct pass pass;
    pass.visit_field = has_512() ? visit_field_by_512 : visit_field;
    pass.fields = fields;
    pass.field_count = field_count;
    pass.size = shape->size;
    pass.visited = pass.gathered = 0;
    uint64_t tile_bytes = shape->cap * shape->lanes * shape->size, block_bytes = shape->tiles * tile_bytes;
    uint64_t width = shape->tiles * shape->lanes;
    for (uint64_t launch = 0; launch < shape->launches; launch++) {
        const uint8_t *block = records + launch * shape->stride;
        if (!counts && shape->threads == width) {
            visit_few(&pass, block, shape->blocks * width);
            continue;
        }
        const uint8_t *slots = counts ? counts + launch * shape->stride : NULL;
        for (uint64_t number = 0; number < shape->blocks; number++, block += block_bytes) {
            if (!counts) {
                visit_few(&pass, block, shape->threads);
                continue;
            }
            for (uint64_t tile = 0; tile < shape->tiles; tile++, slots += shape->lanes * sizeof(uint32_t)) {
                uint64_t first = tile * shape->lanes, left = shape->threads > first ? shape->threads - first : 0;
                visit_slots(&pass, shape, block + tile * tile_bytes, slots, left < shape->lanes ? left : shape->lanes,
                            saves);
            }
        }
    }
    flush(&pass);
    return pass.visited;
}
