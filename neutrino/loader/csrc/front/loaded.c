#include "front/loaded.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "front/process.h"
#include "image/image_bytes.h"
#include "image/registry.h"
#include "trace/trace.h"

/* Register a module or library that the driver loaded from memory. The trace is started if it is the first. */
static void register_data(void *handle, bool is_library, const void *image, const void *caller)
{
	struct nt_image_bytes bytes;

	if (nt_process_trace() && nt_image_bytes_measure(image, SIZE_MAX, &bytes))
		nt_registry_loaded(handle, is_library, &bytes, NULL, caller);
}

/* The same of one that the driver loaded from a file, which is read again. */
static void register_file(void *handle, bool is_library, const char *path, const void *caller)
{
	struct nt_image_bytes bytes;
	struct stat status;
	uint8_t *data = NULL;
	size_t used = 0;

	if (!nt_process_trace())
		return;
	/* O_NONBLOCK: if it is a pipe, whose bytes the driver has read, open would wait for a writer. */
	int fd = nt_quiet_write_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
	if (fd < 0)
		return;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 && (data = malloc((size_t)status.st_size))) {
		ssize_t count;
		while (used < (size_t)status.st_size &&
		       ((count = read(fd, data + used, (size_t)status.st_size - used)) > 0 || (count < 0 && errno == EINTR)))
			used += count > 0 ? (size_t)count : 0;
		if (nt_image_bytes_measure(data, used, &bytes))
			nt_registry_loaded(handle, is_library, &bytes, path, caller);
	}
	free(data);
	close(fd);
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
		nt_event_note("the embedded device refused an image: %s", why);
}

/* Whether the embedded device may have refused an image: a library's is examined only when a kernel of it is requested. */
static bool may_be_refused(bool is_library, CUresult result)
{
	return is_library || result != CUDA_SUCCESS;
}

void nt_loaded_data(void *const *handle, bool is_library, const void *image, const void *caller, CUresult result)
{
	if (may_be_refused(is_library, result))
		note_refusal();
	if (result == CUDA_SUCCESS)
		register_data(*handle, is_library, image, caller);
}

void nt_loaded_file(void *const *handle, bool is_library, const char *path, const void *caller, CUresult result)
{
	if (may_be_refused(is_library, result))
		note_refusal();
	if (result == CUDA_SUCCESS)
		register_file(*handle, is_library, path, caller);
}
