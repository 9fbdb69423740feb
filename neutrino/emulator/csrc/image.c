#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "channel.h"
#include "failure.h"
#include "memory.h"
#include "settings.h"

/* --- images --- */

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define ELF_HEADER 64

struct fatbin_wrapper { /* __fatBinC_Wrapper_t of fatbinary_section.h */
	uint32_t magic, version;
	const void *data;
	void *file;
};

struct fatbin_header {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size;
};

/*
 * The size of an image in memory, by its header; of machine code only that of the header. If it is a fatbin's wrapper,
 * *image becomes what that points to.
 */
size_t ed_image_measure(const void **image)
{
	uint32_t magic;

	memcpy(&magic, *image, sizeof(magic));
	if (magic == FATBIN_WRAPPER_MAGIC) {
		struct fatbin_wrapper wrapper;
		memcpy(&wrapper, *image, sizeof(wrapper));
		*image = wrapper.data;
		memcpy(&magic, *image, sizeof(magic));
	}
	if (magic == FATBIN_MAGIC) {
		struct fatbin_header header;
		memcpy(&header, *image, sizeof(header));
		return header.header_size + header.size;
	}
	/* Machine code will be refused; the device process needs only its header to recognize it. */
	if (!memcmp(*image, "\177ELF", 4))
		return ELF_HEADER;
	return strlen(*image);
}

/*
 * Read a file with an image. Returns its bytes followed by zeros, to be freed by the caller; NULL with *result if that
 * fails.
 */
uint8_t *ed_image_file(const char *path, size_t *size, CUresult *result)
{
	struct stat status;
	uint8_t *data = NULL;
	size_t used = 0;
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	*result = CUDA_ERROR_FILE_NOT_FOUND;
	if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
		*size = (size_t)status.st_size;
		data = calloc(1, *size + sizeof(struct fatbin_wrapper));
		ssize_t length = 1;
		while (data && used < *size && length) {
			length = read(fd, data + used, *size - used);
			if (length < 0 && errno != EINTR)
				break;
			used += length > 0 ? (size_t)length : 0;
		}
		*result = !data ? CUDA_ERROR_OUT_OF_MEMORY : used < *size ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
	}
	if (fd >= 0)
		close(fd);
	if (*result) {
		free(data);
		data = NULL;
	}
	return data;
}

/* --- descriptions by the device process --- */

struct cursor {
	uint8_t *at, *end;
	bool failed;
};

/*
 * Read a little-endian number of size bytes from the device process's description. At the end of the data the cursor
 * fails, and the result is 0.
 */
static uint64_t read_number(struct cursor *cursor, size_t size)
{
	uint64_t value = 0;

	if (cursor->failed || (size_t)(cursor->end - cursor->at) < size) {
		cursor->failed = true;
		return 0;
	}
	memcpy(&value, cursor->at, size);
	cursor->at += size;
	return value;
}

/*
 * Read a string from the device process's description: its length, its bytes, and a zero byte. It stays in the data. ""
 * if the cursor fails.
 */
static const char *read_string(struct cursor *cursor)
{
	uint64_t length = read_number(cursor, 4);

	if (cursor->failed || (uint64_t)(cursor->end - cursor->at) < length + 1 || cursor->at[length]) {
		cursor->failed = true;
		return "";
	}
	const char *text = (const char *)cursor->at;
	cursor->at += length + 1;
	return text;
}

/* Free what a description of an image has. */
void ed_image_forget(struct ed_loaded *loaded)
{
	for (uint32_t i = 0; loaded->kernels && i < loaded->kernel_count; i++)
		free(loaded->kernels[i].parameters);
	free(loaded->kernels);
	free(loaded->variables);
	free(loaded->reply);
	*loaded = (struct ed_loaded){0};
}

/*
 * Read the device process's description of an image's kernels and variables (server.py writes it). ret owns the reply's
 * data. False, with everything freed, for one that cannot be read.
 */
static bool read_description(struct ed_reply *reply, struct ed_loaded *ret)
{
	struct cursor cursor = {reply->data, reply->data + reply->size, false};

	*ret = (struct ed_loaded){.reply = reply->data, .reply_size = reply->size};
	ret->number = read_number(&cursor, 8);
	ret->needs_clusters = read_number(&cursor, 4) != 0;
	ret->kernel_count = (uint32_t)read_number(&cursor, 4);
	ret->kernels = calloc(ret->kernel_count + 1, sizeof(*ret->kernels));
	for (uint32_t i = 0; ret->kernels && i < ret->kernel_count && !cursor.failed; i++) {
		struct ed_description *kernel = &ret->kernels[i];
		kernel->number = i;
		kernel->name = read_string(&cursor);
		kernel->parameter_size = (uint32_t)read_number(&cursor, 4);
		kernel->shared_size = (uint32_t)read_number(&cursor, 4);
		kernel->local_size = (uint32_t)read_number(&cursor, 4);
		kernel->max_threads = (uint32_t)read_number(&cursor, 4);
		for (int j = 0; j < 3; j++)
			kernel->required[j] = (uint32_t)read_number(&cursor, 4);
		kernel->parameter_count = (uint32_t)read_number(&cursor, 4);
		kernel->parameters = calloc(kernel->parameter_count + 1, sizeof(*kernel->parameters));
		for (uint32_t j = 0; kernel->parameters && j < kernel->parameter_count; j++) {
			kernel->parameters[j].offset = (uint32_t)read_number(&cursor, 4);
			kernel->parameters[j].size = (uint32_t)read_number(&cursor, 4);
		}
		cursor.failed |= !kernel->parameters;
	}
	ret->variable_count = (uint32_t)read_number(&cursor, 4);
	ret->variables = calloc(ret->variable_count + 1, sizeof(*ret->variables));
	for (uint32_t i = 0; ret->variables && i < ret->variable_count && !cursor.failed; i++) {
		ret->variables[i].name = read_string(&cursor);
		ret->variables[i].address = read_number(&cursor, 8);
		ret->variables[i].size = read_number(&cursor, 8);
	}
	if (cursor.failed || !ret->kernels || !ret->variables) {
		ed_image_forget(ret);
		return false;
	}
	return true;
}

