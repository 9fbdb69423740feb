#include "front/loaded.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errand.h"
#include "base/memory.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "front/process.h"
#include "image/image_bytes.h"
#include "image/registry.h"
#include "trace/trace.h"

/*
 * Register a module or library that the driver has loaded from memory. Starts the trace if it is the process's first.
 * caller: return address of the program's call.
 */
static void register_data(void *handle, bool is_library, const void *image, const void *caller)
{
	struct nt_image_bytes bytes;

	if (nt_process_trace() && nt_image_bytes_measure(image, SIZE_MAX, &bytes))
		nt_registry_loaded(handle, is_library, &bytes, NULL, caller);
}

/* For read_file: a path, and the bytes of the regular file there, of malloc. */
struct file {
	const char *path;
	uint8_t *data;
	size_t size;
};

/*
 * Errand (argument: struct file): read a regular file whole into memory of nt_memory_alloc; without memory or a file,
 * data stays NULL.
 */
static void read_file(void *argument)
{
	struct file *file = argument;
	struct stat status;
	/* O_NONBLOCK: if it is a pipe, whose bytes the driver has read, open would wait for a writer. */
	int fd = nt_quiet_write_above_stdio(nt_raw_open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));

	if (fd < 0)
		return;
	if (nt_raw_stat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
	    (file->data = nt_memory_alloc((size_t)status.st_size))) {
		ssize_t count;
		while (file->size < (size_t)status.st_size &&
		       ((count = nt_raw_read(fd, file->data + file->size, (size_t)status.st_size - file->size)) > 0 ||
			(count < 0 && errno == EINTR)))
			file->size += count > 0 ? (size_t)count : 0;
	}
	nt_raw_close(fd);
}

/*
 * Register a module or library that the driver has loaded from a file, which is read again. Starts the trace if it is
 * the process's first. caller: return address of the program's call.
 */
static void register_file(void *handle, bool is_library, const char *path, const void *caller)
{
	struct file file = {.path = path};
	struct nt_image_bytes bytes;

	if (!nt_process_trace())
		return;
	nt_errand_run(read_file, &file);
	if (file.data && nt_image_bytes_measure(file.data, file.size, &bytes))
		nt_registry_loaded(handle, is_library, &bytes, path, caller);
	nt_memory_free(file.data);
}

/*
 * Note in the trace why the embedded device refused an image, if it did. It does not support all that a GPU does, and
 * without this note the trace would not show that the program had kernels.
 */
static void note_refusal(void)
{
	char why[1024];

	if (nt_driver.neutrinoEmbeddedRefusal &&
	    nt_driver.neutrinoEmbeddedRefusal(why, sizeof(why)) == CUDA_SUCCESS && nt_process_trace())
		nt_lines_note("the embedded device refused an image: %s", why);
}

/*
 * Whether the embedded device (which runs kernels on the CPU) may have refused an image: a library's is examined only
 * when a kernel of it is requested, so then always.
 */
static bool may_be_refused(bool is_library, CUresult result)
{
	return is_library || result != CUDA_SUCCESS;
}

/*
 * After the driver's call that loads a module or library from memory: register it, or note why it was refused. handle:
 * where the driver wrote it. caller: return address of the program's call. result: the driver's.
 */
void nt_loaded_data(void *const *handle, bool is_library, const void *image, const void *caller, CUresult result)
{
	if (may_be_refused(is_library, result))
		note_refusal();
	if (result == CUDA_SUCCESS)
		register_data(*handle, is_library, image, caller);
}

/*
 * After the driver's call that loads a module or library from a file: register it, or note why it was refused. handle:
 * where the driver wrote it. caller: return address of the program's call. result: the driver's.
 */
void nt_loaded_file(void *const *handle, bool is_library, const char *path, const void *caller, CUresult result)
{
	if (may_be_refused(is_library, result))
		note_refusal();
	if (result == CUDA_SUCCESS)
		register_file(*handle, is_library, path, caller);
}
