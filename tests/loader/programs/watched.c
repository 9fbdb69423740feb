#include "watched.h"

#include <dirent.h>

#include "base/neutrino_layout.h"

#define LIMIT_MS 600000

void trace_file(char *ret, size_t size, const char *folder, const char *name)
{
	DIR *traces = opendir(folder);
	struct dirent *entry;

	*ret = 0;
	while (traces && (entry = readdir(traces)))
		if (entry->d_name[0] != '.')
			snprintf(ret, size, "%s/%s/%s", folder, entry->d_name, name);
	if (traces)
		closedir(traces);
}

/* How many launches the trace has counted so far. *probed: how many of them were probed. */
static uint64_t counted(const char *folder, uint64_t *probed)
{
	char path[4096];
	uint64_t row[NEUTRINO_REASON_SLOTS], launches = 0;

	*probed = 0;
	trace_file(path, sizeof(path), folder, "counters.bin");
	FILE *file = fopen(path, "rb");
	while (file && fread(row, sizeof(row), 1, file) == 1) {
		for (int i = 0; i < NEUTRINO_REASON_SLOTS; i++)
			launches += row[i];
		*probed += row[NEUTRINO_REASON_PROBED];
	}
	if (file)
		fclose(file);
	return launches;
}

uint64_t probed_so_far(void)
{
	const char *folder = getenv("NEUTRINO_TRACEDIR");
	uint64_t probed = 0;

	if (folder)
		counted(folder, &probed);
	return probed;
}

/* The first records of a trace, all of which are settled: how many there are, and how many of them are of kernels. */
static struct {
	uint64_t count, of_kernels;
} settled_first;

/* Whether the trace in folder has the data of all launches so far, or says that they are lost, or were only measured. */
static bool has_all(const char *folder)
{
	char path[4096];
	struct neutrino_launches_header header;
	struct neutrino_launch launch;
	/* First what was counted: whatever has been since, has a record that is not settled. */
	uint64_t probed, launches = counted(folder, &probed), done = settled_first.of_kernels, i = settled_first.count;

	trace_file(path, sizeof(path), folder, "launches.bin");
	FILE *file = fopen(path, "rb");
	if (file && fread(&header, sizeof(header), 1, file) == 1 &&
	    !fseek(file, (long)(header.records_offset + i * sizeof(launch)), SEEK_SET))
		for (; i < header.records_used && fread(&launch, sizeof(launch), 1, file) == 1; i++) {
			bool is_settled = launch.state == NEUTRINO_LAUNCH_WRITTEN || launch.state == NEUTRINO_LAUNCH_LOST ||
					  launch.state == NEUTRINO_LAUNCH_MEASURED;
			done += is_settled && launch.kernel != NEUTRINO_NO_KERNEL;
			if (is_settled && i == settled_first.count) {
				settled_first.count++;
				settled_first.of_kernels = done;
			}
		}
	if (file)
		fclose(file);
	return launches == __atomic_load_n(&launches_made, __ATOMIC_RELAXED) && done == probed;
}

/* As long as it takes; a hook that never writes them fails by the limit on the whole program. */
void written(void)
{
	const char *folder = getenv("NEUTRINO_TRACEDIR");

	while (folder && !has_all(folder))
		usleep(2000);
}

void settled(void)
{
	int (*flush)(uint32_t);

	written();
	*(void **)&flush = dlsym(cu.library, "neutrino_flush");
	/* What one round of the thread finds complete, it takes from its stream, and the next one frees. */
	for (int i = 0; flush && i < 3; i++)
		if (!flush(LIMIT_MS)) {
			printf("the hook has not done what was asked\n");
			exit(9);
		}
}
