/* What a launch's accesses to memory are like: by instruction, by page and time, and how far apart the same line comes
 * again. Two passes over the records of a log: the first finds the pages and counts by instruction, the second fills
 * the grids. neutrino/tracing/accesses.py has the structures, too; docs/trace.md the layout of a log's groups. */
#include <stdlib.h>
#include <string.h>

#include "accesses.h"

enum {
    ACCESSES_INTERFACE = 1,
    PAGE_BITS = 12,   /* of an address within a page */
    AREA_BITS = 10,   /* of a page within an area */
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

/* What both passes work on. */
struct facts {
    struct site *sites;
    uint64_t site_count, strange; /* records whose instruction or kind there is not */
    uint64_t *first_clocks;       /* of each slot (a warp of the grid) */
    uint64_t slot_count, first_clock, last_clock;
    uint64_t *areas;  /* a hash table: areas (1024 pages each) + 1, and 0 where there is none */
    uint32_t **leaves; /* of each area of the table, by page: 1 if it was touched, then its number from 1 on; else 0 */
    uint64_t page_count, area_count, table_bits, last_area;
    uint32_t *last_leaf;
    /* The second pass. Columns are runs of `1 << column_pages` touched pages, or `1 << column_parts` are a page. */
    uint64_t columns, column_pages, column_parts, times;
    uint64_t *page_accesses; /* by the number of the page */
    uint32_t *grid;      /* [kind][time][column] */
    uint64_t warp_rows;
    uint32_t *warp_grid; /* [warp row][column] */
    uint64_t granule_bits, granules;
    uint64_t *touched;   /* of each granule of touched pages, in which intervals it was */
    uint64_t sample_mask, sample_count, sample_room;
    uint64_t *sample_clocks, *sample_lines;
    uint64_t pass, is_out_of_memory;
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
    uint64_t mask = ((uint64_t)1 << facts->table_bits) - 1, at = mixed(area) & mask;
    while (facts->areas[at] && facts->areas[at] != area + 1)
        at = (at + 1) & mask;
    return at;
}

static int grow(struct facts *facts)
{
    uint64_t *old = facts->areas, size = (uint64_t)1 << facts->table_bits;
    uint32_t **old_leaves = facts->leaves;
    uint64_t *areas = calloc(size * 2, sizeof *areas);
    uint32_t **leaves = calloc(size * 2, sizeof *leaves);
    if (!areas || !leaves) {
        free(areas);
        free(leaves);
        return 0;
    }
    facts->areas = areas, facts->leaves = leaves;
    facts->table_bits++;
    for (uint64_t i = 0; i < size; i++)
        if (old[i]) {
            uint64_t at = place_of(facts, old[i] - 1);
            areas[at] = old[i];
            leaves[at] = old_leaves[i];
        }
    free(old);
    free(old_leaves);
    return 1;
}

/* The leaf of a page's area; NULL where there is none, and if it is to be made, without memory. */
static uint32_t *leaf_of(struct facts *facts, uint64_t page, int is_made)
{
    uint64_t area = page >> AREA_BITS;
    if (area == facts->last_area)
        return facts->last_leaf;
    uint64_t at = place_of(facts, area);
    if (!facts->areas[at]) {
        if (!is_made || facts->is_out_of_memory)
            return NULL;
        if (facts->area_count * 2 >= (uint64_t)1 << facts->table_bits) {
            facts->is_out_of_memory = facts->area_count >= AREAS_MOST || !grow(facts);
            if (facts->is_out_of_memory)
                return NULL;
            at = place_of(facts, area);
        }
        facts->leaves[at] = calloc((size_t)1 << AREA_BITS, sizeof **facts->leaves);
        if (!facts->leaves[at]) {
            facts->is_out_of_memory = 1;
            return NULL;
        }
        facts->areas[at] = area + 1;
        facts->area_count++;
    }
    facts->last_area = area;
    return facts->last_leaf = facts->leaves[at];
}

static void add_page(struct facts *facts, uint64_t page)
{
    uint32_t *leaf = leaf_of(facts, page, 1);
    if (!leaf)
        return;
    uint32_t *touched = &leaf[page & ((1u << AREA_BITS) - 1)];
    facts->page_count += !*touched;
    *touched = 1;
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

/* How many sectors and lines accesses touch. is_rising: their addresses ascend; is_falling: they descend. */
static void meet_all(struct met *met, const struct access *accesses, unsigned count, int is_rising, int is_falling)
{
    if (is_rising) {
        for (unsigned i = 0; i < count; i++)
            meet(met, accesses[i].address, accesses[i].bytes);
    } else if (is_falling) {
        for (unsigned i = count; i--;)
            meet(met, accesses[i].address, accesses[i].bytes);
    } else {
        struct { uint64_t address, bytes; } sorted[LANES];
        for (unsigned i = 0; i < count; i++) {
            unsigned at = i;
            for (; at && sorted[at - 1].address > accesses[i].address; at--)
                sorted[at] = sorted[at - 1];
            sorted[at].address = accesses[i].address;
            sorted[at].bytes = accesses[i].bytes;
        }
        for (unsigned i = 0; i < count; i++)
            meet(met, sorted[i].address, sorted[i].bytes);
    }
}

/* The first pass, of lanes that executed an instruction together. */
static void survey(struct facts *facts, const struct access *accesses, unsigned count)
{
    const struct access *first = accesses;
    if (first->site >= facts->site_count) {
        facts->strange += count;
        return;
    }
    struct site *site = &facts->sites[first->site];
    uint64_t lowest = site->accesses ? site->lowest : UINT64_MAX, highest = site->accesses ? site->highest : 0;
    /* Lanes that did not take part are steps, too: the stride is from lane to lane of the warp. */
    int64_t apart = count > 1 ? (int64_t)(accesses[1].address - first->address) : 0;
    int64_t lanes = count > 1 ? accesses[1].lane - first->lane : 1;
    int64_t stride = lanes == 1 ? apart : apart % lanes ? INT64_MIN : apart / lanes;
    int is_regular = stride != INT64_MIN, is_rising = 1, is_falling = 1;
    for (unsigned i = 0; i < count; i++) {
        uint64_t address = accesses[i].address, end = address + accesses[i].bytes;
        site->bytes += accesses[i].bytes;
        if (accesses[i].kind < KINDS)
            site->kinds[accesses[i].kind]++;
        else
            facts->strange++;
        lowest = address < lowest ? address : lowest;
        highest = end > highest ? end : highest;
        is_regular &= (int64_t)(address - first->address)
            == (int64_t)((uint64_t)stride * (uint64_t)(accesses[i].lane - first->lane));
        is_rising &= !i || address >= accesses[i - 1].address;
        is_falling &= !i || address <= accesses[i - 1].address;
        add_page(facts, address >> PAGE_BITS);
        if (accesses[i].bytes)
            add_page(facts, (end - 1) >> PAGE_BITS);
    }
    site->lowest = lowest, site->highest = highest;
    site->accesses += count;
    site->executions++;
    struct met met = { 0 };
    meet_all(&met, accesses, count, is_rising, is_falling);
    site->sectors += met.sectors;
    site->lines += met.lines;
    facts->first_clock = first->clock < facts->first_clock ? first->clock : facts->first_clock;
    facts->last_clock = first->clock > facts->last_clock ? first->clock : facts->last_clock;
    if (first->slot < facts->slot_count && first->clock < facts->first_clocks[first->slot])
        facts->first_clocks[first->slot] = first->clock;
    if (count == 1) {
        site->single++;
    } else if (!is_regular) {
        site->irregular++;
        for (unsigned i = 1; i < count; i++) {
            int64_t step = (int64_t)(accesses[i].address - accesses[i - 1].address);
            site->apart += step < 0 ? -(double)step : (double)step;
        }
        site->apart_pairs += count - 1;
    } else if (!stride) {
        site->broadcast++;
    } else if (stride == first->bytes) {
        site->linear++;
    } else {
        if (!site->strided++)
            site->stride = stride;
        site->other_strides += stride != site->stride;
    }
}

/* A page's number in the order of addresses; UINT64_MAX if the first pass has not seen it. */
static uint64_t rank_of(struct facts *facts, uint64_t page)
{
    const uint32_t *leaf = leaf_of(facts, page, 0);
    return leaf ? (uint64_t)leaf[page & ((1u << AREA_BITS) - 1)] - 1 : UINT64_MAX;
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

/* The second pass, of lanes that executed an instruction together. */
static void fill(struct facts *facts, const struct access *accesses, unsigned count)
{
    const struct access *first = accesses;
    /* The trace may have changed since the first pass. */
    if (first->site >= facts->site_count || first->clock < facts->first_clock || first->clock > facts->last_clock)
        return;
    uint64_t since = first->clock - facts->first_clock, span = facts->last_clock - facts->first_clock + 1;
    __extension__ typedef unsigned __int128 wide;
    uint64_t time = (uint64_t)((wide)since * facts->times / span);
    uint64_t interval = (uint64_t)1 << (unsigned)((wide)since * INTERVALS / span);
    uint64_t row = (uint64_t)((wide)first->slot * facts->warp_rows / (facts->slot_count ? facts->slot_count : 1));
    row = row < facts->warp_rows ? row : facts->warp_rows - 1;
    uint64_t in_page = ((uint64_t)1 << PAGE_BITS) - 1, followed = facts->sample_count, places[LANES];
    /* Places of lines are far apart: first all of them, so that memory is waited for once. */
    for (unsigned i = 0; i < count; i++) {
        uint64_t address = accesses[i].address, rank = rank_of(facts, address >> PAGE_BITS);
        places[i] = rank == UINT64_MAX ? rank : rank << PAGE_BITS | (address & in_page);
        if (rank != UINT64_MAX)
            __builtin_prefetch(&facts->touched[places[i] >> facts->granule_bits], 1);
    }
    uint64_t last_line = 0;
    for (unsigned i = 0; i < count; i++) {
        if (places[i] == UINT64_MAX)
            continue;
        uint64_t rank = places[i] >> PAGE_BITS, line = accesses[i].address >> LINE_BITS;
        uint64_t column = (rank >> facts->column_pages << facts->column_parts)
            | (places[i] & in_page) >> (PAGE_BITS - facts->column_parts);
        if (accesses[i].kind < KINDS)
            facts->grid[(accesses[i].kind * facts->times + time) * facts->columns + column]++;
        facts->warp_grid[row * facts->columns + column]++;
        facts->page_accesses[rank]++;
        uint64_t end = accesses[i].bytes ? (accesses[i].address + accesses[i].bytes - 1) >> LINE_BITS : line;
        if (line != last_line || !i) {
            facts->touched[places[i] >> facts->granule_bits] |= interval;
            if (!(mixed(line) & facts->sample_mask))
                followed = follow(facts, line, first->clock, followed);
        }
        last_line = line;
        /* An access that is not aligned, or is wide. */
        while (line < end) {
            uint64_t further = rank_of(facts, ++line << LINE_BITS >> PAGE_BITS);
            if (further == UINT64_MAX)
                continue;
            facts->touched[(further << PAGE_BITS | (line << LINE_BITS & in_page)) >> facts->granule_bits] |= interval;
            if (!(mixed(line) & facts->sample_mask))
                followed = follow(facts, line, first->clock, followed);
            last_line = line;
        }
    }
}

void nt_accesses_look_at(struct facts *facts, const struct access *accesses, size_t count)
{
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && end - begin < LANES; end++)
            if (accesses[end].slot != accesses[begin].slot || accesses[end].clock != accesses[begin].clock
                || accesses[end].site != accesses[begin].site || accesses[end].lane <= accesses[end - 1].lane)
                break;
        (facts->pass == 1 ? survey : fill)(facts, accesses + begin, (unsigned)(end - begin));
    }
}

void nt_accesses_lack_memory(struct facts *facts)
{
    facts->is_out_of_memory = 1;
}

EXPORTED int nt_accesses_interface(void)
{
    return ACCESSES_INTERFACE;
}

/* Free what the passes have allocated. */
EXPORTED void nt_accesses_end(struct facts *facts)
{
    if (facts->areas && facts->leaves)
        for (uint64_t i = 0; i < (uint64_t)1 << facts->table_bits; i++)
            free(facts->leaves[i]);
    free(facts->areas);
    free(facts->leaves);
    facts->areas = NULL, facts->leaves = NULL;
}

/* Begin the first pass. Returns whether there was memory. */
EXPORTED int nt_accesses_begin(struct facts *facts)
{
    facts->table_bits = 8;
    facts->last_area = UINT64_MAX;
    facts->areas = calloc((size_t)1 << facts->table_bits, sizeof *facts->areas);
    facts->leaves = calloc((size_t)1 << facts->table_bits, sizeof *facts->leaves);
    facts->first_clock = UINT64_MAX;
    facts->pass = 1;
    return facts->areas && facts->leaves;
}

/*
 * End the first pass: write the pages that were touched in ascending order to `sorted`, page_count of them, and number
 * them. Returns whether there was memory.
 */
EXPORTED int nt_accesses_number(struct facts *facts, uint64_t *sorted)
{
    uint64_t *areas = malloc((facts->area_count + 1) * sizeof *areas), count = 0, pages = 0;
    if (!areas)
        return 0;
    for (uint64_t i = 0; i < (uint64_t)1 << facts->table_bits; i++)
        if (facts->areas[i])
            areas[count++] = facts->areas[i] - 1;
    qsort(areas, count, sizeof *areas, compare);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t *leaf = facts->leaves[place_of(facts, areas[i])];
        for (uint64_t page = 0; page < (uint64_t)1 << AREA_BITS; page++)
            if (leaf[page]) {
                sorted[pages] = areas[i] << AREA_BITS | page;
                leaf[page] = (uint32_t)++pages;
            }
    }
    free(areas);
    facts->pass = 2;
    return 1;
}

/*
 * Say in how many granules each of the intervals was, and how many were first touched in it: adds to `within` and
 * `first`, of INTERVALS each.
 */
EXPORTED void nt_accesses_intervals(const struct facts *facts, uint64_t *within, uint64_t *first)
{
    for (uint64_t i = 0; i < facts->granules; i++) {
        uint64_t intervals = facts->touched[i];
        if (intervals)
            first[__builtin_ctzll(intervals)]++;
        for (; intervals; intervals &= intervals - 1)
            within[__builtin_ctzll(intervals)]++;
    }
}

/* Look at records that are decoded already, those of an execution after one another. */
EXPORTED void nt_accesses_add(struct facts *facts, const struct access *accesses, uint64_t count)
{
    nt_accesses_look_at(facts, accesses, count);
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