/*
 * Copy the description of a loaded image, so that its kernels are known for longer than it is loaded; the rest of it
 * means nothing. False without memory.
 */
bool ed_image_copy(const struct ed_loaded *loaded, struct ed_loaded *ret)
{
	struct ed_reply reply = {0, loaded->reply_size, malloc(loaded->reply_size + 1)};

	if (!reply.data)
		return false;
	memcpy(reply.data, loaded->reply, loaded->reply_size + 1);
	return read_description(&reply, ret);
}

/*
 * Write a text to the log buffer that the options of cuModuleLoadDataEx give, if any. buffer_option: the buffer's; the
 * next option is the buffer's size, whose value becomes the length of the text.
 */
static void write_log(unsigned count, const int *options, void **values, int buffer_option, const char *text)
{
	char *buffer = NULL;
	size_t size = 0;

	for (unsigned i = 0; options && values && i < count; i++) {
		if (options[i] == buffer_option)
			buffer = values[i];
		if (options[i] == buffer_option + 1)
			size = (size_t)(uint32_t)(uintptr_t)values[i];
	}
	if (buffer && size)
		snprintf(buffer, size, "%s", text);
	for (unsigned i = 0; options && values && i < count; i++)
		if (options[i] == buffer_option + 1)
			values[i] = (void *)(uintptr_t)(buffer && size ? strlen(buffer) : 0);
}

/* Why this thread's last image was refused; empty when it was not. */
static __thread char refusal[1024];

/* Whether the device process (it runs the kernels) has refused this thread's last image, with a reason. */
bool ed_image_was_refused(void)
{
	return refusal[0];
}

/*
 * Not of CUDA's driver: why this thread's last image was refused, as text, for Neutrino's hook, which puts it into the
 * trace. Told once. CUDA_ERROR_NOT_FOUND if nothing was refused.
 */
API neutrinoEmbeddedRefusal(char *text, size_t size)
{
	if (!refusal[0])
		return CUDA_ERROR_NOT_FOUND;
	snprintf(text, size, "%s", refusal);
	refusal[0] = 0;
	return CUDA_SUCCESS;
}

/*
 * Let the device process (it runs the kernels) load an image of size bytes. options, values: count JIT options of
 * cuModuleLoadDataEx. On refusal its reason goes to the log buffer in them and to stderr.
 */
CUresult ed_image_load(const void *image, size_t size, unsigned count, const int *options, void **values,
		     struct ed_loaded *ret)
{
	struct ed_reply reply;
	uint64_t failure = ed_failure(ED_FAIL_LOAD);

	refusal[0] = 0;
	if (failure)
		return (CUresult)failure;
	ed_channel_call(ED_REQUEST_LOAD, &(struct iovec){(void *)(uintptr_t)image, size}, 1, &reply);
	/* The sizes' options come after those of the buffers. */
	write_log(count, options, values, CU_JIT_INFO_LOG_BUFFER, "");
	write_log(count, options, values, CU_JIT_ERROR_LOG_BUFFER, reply.status ? (const char *)reply.data : "");
	if (reply.status) {
		snprintf(refusal, sizeof(refusal), "%s", (const char *)reply.data);
		ed_say("%s", refusal);
		free(reply.data);
		return reply.status;
	}
	return read_description(&reply, ret) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/* Unload an image from the device process (it runs the kernels), and free its description. */
void ed_image_unload(struct ed_loaded *loaded)
{
	struct ed_reply reply;

	for (uint32_t i = 0; i < loaded->variable_count; i++)
		ed_memory_remove_variable(loaded->variables[i].address);
	ed_channel_call(ED_REQUEST_UNLOAD, &(struct iovec){&loaded->number, sizeof(loaded->number)}, 1, &reply);
	free(reply.data);
	ed_image_forget(loaded);
}

/* The number of the kernel of that name in an image, or CUDA_ERROR_NOT_FOUND. */
CUresult ed_image_find(const struct ed_loaded *loaded, const char *name, uint32_t *ret)
{
	for (*ret = 0; *ret < loaded->kernel_count; ++*ret)
		if (!strcmp(loaded->kernels[*ret].name, name))
			return CUDA_SUCCESS;
	return CUDA_ERROR_NOT_FOUND;
}

/*
 * The address and size of the variable of that name in an image; address and size may be NULL. CUDA_ERROR_NOT_FOUND if
 * there is none.
 */
CUresult ed_image_variable(const struct ed_loaded *loaded, const char *name, CUdeviceptr *address, size_t *size)
{
	for (uint32_t i = 0; i < loaded->variable_count; i++) {
		if (strcmp(loaded->variables[i].name, name) != 0)
			continue;
		if (address)
			*address = loaded->variables[i].address;
		if (size)
			*size = loaded->variables[i].size;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}
