#include "image/needs.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errand.h"
#include "base/hash_table.h"
#include "base/memory.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/settings.h"
#include "image/cached_file.h"
#include "trace/writer.h"

#define MAGIC UINT64_C(0x02534445454e544e) /* "NTNEEDS" and the version */
#define MOST_NEEDS 65536u

/* A file: a header and its rows. */
struct file {
	uint64_t magic;
	uint64_t count;
	struct nt_need rows[];
};

/*
 * The path of the file with the needs (memory that logs wanted) of an image's kernels, by the image's key; false if no
 * cache is set, or the path is too long.
 */
static bool path_of(const uint8_t key[32], char ret[PATH_MAX])
{
	static const struct nt_cached_file needs_file = {"twins", ".needs", 0};

	return nt_cached_file_path(&needs_file, key, ret);
}

/* For read_here: the path, and the file. */
struct reading {
	const char *path;
	struct file *file;
};

/*
 * Errand of read_file (argument: its struct reading): read a file of needs if it is whole, valid and the user's
 * own; else the result stays NULL.
 */
static void read_here(void *argument)
{
	struct reading *reading = argument;
	struct stat status;
	struct file *file = NULL;
	int fd = nt_quiet_write_above_stdio(nt_raw_open(reading->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));

	if (fd < 0)
		return;
	bool is_valid = nt_raw_stat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
			status.st_size >= (off_t)sizeof(*file) &&
			status.st_size <= (off_t)(sizeof(*file) + MOST_NEEDS * sizeof(file->rows[0])) &&
			(file = nt_memory_alloc((size_t)status.st_size)) &&
			nt_raw_read(fd, file, (size_t)status.st_size) == (ssize_t)status.st_size && file->magic == MAGIC &&
			file->count <= MOST_NEEDS &&
			(uint64_t)status.st_size == sizeof(*file) + file->count * sizeof(file->rows[0]);
	nt_raw_close(fd);
	if (is_valid)
		reading->file = file;
	else
		nt_memory_free(file);
}

/*
 * Read a file of needs, in a thread with descriptors of its own; for nt_memory_free. NULL if it is missing, damaged or
 * another user's.
 */
static struct file *read_file(const char *path)
{
	struct reading reading = {path, NULL};

	nt_errand_run(read_here, &reading);
	return reading.file;
}

/*
 * How much log memory earlier processes have found that a kernel wants, from the cache; zeros if nothing is known. key:
 * of the image's twins (copies with probes); kernel: its mangled name. A hint only.
 */
struct nt_need nt_needs_of(const uint8_t key[32], const char *kernel)
{
	char path[PATH_MAX];
	struct nt_need need = {.kernel = nt_hash_text(kernel)};
	struct file *file = path_of(key, path) ? read_file(path) : NULL;

	for (uint64_t i = 0; file && i < file->count; i++)
		if (file->rows[i].kernel == need.kernel && file->rows[i].units > need.units)
			need = file->rows[i];
	nt_memory_free(file);
	if (need.units > UINT32_MAX)
		need.units = UINT32_MAX;
	return need;
}

/*
 * Have the writer thread store how much log memory kernels of one image (GPU code of the program) wanted, for later
 * processes; what the cache has of other kernels of it is kept. key: of the image's twins (copies with probes); needs:
 * count of them, copied.
 */
void nt_needs_keep(const uint8_t key[32], const struct nt_need *needs, uint32_t count)
{
	char path[PATH_MAX];

	if (!path_of(key, path) || count > MOST_NEEDS)
		return;
	struct file *before = read_file(path);
	uint64_t others = before ? before->count : 0;
	struct file *file = nt_memory_alloc(sizeof(*file) + (count + others) * sizeof(file->rows[0]));
	if (file) {
		*file = (struct file){.magic = MAGIC};
		memcpy(file->rows, needs, count * sizeof(*needs));
		file->count = count;
		for (uint64_t i = 0; i < others && file->count < MOST_NEEDS; i++) {
			bool is_new = true;
			for (uint32_t j = 0; j < count && is_new; j++)
				is_new = needs[j].kernel != before->rows[i].kernel;
			if (is_new)
				file->rows[file->count++] = before->rows[i];
		}
		nt_writer_cached(path, file, sizeof(*file) + file->count * sizeof(file->rows[0]));
	}
	nt_memory_free(file);
	nt_memory_free(before);
}
