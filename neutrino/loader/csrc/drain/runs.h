/*
 * Results of the run: what all launches of a kernel have in its maps per run, combined as their data are drained. They are
 * in result/ID.run, which is replaced while the process runs. All functions run in the drain thread.
 */
#ifndef NEUTRINO_RUNS_H
#define NEUTRINO_RUNS_H

#include "base/kernel.h"
#include "base/regions.h"

/* Where the regions of a kernel's maps per run are in a launch's: at most NEUTRINO_MAX_MAPS. Returns how many. */
unsigned nt_runs_ranges(const struct nt_kernel *kernel, const struct nt_extent *extent, struct nt_range *ret);

/*
 * Combine a part of a launch's data with the rest of it. number: of the map, among those per run. data: size bytes that are
 * at a place of the map's region, both multiples of 8.
 */
void nt_runs_add(struct nt_kernel *kernel, unsigned number, const uint8_t *data, uint64_t at, uint64_t size);

/* The launch is complete: have its data in the result, or forget them if some could not be copied. */
void nt_runs_added(struct nt_kernel *kernel, bool is_complete);

/*
 * Write the results that have changed: at once if the context or the process ends, else if the last time is a second ago,
 * or less once nothing is drained any more.
 */
enum nt_runs_when { NT_RUNS_BUSY, NT_RUNS_IDLE, NT_RUNS_ENDING };
void nt_runs_write(enum nt_runs_when when);

#endif
