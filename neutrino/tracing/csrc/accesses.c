/* What a launch's accesses to memory are like: by instruction, by page and time, and how far apart the same line comes
 * again. Two passes over the records of a log: the first finds the pages and counts by instruction, the second fills
 * the grids. neutrino/tracing/accesses.py has the structures, too; docs/trace.md the layout of a log's groups. */
#include <stdlib.h>
#include <string.h>

#include "accesses.h"

enum {
    ACCESSES_INTERFACE = 5,
    PAGE_BITS = 12,   /* of an address within a page */
    PAGE_SIZE = 1 << PAGE_BITS,
    AREA_BITS = 10,   /* of a page within an area */
    PAGES = 1 << AREA_BITS,
    AREAS_MOST = 1 << 15, /* of 4 MiB: 128 GiB */
    SECTOR_BITS = 5,
    LINE_BITS = 7,
    INTERVALS = 64,   /* of a launch, of each of which is known which lines it touched */
};

/* Of the executions of one instruction by lanes of a warp together: how many, by how the addresses of the lanes lie. */
struct site {
    uint64_t accesses, bytes, executions, single, broadcast, linear, strided, irregular;
    uint64_t sectors, lines; /* of 32 and of 128 bytes, that each execution touches, summed */
    uint64_t lowest, highest; /* addresses, of the first byte and after the last one */
    int64_t stride; /* of the first strided execution */
    uint64_t other_strides; /* strided executions with another one */
    uint64_t apart_pairs; /* neighbouring lanes of irregular executions, and how far apart their addresses are */
    double apart;
    uint64_t kinds[KINDS];
};

/* Which pages of an area were touched, and how many touched pages have lower addresses than each 64 of them. */
struct area {
    uint64_t touched[PAGES / 64];
    uint32_t before[PAGES / 64];
};

/* What both passes work on. */
struct facts {
    struct site *sites;
    uint64_t site_count, strange; /* records whose instruction or kind there is not */
    uint64_t *first_clocks;       /* of each slot (a warp of the grid) */
    uint64_t slot_count, first_clock, last_clock;
    uint64_t *names;     /* a hash table of areas: the number + 1, and 0 where there is none */
    struct area *areas;  /* in the same places */
    uint64_t page_count, area_count, table_bits;
    /* The second pass. Columns are runs of `1 << column_pages` touched pages, or `1 << column_parts` are a page. */
    uint64_t columns, column_pages, column_parts, times;
    uint64_t *column_accesses;
    uint64_t *page_accesses; /* by the number of the page, in columns whose accesses are those of several runs */
    uint8_t *is_shared;      /* of each column, whether it is such a one */
    uint32_t *grid;      /* [kind][time][column] */
    uint64_t warp_rows;
    uint32_t *warp_grid; /* [warp row][column] */
    uint64_t granule_bits;
    uint64_t granule_words; /* of each interval in `touched` */
    uint64_t *touched;   /* [interval][granule of touched pages], a bit each: accesses of one time are near in memory */
    uint64_t sample_mask, sample_count, sample_room;
    uint64_t *sample_clocks, *sample_lines;
    uint64_t pass, is_out_of_memory;
    uint64_t are_sized; /* whether records say how many bytes */
    uint64_t empty;     /* records that say none: they access nothing */
};

static uint64_t mixed(uint64_t value)
{
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93u;
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93u;
    return value ^ value >> 32;
}

/* Where an area is in the table, or where it would be. */
static uint64_t place_of(const struct facts *facts, uint64_t area)
{
    uint64_t mask = ((uint64_t)1 << facts->table_bits) - 1, at = area * 0x9e3779b97f4a7c15u >> (64 - facts->table_bits);
    while (facts->names[at] && facts->names[at] != area + 1)
        at = (at + 1) & mask;
    return at;
}

