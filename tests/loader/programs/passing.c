/*
 * A program that has GPU code made, loads it and launches its kernel: `passing WAY ARGUMENT...`, where WAY is
 *   nvrtc LIBRARY SOURCE OPTION    NVRTC compiles a file; with -DLINKED the program depends on NVRTC
 *   before LIBRARY SOURCE OPTION   the same, before the program's first call of the driver
 *   forked LIBRARY SOURCE OPTION   the same, in a child
 *   nvjitlink LIBRARY INPUT...     nvJitLink links files, of a kind by their first bytes; of "@FILE" it gets the path, and what
 *                                  begins with "-" is an option; functions are looked up by both of their names
 *   plain LIBRARY INPUT...         the same, by the names without a release
 *   release LIBRARY INPUT...       the same, by those of a release
 *   culink INPUT...                so does the driver; "debug" is no file, but an option
 *   load CUBIN                     a file is loaded as it is
 * Several of them are separated by "--". Prints the size and the sum of the bytes of what was made, errno, and what floating
 * point operations have left.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda_abi.h"

enum { MOST = 1 << 22, MOST_OPTIONS = 8 };
enum { INPUT_CUBIN = 1, INPUT_PTX = 2, INPUT_LTOIR = 3 }; /* nvJitLinkInputType; the driver's are 0 and 1 */

static CUresult (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice), (*cuCtxSetCurrent)(CUcontext);
static CUresult (*cuModuleLoadData)(CUmodule *, const void *);
static CUresult (*cuModuleGetFunction)(CUfunction *, CUmodule, const char *);
static CUresult (*cuLaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				  CUstream, void **, void **);
static CUresult (*cuLinkCreate_v2)(unsigned, int *, void **, void **), (*cuLinkDestroy)(void *);
static CUresult (*cuLinkAddData_v2)(void *, int, void *, size_t, const char *, unsigned, int *, void **);
static CUresult (*cuLinkAddFile_v2)(void *, int, const char *, unsigned, int *, void **);
static CUresult (*cuLinkComplete)(void *, void **, size_t *);

/* What was made, or read. */
static char made[MOST], input[MOST];

/* End the process, unless that has succeeded. */
static void check(int result, int line)
{
	if (result) {
		printf("line %d: error %d\n", line, result);
		exit(9);
	}
}
#define CHECK(call) check((call), __LINE__)

/* The address of a function of a library. */
static void *find(void *library, const char *name)
{
	void *ret = library ? dlsym(library, name) : NULL;

	if (!ret) {
		printf("no %s: %s\n", name, dlerror());
		exit(8);
	}
	return ret;
}

static void start_driver(void)
{
	CUcontext context;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

#define FIND(name) *(void **)&name = find(driver, #name)
	FIND(cuInit);
	FIND(cuDevicePrimaryCtxRetain);
	FIND(cuCtxSetCurrent);
	FIND(cuModuleLoadData);
	FIND(cuModuleGetFunction);
	FIND(cuLaunchKernel);
	FIND(cuLinkCreate_v2);
	FIND(cuLinkDestroy);
	FIND(cuLinkAddData_v2);
	FIND(cuLinkAddFile_v2);
	FIND(cuLinkComplete);
	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
}

/* Read a file into a buffer of MOST bytes, followed by a NUL; returns its size. */
static size_t read_file(const char *path, char *to)
{
	FILE *file = fopen(path, "rb");
	size_t size = file ? fread(to, 1, MOST - 1, file) : 0;

	CHECK(!size);
	fclose(file);
	to[size] = 0;
	return size;
}

/* The floating point exceptions that have occurred, how the thread rounds, and which of them end it. */
static unsigned floating_state(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_stmxcsr();
#else
	return 0;
#endif
}

/* No floating point exception has occurred yet, and each ends the thread, or none does. */
static void set_floating_state(bool is_ending)
{
#if defined(__x86_64__)
	__builtin_ia32_ldmxcsr(is_ending ? 0 : 0x1f80);
#else
	(void)is_ending;
#endif
}

