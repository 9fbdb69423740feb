#include "trace/results.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/neutrino_layout.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/settings.h"
#include "trace/files.h"
#include "trace/records.h"
#include "trace/trace.h"

#define MOST_OPEN 256u	/* result files that stay open */
#define PARTS 16u	/* of a kernel, at most */
#define PARTS_OF_LIMIT 8u /* a part is full at this share of the limit */
#define RETRY_NS UINT64_C(1000000000)
#define RESULT_SHARE(limit) ((limit) / 4 * 3) /* of the limit; the rest is for launch records */

/* A file of a kernel's data. */
struct part {
	uint32_t number;
	uint64_t size; /* bytes */
};

/* The data of a kernel. */
struct result {
	int fd;	       /* of the current part; -1: not open */
	uint64_t base; /* bytes of data before the current part */
	uint64_t end;  /* bytes of all data so far, from the first part's start */
	uint64_t begin; /* of the frame that pieces are being written of */
	bool is_cut;	/* that frame could not be written */
	bool is_partial; /* more of it is to come */
	uint8_t *header;
	uint64_t header_size;
	struct part parts[PARTS]; /* that are there, oldest first; the current one last */
	uint32_t part_count;
};

static struct result *results; /* by kernel id */
static uint32_t result_count;
static uint32_t open_kernels[MOST_OPEN]; /* 0: none */
static uint32_t next_open;
static uint32_t current_part;
static uint64_t current_size, total_size, removed_size;
static bool lost_any;
static uint64_t retry_ns; /* when to write again after the disk was full */

/*
 * Write the header of a kernel's result file, with the descriptions of its maps (stores of probe results), to
 * ret; returns its size in bytes, padded to 64, at most NT_RESULTS_HEADER_MOST. From any thread.
 */
uint64_t nt_results_header(const struct nt_kernel *kernel, uint8_t *ret)
{
	struct neutrino_result_header header = {
		.version = NEUTRINO_RESULT_VERSION,
		.kernel = kernel->id,
		.maps = kernel->map_count,
		.map_size = sizeof(struct neutrino_map),
	};
	uint64_t size = sizeof(header) + kernel->map_count * sizeof(struct neutrino_map);
	uint64_t padded = (size + 63) / 64 * 64;

	memcpy(header.magic, NEUTRINO_RESULT_MAGIC, sizeof(header.magic));
	memset(ret, 0, padded);
	memcpy(ret, &header, sizeof(header));
	memcpy(ret + sizeof(header), kernel->maps, kernel->map_count * sizeof(struct neutrino_map));
	return padded;
}

/* Bytes of the result files that were removed so far to keep --max-trace-size. */
uint64_t nt_results_removed(void)
{
	return removed_size;
}

/*
 * What the writer (the thread that writes the trace's files) keeps of a kernel's result files, by its id, made if it is
 * new; NULL without memory. Pointers of earlier calls may move.
 */
static struct result *result_of(uint32_t kernel)
{
	if (kernel >= result_count) {
		uint32_t count = kernel + kernel / 2 + 64;
		struct result *grown = nt_memory_realloc(results, count * sizeof(*grown));
		if (!grown)
			return NULL;
		memset(grown + result_count, 0, (count - result_count) * sizeof(*grown));
		for (uint32_t i = result_count; i < count; i++)
			grown[i].fd = -1;
		results = grown;
		result_count = count;
	}
	return &results[kernel];
}

/* The name of a kernel's result file in the trace directory: result/ID.bin, and for later parts result/ID.PART.bin. */
static void part_name(char *ret, size_t size, uint32_t kernel, uint32_t part)
{
	if (part)
		snprintf(ret, size, "result/%u.%u.bin", kernel, part);
	else
		snprintf(ret, size, "result/%u.bin", kernel);
}

/* Close a kernel's file, if it is open. */
static void close_result(struct result *result)
{
	if (result->fd >= 0)
		nt_raw_close(result->fd);
	result->fd = -1;
}

/* Let a kernel's result file stay open; if too many are, the one that was opened longest ago is closed. */
static void keep_open(uint32_t kernel)
{
	uint32_t *row = &open_kernels[next_open++ % MOST_OPEN];

	if (*row && *row != kernel)
		close_result(&results[*row]);
	*row = kernel;
}

/* Count bytes that were written to a kernel's current file, for the limit of the trace's size. */
static void grow_part(struct result *result, uint64_t bytes)
{
	result->parts[result->part_count - 1].size += bytes;
	current_size += bytes;
	total_size += bytes;
}

/* Begin a new result file for a kernel's data, with a header. False if that fails. */
static bool begin_part(uint32_t kernel, struct result *result)
{
	char name[64];

	close_result(result);
	part_name(name, sizeof(name), kernel, current_part);
	int fd = result->header ? nt_files_open(name, O_WRONLY | O_CREAT | O_TRUNC) : -1;
	if (fd < 0)
		return false;
	struct neutrino_result_header header;
	memcpy(&header, result->header, sizeof(header));
	header.base = result->end;
	memcpy(result->header, &header, sizeof(header));
	if (result->part_count == PARTS || !nt_quiet_write_all_at(fd, result->header, result->header_size, 0)) {
		nt_raw_close(fd);
		nt_files_unlink(name);
		return false;
	}
	result->fd = fd;
	result->base = result->end;
	result->end += result->header_size;
	result->parts[result->part_count++] = (struct part){.number = current_part};
	grow_part(result, result->header_size);
	if (nt_files_keep_open())
		keep_open(kernel);
	return true;
}