static int grow(struct facts *facts)
{
    uint64_t *old = facts->names, size = (uint64_t)1 << facts->table_bits;
    struct area *old_areas = facts->areas;
    uint64_t *names = calloc(size * 2, sizeof *names);
    struct area *areas = calloc(size * 2, sizeof *areas);
    if (!names || !areas) {
        free(names);
        free(areas);
        return 0;
    }
    facts->names = names, facts->areas = areas;
    facts->table_bits++;
    for (uint64_t i = 0; i < size; i++)
        if (old[i]) {
            uint64_t at = place_of(facts, old[i] - 1);
            names[at] = old[i];
            areas[at] = old_areas[i];
        }
    free(old);
    free(old_areas);
    return 1;
}

/* Add an area to the table, at a place or where it is after the table has grown; NULL without memory. */
static struct area *add_area(struct facts *facts, uint64_t area, uint64_t at)
{
    if (facts->is_out_of_memory)
        return NULL;
    if (facts->area_count * 2 >= (uint64_t)1 << facts->table_bits) {
        facts->is_out_of_memory = facts->area_count >= AREAS_MOST || !grow(facts);
        if (facts->is_out_of_memory)
            return NULL;
        at = place_of(facts, area);
    }
    facts->names[at] = area + 1;
    facts->area_count++;
    return &facts->areas[at];
}

static inline void add_page(struct facts *facts, uint64_t page)
{
    uint64_t at = place_of(facts, page >> AREA_BITS);
    struct area *area = facts->names[at] ? &facts->areas[at] : add_area(facts, page >> AREA_BITS, at);
    if (area)
        area->touched[page % PAGES / 64] |= (uint64_t)1 << page % 64;
}

/* A page's number in the order of addresses; UINT64_MAX if the first pass has not seen it. */
static inline uint64_t rank_of(const struct facts *facts, uint64_t page)
{
    uint64_t at = place_of(facts, page >> AREA_BITS);
    if (!facts->names[at])
        return UINT64_MAX;
    const struct area *area = &facts->areas[at];
    uint64_t touched = area->touched[page % PAGES / 64], before = area->before[page % PAGES / 64];
    if (touched == UINT64_MAX)
        return before + page % 64;
    if (!(touched >> page % 64 & 1))
        return UINT64_MAX;
    return before + (uint64_t)__builtin_popcountll(touched & (((uint64_t)1 << page % 64) - 1));
}

static int compare(const void *one, const void *other)
{
    uint64_t left = *(const uint64_t *)one, right = *(const uint64_t *)other;
    return (left > right) - (left < right);
}

/* Sectors and lines that have been met, in the order of addresses. */
struct met {
    uint64_t sectors, lines, last_sector, last_line, is_any;
};

static void meet(struct met *met, uint64_t address, uint64_t bytes)
{
    uint64_t last = bytes ? address + bytes - 1 : address;
    uint64_t sector = address >> SECTOR_BITS, last_sector = last >> SECTOR_BITS;
    uint64_t line = address >> LINE_BITS, last_line = last >> LINE_BITS;
    if (met->is_any) {
        sector = sector > met->last_sector ? sector : met->last_sector + 1;
        line = line > met->last_line ? line : met->last_line + 1;
    }
    if (!met->is_any || last_sector >= sector) {
        met->sectors += last_sector - sector + 1;
        met->last_sector = last_sector;
    }
    if (!met->is_any || last_line >= line) {
        met->lines += last_line - line + 1;
        met->last_line = last_line;
    }
    met->is_any = 1;
}

typedef uint32_t four __attribute__((vector_size(16)));

/*
 * In how many pieces of `1 << bits` bytes addresses are, up to 64 GiB from `lowest` on. Each is compared with all
 * before it, four at a time: faster than to sort so few.
 */