static void print_made(size_t size)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < size; i++)
		sum = sum * 31 + (unsigned char)made[i];
	printf("%zu bytes, %llx, errno %d, floating point %x\n", size, (unsigned long long)sum, errno, floating_state());
}

/* The nvJitLinkInputType of what was read, by its first bytes. */
static int kind_of_input(void)
{
	if (!memcmp(input, "\xed\x43\x4e\x7f", 4))
		return INPUT_LTOIR;
	return input[0] == 0x7f ? INPUT_CUBIN : INPUT_PTX;
}

/* Load what was made, and launch its kernel. */
static void use(void)
{
	CUmodule module;
	CUfunction function;
	void *parameters[] = {(uint64_t[]){0}, (unsigned[]){0}};

	CHECK(cuModuleLoadData(&module, made));
	CHECK(cuModuleGetFunction(&function, module, "scale"));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
}

#if defined(LINKED)
int nvrtcCreateProgram(void **, const char *, const char *, int, const char *const *, const char *const *);
int nvrtcCompileProgram(void *, int, const char *const *);
int nvrtcGetCUBINSize(void *, size_t *);
int nvrtcGetCUBIN(void *, char *);
int nvrtcDestroyProgram(void **);
#endif

static void compile(char **words)
{
#if !defined(LINKED)
	void *library = dlopen(words[0], RTLD_NOW);
	int (*nvrtcCreateProgram)(void **, const char *, const char *, int, const char *const *, const char *const *);
	int (*nvrtcCompileProgram)(void *, int, const char *const *);
	int (*nvrtcGetCUBINSize)(void *, size_t *), (*nvrtcGetCUBIN)(void *, char *), (*nvrtcDestroyProgram)(void **);
	*(void **)&nvrtcCreateProgram = find(library, "nvrtcCreateProgram");
	*(void **)&nvrtcCompileProgram = find(library, "nvrtcCompileProgram");
	*(void **)&nvrtcGetCUBINSize = find(library, "nvrtcGetCUBINSize");
	*(void **)&nvrtcGetCUBIN = find(library, "nvrtcGetCUBIN");
	*(void **)&nvrtcDestroyProgram = find(library, "nvrtcDestroyProgram");
#endif
	void *program;
	size_t size;

	read_file(words[1], input);
	CHECK(nvrtcCreateProgram(&program, input, "a.cu", 0, NULL, NULL));
	CHECK(nvrtcCompileProgram(program, 1, (const char *const *)&words[2]));
	CHECK(nvrtcGetCUBINSize(program, &size));
	CHECK(size > MOST);
	errno = 1234;
	CHECK(nvrtcGetCUBIN(program, made));
	print_made(size);
	CHECK(nvrtcDestroyProgram(&program));
}

/* A function of nvJitLink; of a release: by the name that its header makes of the other one. */
static void *find_linking(void *library, const char *name, bool is_of_release)
{
	char of_release[64];

	snprintf(of_release, sizeof(of_release), "__%s_13_0", name);
	return find(library, is_of_release ? of_release : name);
}