/* Open the file to which a kernel's next data are appended; a new part is begun if it is time. False if that fails. */
static bool open_result(uint32_t kernel, struct result *result)
{
	char name[64];

	if (!result->part_count || result->parts[result->part_count - 1].number != current_part)
		return begin_part(kernel, result);
	if (result->fd >= 0)
		return true;
	part_name(name, sizeof(name), kernel, current_part);
	result->fd = nt_files_open(name, O_WRONLY);
	if (result->fd >= 0 && nt_files_keep_open())
		keep_open(kernel);
	return result->fd >= 0;
}

/* Remove the oldest part of the result files of all kernels. False if there is none but the current one. */
static bool remove_oldest(void)
{
	uint32_t oldest = current_part;
	char name[64];

	for (uint32_t i = 0; i < result_count; i++)
		if (results[i].part_count && results[i].parts[0].number < oldest)
			oldest = results[i].parts[0].number;
	if (oldest == current_part)
		return false;
	for (uint32_t i = 0; i < result_count; i++) {
		struct result *result = &results[i];
		if (!result->part_count || result->parts[0].number != oldest)
			continue;
		if (result->part_count == 1)
			close_result(result);
		part_name(name, sizeof(name), i, oldest);
		nt_files_unlink(name);
		total_size -= result->parts[0].size;
		removed_size += result->parts[0].size;
		memmove(result->parts, result->parts + 1, --result->part_count * sizeof(*result->parts));
	}
	return true;
}

/*
 * Keep the result files within their share of --max-trace-size, if it was given: oldest parts go, and a new one begins
 * when this is full. Not in the middle of a launch's data.
 */
static void keep_limit(void)
{
	uint64_t limit = RESULT_SHARE(nt_settings()->max_trace_size);

	if (!limit)
		return;
	while (total_size > limit && remove_oldest())
		;
	if (current_size > limit / PARTS_OF_LIMIT) {
		current_part++;
		current_size = 0;
	}
}

/*
 * Cut off what was written of the data of a launch that could not be completed: a reader could not find the next one
 * after it.
 */
static void cut_frame(uint32_t kernel, struct result *result)
{
	uint64_t size = result->end - result->begin;

	if (!open_result(kernel, result) || ftruncate(result->fd, (off_t)(result->begin - result->base)) != 0)
		nt_lines_log("the data of kernel %u could not be cut back", kernel);
	if (result->part_count)
		result->parts[result->part_count - 1].size -= size;
	total_size -= size;
	result->end = result->begin;
}

/*
 * After a failed write: if the disk is full, do not try again for a while, since it would refuse then, too, perhaps
 * slowly; what comes meanwhile is lost at once. By errno.
 */
static void note_failure(void)
{
	nt_files_failed();
	if (errno == ENOSPC || errno == EDQUOT)
		retry_ns = nt_clock_now_ns() + RETRY_NS;
}

/*
 * Open a kernel's result file as open_result does, unless the disk was full a moment ago; false then, or if that fails.
 */
static bool open_if_room(uint32_t kernel, struct result *result)
{
	if (retry_ns && nt_clock_now_ns() < retry_ns)
		return false;
	retry_ns = 0;
	errno = 0;
	if (open_result(kernel, result))
		return true;
	note_failure();
	return false;
}

/*
 * Append a piece (some launches' results) to its kernel's result file; if that fails, cut off what was written of its
 * launch, and return false.
 */
static bool append_piece(const struct nt_piece *piece, struct result *result)
{
	if (piece->begins) {
		/* Without memory for its last piece, the frame before has no end. */
		if (result->is_partial && !result->is_cut)
			cut_frame(piece->kernel, result);
		result->is_cut = piece->failed || !open_if_room(piece->kernel, result);
		result->begin = result->end;
	} else if (!result->is_cut && !open_result(piece->kernel, result)) {
		result->is_cut = true;
	}
	errno = 0;
	if (!result->is_cut && !piece->failed &&
	    nt_quiet_write_all_at(result->fd, piece->data, piece->size, result->end - result->base)) {
		result->end += piece->size;
		grow_part(result, piece->size);
		return true;
	}
	note_failure();
	if (!result->is_cut)
		cut_frame(piece->kernel, result);
	result->is_cut = true;
	return false;
}

/*
 * Write a piece (some launches' results) to its kernel's result file, and settle the records of its launches: written,
 * or lost.
 */
void nt_results_write(const struct nt_piece *piece)
{
	struct result *result = result_of(piece->kernel);
	bool written = false;

	if (result && piece->header_size && !result->header) {
		result->header = nt_memory_alloc(piece->header_size);
		if (result->header)
			memcpy(result->header, piece->header, piece->header_size);
		result->header_size = piece->header_size;
	}
	if (result && piece->begins && !result->is_partial)
		keep_limit();
	if (result)
		written = append_piece(piece, result);
	if (result && !nt_files_keep_open())
		close_result(result);
	if (result)
		result->is_partial = !piece->ends;
	if (!piece->ends)
		return;
	for (uint32_t i = 0; i < piece->count; i++)
		nt_records_settle(piece->launches[i].launch, written ? NEUTRINO_LAUNCH_WRITTEN : NEUTRINO_LAUNCH_LOST,
				  written ? result->begin + piece->launches[i].at : 0, piece->launches[i].size, piece->set);
	if (!written && piece->count && !lost_any) {
		lost_any = true;
		nt_lines_note("the data of a launch could not be copied back or written%s: it is marked lost",
			      retry_ns ? " (the disk is full)" : "");
	}
}