static unsigned count_pieces(const uint64_t *addresses, unsigned count, uint64_t lowest, unsigned bits)
{
    uint32_t pieces[2 * LANES];
    unsigned differ = 0;
    memset(pieces, 0xff, sizeof pieces);
    for (unsigned i = 0; i < count; i++)
        pieces[LANES + i] = (uint32_t)((addresses[i] - lowest) >> bits);
    for (unsigned i = 0; i < count; i += 4) {
        four own, other, came = { 0 };
        memcpy(&own, pieces + LANES + i, sizeof own);
        for (unsigned apart = 1; apart < i + 4; apart++) {
            memcpy(&other, pieces + LANES + i - apart, sizeof other);
            came |= (four)(own == other);
        }
        for (unsigned k = 0; k < 4 && i + k < count; k++)
            differ += !came[k];
    }
    return differ;
}

/* How many sectors and lines accesses touch whose addresses neither ascend nor descend. lowest: of the addresses;
 * are_apart: no access has bytes of two sectors, and the addresses are within 64 GiB. */
static void meet_unordered(struct met *met, const struct execution *execution, uint64_t lowest, int are_apart)
{
    const uint64_t *addresses = execution->addresses;
    unsigned count = execution->count;
    if (are_apart) {
        lowest = lowest >> LINE_BITS << LINE_BITS;
        met->sectors = met->lines = count_pieces(addresses, count, lowest, LINE_BITS);
        /* Those in lines of their own are in sectors of their own. */
        if (met->lines < count)
            met->sectors = count_pieces(addresses, count, lowest, SECTOR_BITS);
        return;
    }
    struct { uint64_t address, bytes; } sorted[LANES];
    for (unsigned i = 0; i < count; i++) {
        unsigned at = i;
        for (; at && sorted[at - 1].address > addresses[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at].address = addresses[i];
        sorted[at].bytes = execution->bytes[i];
    }
    for (unsigned i = 0; i < count; i++)
        meet(met, sorted[i].address, sorted[i].bytes);
}

static void meet_all(
    struct met *met, const struct execution *execution, uint64_t lowest, int are_apart, int is_rising, int is_falling)
{
    if (is_rising) {
        for (unsigned i = 0; i < execution->count; i++)
            meet(met, execution->addresses[i], execution->bytes[i]);
    } else if (is_falling) {
        for (unsigned i = execution->count; i--;)
            meet(met, execution->addresses[i], execution->bytes[i]);
    } else {
        meet_unordered(met, execution, lowest, are_apart);
    }
}

/* The first pass. */
static void survey(struct facts *facts, const struct execution *execution)
{
    const uint64_t *addresses = execution->addresses;
    const uint8_t *lanes = execution->lanes;
    unsigned count = execution->count;
    if (execution->site >= facts->site_count) {
        facts->strange += count;
        return;
    }
    struct site *site = &facts->sites[execution->site];
    /* Lanes that did not take part are steps, too: the stride is from lane to lane of the warp. */
    int64_t apart = count > 1 ? (int64_t)(addresses[1] - addresses[0]) : 0;
    int64_t lanes_apart = count > 1 ? lanes[1] - lanes[0] : 1;
    int64_t stride = lanes_apart == 1 ? apart : apart % lanes_apart ? INT64_MIN : apart / lanes_apart;
    uint64_t lowest = addresses[0], top = addresses[0], highest = 0, is_irregular = stride == INT64_MIN;
    uint64_t bytes = 0, has_two = 0;
    int is_rising = 1, is_falling = 1;
    for (unsigned i = 0; i < count; i++) {
        uint64_t address = addresses[i], end = address + execution->bytes[i];
        lowest = address < lowest ? address : lowest;
        top = address > top ? address : top;
        highest = end > highest ? end : highest;
        /* The last byte is that of the address where there are none. */
        has_two |= (address ^ (end - (end != address))) >> SECTOR_BITS;
        is_irregular |= (address - addresses[0]) ^ ((uint64_t)stride * (uint64_t)(lanes[i] - lanes[0]));
    }
    for (unsigned i = 1; i < count; i++) {
        is_rising &= addresses[i] >= addresses[i - 1];
        is_falling &= addresses[i] <= addresses[i - 1];
    }
    for (unsigned i = 0; i < count; i++)
        bytes += execution->bytes[i];
    if (execution->is_one_kind && execution->kinds[0] < KINDS) {
        site->kinds[execution->kinds[0]] += count;
    } else {
        for (unsigned i = 0; i < count; i++)
            if (execution->kinds[i] < KINDS)
                site->kinds[execution->kinds[i]]++;
            else
                facts->strange++;
    }
    uint64_t page = UINT64_MAX;
    for (unsigned i = 0; i < count; i++) {
        uint64_t first = addresses[i] >> PAGE_BITS;
        uint64_t last = execution->bytes[i] ? (addresses[i] + execution->bytes[i] - 1) >> PAGE_BITS : first;
        if (first != page)
            add_page(facts, first);
        if (last != first)
            add_page(facts, last);
        page = last;
    }
    site->lowest = site->accesses && site->lowest < lowest ? site->lowest : lowest;
    site->highest = site->accesses && site->highest > highest ? site->highest : highest;
    site->bytes += bytes;
    site->accesses += count;
    site->executions++;
    struct met met = { 0 };
    int are_near = (top - lowest) >> 36 == 0;
    meet_all(&met, execution, lowest, !has_two && are_near, is_rising, is_falling);
    site->sectors += met.sectors;
    site->lines += met.lines;
    uint64_t clock = execution->clock;
    facts->first_clock = clock < facts->first_clock ? clock : facts->first_clock;
    facts->last_clock = clock > facts->last_clock ? clock : facts->last_clock;
    if (execution->slot < facts->slot_count && clock < facts->first_clocks[execution->slot])
        facts->first_clocks[execution->slot] = clock;
    if (count == 1) {
        site->single++;
    } else if (is_irregular) {
        site->irregular++;
        /* Halves of 32 bits, whose sums are exact. */
        uint64_t low = 0, high = 0;
        for (unsigned i = 1; i < count; i++) {
            uint64_t step = addresses[i] - addresses[i - 1], is_down = -(step >> 63);
            step = (step ^ is_down) - is_down;
            low += step & UINT32_MAX;
            high += step >> 32;
        }
        site->apart += (double)high * 0x1p32 + (double)low;
        site->apart_pairs += count - 1;
    } else if (!stride) {
        site->broadcast++;
    } else if (stride == execution->bytes[0]) {
        site->linear++;
    } else {
        if (!site->strided++)
            site->stride = stride;
        site->other_strides += stride != site->stride;
    }
}

/*
 * Add a line to those that are followed, unless this execution has it already. since: where those of this execution
 * begin; returns the same after this. Where there is no room, half of the lines are followed no longer.
 */
static uint64_t follow(struct facts *facts, uint64_t line, uint64_t clock, uint64_t since)
{
    for (uint64_t i = since; i < facts->sample_count; i++)
        if (facts->sample_lines[i] == line)
            return since;
    if (facts->sample_count == facts->sample_room) {
        uint64_t mask = facts->sample_mask << 1 | 1, kept = 0, begin = 0;
        for (uint64_t i = 0; i < facts->sample_count; i++) {
            begin = i == since ? kept : begin;
            if (!(mixed(facts->sample_lines[i]) & mask)) {
                facts->sample_lines[kept] = facts->sample_lines[i];
                facts->sample_clocks[kept++] = facts->sample_clocks[i];
            }
        }
        since = since < facts->sample_count ? begin : kept;
        facts->sample_mask = mask, facts->sample_count = kept;
        if (kept == facts->sample_room || mixed(line) & mask)
            return since;
    }
    facts->sample_lines[facts->sample_count] = line;
    facts->sample_clocks[facts->sample_count++] = clock;
    return since;
}

/* Which granules an execution touches, and which of its lines are followed. */
struct touching {
    uint64_t *touched; /* of its interval */
    uint64_t granule_bits, clock, followed, mask; /* followed, mask: of its lines */
};

/* Say that a line was touched. place: of an address in it, as if touched pages followed each other. */
static inline void touch(struct facts *facts, struct touching *touching, uint64_t place, uint64_t line)
{
    uint64_t granule = place >> touching->granule_bits;
    touching->touched[granule / 64] |= (uint64_t)1 << granule % 64;
    if (!(mixed(line) & touching->mask)) {
        touching->followed = follow(facts, line, touching->clock, touching->followed);
        touching->mask = facts->sample_mask;
    }
}

/* Say which lines were touched. places: of the addresses, UINT64_MAX where the first pass has not seen the page. */
static void touch_all(
    struct facts *facts, const struct execution *execution, struct touching *touching, const uint64_t *places)
{
    uint64_t last_line = 0;
    for (unsigned i = 0; i < execution->count; i++) {
        uint64_t address = execution->addresses[i], line = address >> LINE_BITS;
        if (places[i] == UINT64_MAX)
            continue;
        if (line != last_line || !i)
            touch(facts, touching, places[i], line);
        last_line = line;
        /* An access that is not aligned, or is wide. */
        uint64_t end = execution->bytes[i] ? (address + execution->bytes[i] - 1) >> LINE_BITS : line;
        while (line < end) {
            uint64_t rank = rank_of(facts, ++line << LINE_BITS >> PAGE_BITS);
            if (rank == UINT64_MAX)
                continue;
            touch(facts, touching, rank << PAGE_BITS | (line << LINE_BITS & (PAGE_SIZE - 1)), line);
            last_line = line;
        }
    }
}

/*
 * Count accesses of lanes. row: of the grid, for their kind, NULL if that is unknown; warp_row: of the grid of warps;
 * columns: of each lane, UINT64_MAX if it is not counted.
 */
static void count_in(
    struct facts *facts, uint32_t *row, uint32_t *warp_row, const uint64_t *columns, unsigned count)
{
    for (unsigned i = 0, end; i < count; i = end) {
        uint64_t column = columns[i];
        for (end = i + 1; end < count && columns[end] == column; end++) {
        }
        if (column == UINT64_MAX)
            continue;
        if (row)
            row[column] += end - i;
        warp_row[column] += end - i;
        facts->column_accesses[column] += end - i;
    }
}

/* The second pass. */
static void fill(struct facts *facts, const struct execution *execution)
{
    /* The trace may have changed since the first pass. */
    if (execution->site >= facts->site_count || execution->clock < facts->first_clock
        || execution->clock > facts->last_clock)
        return;
    const uint64_t *addresses = execution->addresses;
    const uint8_t *kinds = execution->kinds;
    unsigned count = execution->count;
    uint64_t since = execution->clock - facts->first_clock, span = facts->last_clock - facts->first_clock + 1;
    __extension__ typedef unsigned __int128 wide;
    uint64_t time = (uint64_t)((wide)since * facts->times / span);
    uint64_t interval = (uint64_t)((wide)since * INTERVALS / span);
    uint64_t row = (uint64_t)((wide)execution->slot * facts->warp_rows / (facts->slot_count ? facts->slot_count : 1));
    row = row < facts->warp_rows ? row : facts->warp_rows - 1;
    uint32_t *warp_row = facts->warp_grid + row * facts->columns;
    uint64_t *touched = facts->touched + interval * facts->granule_words;
    uint64_t places[LANES], columns[LANES], page = UINT64_MAX, rank = UINT64_MAX;
    for (unsigned i = 0; i < count; i++) {
        if (!i || addresses[i] >> PAGE_BITS != page)
            rank = rank_of(facts, page = addresses[i] >> PAGE_BITS);
        places[i] = rank == UINT64_MAX ? rank : rank << PAGE_BITS | (addresses[i] & (PAGE_SIZE - 1));
        /* Of an address anywhere in memory the word is in no near cache: it comes while the others are looked up. */
        if (places[i] != UINT64_MAX)
            __builtin_prefetch(&touched[places[i] >> facts->granule_bits >> 6], 1);
    }
    unsigned of_column = PAGE_BITS + (unsigned)facts->column_pages - (unsigned)facts->column_parts;
    for (unsigned i = 0; i < count; i++) {
        columns[i] = places[i] == UINT64_MAX ? UINT64_MAX : places[i] >> of_column;
        if (places[i] != UINT64_MAX && facts->is_shared[columns[i]])
            facts->page_accesses[places[i] >> PAGE_BITS]++;
    }
    for (unsigned i = 0, end; i < count; i = end) {
        for (end = execution->is_one_kind ? count : i + 1; end < count && kinds[end] == kinds[i]; end++) {
        }
        uint32_t *of_kind = kinds[i] < KINDS ? facts->grid + (kinds[i] * facts->times + time) * facts->columns : NULL;
        count_in(facts, of_kind, warp_row, columns + i, end - i);
    }
    struct touching touching = {
        touched, facts->granule_bits, execution->clock, facts->sample_count, facts->sample_mask,
    };
    touch_all(facts, execution, &touching, places);
}

/* Leave out the lanes that access nothing, as those of a masked copy; say how many they are. */
static unsigned leave_out_empty(struct execution *execution)
{
    unsigned kept = 0, count = execution->count;
    for (unsigned i = 0; i < count; i++) {
        execution->addresses[kept] = execution->addresses[i];
        execution->bytes[kept] = execution->bytes[i];
        execution->kinds[kept] = execution->kinds[i];
        execution->lanes[kept] = execution->lanes[i];
        kept += execution->bytes[i] != 0;
    }
    execution->count = kept;
    return count - kept;
}

void nt_accesses_look_at(struct facts *facts, struct execution *execution)
{
    unsigned has_empty = 0;
    for (unsigned i = 0; i < execution->count; i++)
        has_empty |= !execution->bytes[i];
    if (has_empty && facts->are_sized) {
        unsigned empty = leave_out_empty(execution);
        facts->empty += facts->pass == 1 ? empty : 0;
    }
    if (execution->count)
        (facts->pass == 1 ? survey : fill)(facts, execution);
}

EXPORTED int nt_accesses_interface(void)
{
    return ACCESSES_INTERFACE;
}

/* Free what the passes have allocated. */
EXPORTED void nt_accesses_end(struct facts *facts)
{
    free(facts->names);
    free(facts->areas);
    facts->names = NULL, facts->areas = NULL;
}

/* Begin the first pass. Returns whether there was memory. */
EXPORTED int nt_accesses_begin(struct facts *facts)
{
    facts->table_bits = 8;
    facts->names = calloc((size_t)1 << facts->table_bits, sizeof *facts->names);
    facts->areas = calloc((size_t)1 << facts->table_bits, sizeof *facts->areas);
    facts->first_clock = UINT64_MAX;
    facts->pass = 1;
    return facts->names && facts->areas;
}

/* End the first pass: say how many pages were touched in page_count. */
EXPORTED void nt_accesses_count(struct facts *facts)
{
    facts->page_count = 0;
    for (uint64_t i = 0; i < (uint64_t)1 << facts->table_bits; i++)
        for (unsigned part = 0; facts->names[i] && part < PAGES / 64; part++)
            facts->page_count += (uint64_t)__builtin_popcountll(facts->areas[i].touched[part]);
}

/*
 * Write the pages that were touched in ascending order to `sorted`, page_count of them, number them, and begin the
 * second pass. Returns whether there was memory.
 */
EXPORTED int nt_accesses_number(struct facts *facts, uint64_t *sorted)
{
    uint64_t *numbers = malloc((facts->area_count + 1) * sizeof *numbers), count = 0, pages = 0;
    if (!numbers)
        return 0;
    for (uint64_t i = 0; i < (uint64_t)1 << facts->table_bits; i++)
        if (facts->names[i])
            numbers[count++] = facts->names[i] - 1;
    qsort(numbers, count, sizeof *numbers, compare);
    for (uint64_t i = 0; i < count; i++) {
        struct area *area = &facts->areas[place_of(facts, numbers[i])];
        for (uint64_t page = 0; page < PAGES; page++) {
            if (page % 64 == 0)
                area->before[page / 64] = (uint32_t)pages;
            if (area->touched[page / 64] >> page % 64 & 1)
                sorted[pages++] = numbers[i] << AREA_BITS | page;
        }
    }
    free(numbers);
    facts->pass = 2;
    return 1;
}

/* How many bits of a word are set. In plain arithmetic, of which compilers make vectors. */
static inline uint64_t bits_of(uint64_t word)
{
    word -= word >> 1 & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
    word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    word += word >> 8;
    word += word >> 16;
    return (word + (word >> 32)) & 0xff;
}

/*
 * Say in how many granules each of the intervals was, and how many were first touched in it: adds to `within` and
 * `first`, of INTERVALS each. The first row of `touched` has those of all intervals afterwards.
 */
EXPORTED void nt_accesses_intervals(struct facts *facts, uint64_t *within, uint64_t *first)
{
    uint64_t *known = facts->touched;
    for (uint64_t i = 0; i < facts->granule_words; i++)
        within[0] += bits_of(known[i]);
    first[0] += within[0];
    for (uint64_t interval = 1; interval < INTERVALS; interval++) {
        const uint64_t *touched = facts->touched + interval * facts->granule_words;
        uint64_t all = 0, fresh = 0;
        for (uint64_t i = 0; i < facts->granule_words; i++) {
            all += bits_of(touched[i]);
            fresh += bits_of(touched[i] & ~known[i]);
            known[i] |= touched[i];
        }
        within[interval] += all;
        first[interval] += fresh;
    }
}

/* Look at records that are decoded already, those of an execution after one another. */
EXPORTED void nt_accesses_add(struct facts *facts, const struct access *accesses, uint64_t count)
{
    struct execution execution;
    for (uint64_t begin = 0, end; begin < count; begin = end) {
        execution.clock = accesses[begin].clock;
        execution.slot = accesses[begin].slot;
        execution.site = accesses[begin].site;
        execution.count = 0;
        execution.is_one_kind = 0;
        for (end = begin; end < count && execution.count < LANES; end++) {
            const struct access *access = &accesses[end];
            if (access->slot != execution.slot || access->clock != execution.clock || access->site != execution.site
                || (end > begin && access->lane <= access[-1].lane))
                break;
            unsigned number = execution.count++;
            execution.addresses[number] = access->address;
            execution.bytes[number] = access->bytes;
            execution.kinds[number] = access->kind;
            execution.lanes[number] = access->lane;
        }
        nt_accesses_look_at(facts, &execution);
    }
}

/*
 * How far apart the same line comes again, in different lines between (its reuse distance).
 *
 * lines: in the order of the accesses, numbers below distinct. Adds to distances[i] how many accesses had a distance d
 * with i bits (0: the same line at once), and returns how many lines came for the first time; -1 without memory.
 */
EXPORTED int64_t nt_accesses_reuse(const uint32_t *lines, uint64_t count, uint64_t distinct_lines, uint64_t *distances)
{
    uint32_t *last = calloc(distinct_lines + 1, sizeof *last), *tree = calloc(count + 1, sizeof *tree);
    int64_t first = 0;
    if (!last || !tree) {
        free(last);
        free(tree);
        return -1;
    }
    for (uint64_t i = 1; i <= count; i++) {
        uint64_t before = last[lines[i - 1]], between = 0;
        if (before) {
            /* Of each line its last access alone is in the tree: those after `before` are the lines between. */
            for (uint64_t j = i - 1; j; j &= j - 1)
                between += tree[j];
            for (uint64_t j = before; j; j &= j - 1)
                between -= tree[j];
            for (uint64_t j = before; j <= count; j += j & -j)
                tree[j]--;
            distances[between ? 64 - __builtin_clzll(between) : 0]++;
        } else {
            first++;
        }
        for (uint64_t j = i; j <= count; j += j & -j)
            tree[j]++;
        last[lines[i - 1]] = (uint32_t)i;
    }
    free(last);
    free(tree);
    return first;
}
