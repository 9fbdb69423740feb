/*
 * A library with nvJitLink's functions that links nothing: machine code is the file LINKED, PTX the file FAKE_PTX. Appends
 * what it is asked for to the file FAKE_LOG. FAKE says at which step it fails with the option -ptx, or "old": it knows no
 * option -no-cache.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, UNKNOWN_OPTION, FAILED = 6 };

struct link {
	bool is_text;
};

static void note(const char *what, const char *which)
{
	FILE *file = fopen(getenv("FAKE_LOG"), "a");

	fprintf(file, "%s%s\n", what, which);
	fclose(file);
}

/* Whether a step of a link fails. */
static bool fails(const struct link *link, const char *step)
{
	const char *which = getenv("FAKE");

	return link->is_text && which && !strcmp(which, step);
}

/* Read a file into memory of that size, or none to learn the size only; it ends with NUL. */
static size_t get(const char *path, char *to)
{
	FILE *file = fopen(path, "rb");
	size_t size = 0;

	for (int byte; (byte = fgetc(file)) != EOF; size++)
		if (to)
			to[size] = (char)byte;
	if (to)
		to[size] = 0;
	fclose(file);
	return size + 1;
}

int nvJitLinkCreate(void **handle, uint32_t count, const char **options)
{
	struct link *link = calloc(1, sizeof(*link));
	char line[1024] = "";

	for (uint32_t i = 0; i < count; i++) {
		strcat(strcat(line, " "), options[i]);
		link->is_text |= !strcmp(options[i], "-ptx");
	}
	note("create", line);
	/* With an error there is a handle, too: it has the log. */
	*handle = link;
	return fails(link, "old") && strstr(line, "-no-cache") ? UNKNOWN_OPTION : fails(link, "create") ? FAILED : SUCCESS;
}

int nvJitLinkAddData(void *handle, int type, const void *data, size_t size, const char *name)
{
	const struct link *link = handle;
	char line[64];

	(void)name;
	snprintf(line, sizeof(line), " %d %.*s", type, (int)(size > 8 ? size - 8 : 0), (const char *)data + (size > 8 ? 8 : 0));
	note("add", line);
	return fails(link, "add") ? FAILED : SUCCESS;
}

int nvJitLinkAddFile(void *handle, int type, const char *path)
{
	(void)handle, (void)type, (void)path;
	return FAILED;
}

int nvJitLinkComplete(void *handle)
{
	note("complete", "");
	return fails(handle, "complete") ? FAILED : SUCCESS;
}

int nvJitLinkGetLinkedCubinSize(void *handle, size_t *size)
{
	(void)handle;
	*size = get(getenv("LINKED"), NULL) - 1;
	return SUCCESS;
}

int nvJitLinkGetLinkedCubin(void *handle, void *cubin)
{
	(void)handle;
	note("cubin", "");
	get(getenv("LINKED"), cubin);
	return SUCCESS;
}

int nvJitLinkGetLinkedPtxSize(void *handle, size_t *size)
{
	*size = fails(handle, "nothing") ? 0 : get(getenv("FAKE_PTX"), NULL);
	return fails(handle, "size") ? FAILED : SUCCESS;
}

int nvJitLinkGetLinkedPtx(void *handle, char *ptx)
{
	if (fails(handle, "get"))
		return FAILED;
	note("ptx", "");
	get(getenv("FAKE_PTX"), ptx);
	return SUCCESS;
}

int nvJitLinkDestroy(void **handle)
{
	note("destroy", "");
	free(*handle);
	*handle = NULL;
	return SUCCESS;
}