static void link_by_nvjitlink(int count, char **words, const char *way)
{
	bool is_of_release = !strcmp(way, "release"), is_plain = !strcmp(way, "plain");
	void *library = dlopen(words[0], RTLD_NOW), *handle;
	const char *options[MOST_OPTIONS] = {"-arch=sm_90"};
	uint32_t options_count = 1;
	size_t size;
	int (*create)(void **, uint32_t, const char **), (*add)(void *, int, const void *, size_t, const char *);
	int (*add_file)(void *, int, const char *), (*complete)(void *), (*get_size)(void *, size_t *);
	int (*get)(void *, void *), (*destroy)(void **);

	*(void **)&create = find_linking(library, "nvJitLinkCreate", is_of_release);
	*(void **)&add = find_linking(library, "nvJitLinkAddData", is_of_release);
	*(void **)&add_file = find_linking(library, "nvJitLinkAddFile", is_of_release);
	*(void **)&complete = find_linking(library, "nvJitLinkComplete", is_of_release);
	*(void **)&get_size = find_linking(library, "nvJitLinkGetLinkedCubinSize", !is_plain);
	*(void **)&get = find_linking(library, "nvJitLinkGetLinkedCubin", !is_plain);
	*(void **)&destroy = find_linking(library, "nvJitLinkDestroy", is_of_release);
	for (int i = 1; i < count; i++) {
		if (!strncmp(words[i], "-arch=", 6))
			options[0] = words[i];
		else if (words[i][0] == '-' && options_count < MOST_OPTIONS)
			options[options_count++] = words[i];
	}
	CHECK(create(&handle, options_count, options));
	for (int i = 1; i < count; i++) {
		bool is_file = words[i][0] == '@';
		if (words[i][0] == '-')
			continue;
		size_t bytes = read_file(words[i] + is_file, input);
		int type = kind_of_input();
		if (is_file)
			CHECK(add_file(handle, type, words[i] + 1));
		else
			CHECK(add(handle, type, input, bytes + (type == INPUT_PTX), words[i]));
	}
	memset(input, 0, sizeof(input));
	CHECK(complete(handle));
	CHECK(get_size(handle, &size));
	CHECK(size > MOST);
	errno = 1234;
	set_floating_state(true);
	CHECK(get(handle, made));
	print_made(size);
	set_floating_state(false);
	CHECK(destroy(&handle));
}

static void link_by_driver(int count, char **words)
{
	int options[] = {CU_JIT_MAX_REGISTERS, CU_JIT_GENERATE_DEBUG_INFO};
	void *state, *cubin, *values[] = {(void *)32, (void *)0};
	size_t size;

	if (!strcmp(words[0], "debug")) {
		values[1] = (void *)1;
		words++, count--;
	}
	CHECK(cuLinkCreate_v2(2, options, values, &state));
	for (int i = 0; i < count; i++) {
		bool is_file = words[i][0] == '@';
		size_t bytes = read_file(words[i] + is_file, input);
		int type = input[0] == 0x7f ? 0 : CU_JIT_INPUT_PTX;
		if (is_file)
			CHECK(cuLinkAddFile_v2(state, type, words[i] + 1, 0, NULL, NULL));
		else
			CHECK(cuLinkAddData_v2(state, type, input, bytes + 1, words[i], 0, NULL, NULL));
	}
	memset(input, 0, sizeof(input));
	errno = 1234;
	CHECK(cuLinkComplete(state, &cubin, &size));
	CHECK(size > MOST);
	memcpy(made, cubin, size);
	print_made(size);
	CHECK(cuLinkDestroy(state));
}

/* Do one of what the command line says. */
static void run(int count, char **words)
{
	const char *way = words[0];

	if (!strcmp(way, "before"))
		compile(words + 1);
	start_driver();
	if (!strcmp(way, "nvrtc"))
		compile(words + 1);
	else if (!strcmp(way, "nvjitlink") || !strcmp(way, "plain") || !strcmp(way, "release"))
		link_by_nvjitlink(count - 1, words + 1, way);
	else if (!strcmp(way, "culink"))
		link_by_driver(count - 1, words + 1);
	else if (!strcmp(way, "load"))
		read_file(words[1], made);
	else if (!strcmp(way, "forked")) {
		int status;
		fflush(stdout);
		pid_t child = fork();
		if (!child) {
			compile(words + 1);
			fflush(stdout);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) != child || status);
		compile(words + 1);
	}
	use();
}

int main(int argc, char **argv)
{
	for (int first = 1, last; first < argc; first = last + 1) {
		for (last = first; last < argc && strcmp(argv[last], "--"); last++)
			;
		run(last - first, argv + first);
	}
	return 0;
}
