#include "program.h"

#include <fcntl.h>
#include <sys/syscall.h>

struct driver cu;
char image[65536];

/*
 * The sanitizers call this with all that they say, and write it to stderr: which is another file, or none, in a thread
 * with descriptors of its own, as the hook's are. So it is also appended to the file SANITIZER_LOG.
 */
void __sanitizer_on_print(const char *text);
__attribute__((no_sanitize("address", "thread", "undefined"))) void __sanitizer_on_print(const char *text)
{
	const char *path = getenv("SANITIZER_LOG");
	size_t size = 0;

	if (!path)
		return;
	while (text[size])
		size++;
	long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	syscall(SYS_write, fd, text, size);
	syscall(SYS_close, fd);
}

void read_image(void)
{
	FILE *file = fopen(getenv("HOST_IMAGE"), "rb");

	if (!file || !fread(image, 1, sizeof(image) - 1, file))
		exit(8);
	fclose(file);
}

static void *needed(void *address, const char *name)
{
	if (!address) {
		printf("the driver lacks cu%s\n", name);
		exit(6);
	}
	return address;
}

void find_driver(const char *name)
{
	cu.library = dlopen(name, RTLD_NOW);
	if (!cu.library) {
		printf("no driver\n");
		exit(7);
	}
#define FIND(name, parameters) *(void **)&cu.name = needed(dlsym(cu.library, "cu" #name), #name);
	FUNCTIONS(FIND)
#undef FIND
}

void find_launches(void)
{
#define FIND(name, parameters)                                                                                         \
	CHECK(cu.GetProcAddress_v2("cu" #name, (void **)&cu.name, 13000, 0, NULL));                                \
	needed(*(void **)&cu.name, #name);
	LAUNCHES(FIND)
#undef FIND
	CHECK(cu.GetProcAddress_v2("cuLaunchKernel", (void **)&cu.LaunchKernel_ptsz, 13000, 2, NULL));
}

CUmodule load(void)
{
	CUmodule module;

	CHECK(cu.ModuleLoadData(&module, image));
	return module;
}

CUlibrary load_library(void)
{
	CUlibrary library;

	CHECK(cu.LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	return library;
}

CUfunction obtain(CUmodule module, const char *name)
{
	CUfunction function;

	CHECK(cu.ModuleGetFunction(&function, module, name));
	return function;
}

CUkernel obtain_kernel(CUlibrary library, const char *name)
{
	CUkernel kernel;

	CHECK(cu.LibraryGetKernel(&kernel, library, name));
	return kernel;
}

CUstream make_stream(unsigned flags)
{
	CUstream stream;

	CHECK(cu.StreamCreate(&stream, flags));
	return stream;
}

CUdeviceptr allocate(size_t size)
{
	CUdeviceptr memory;
	void *zeros = calloc(1, size);

	/* Not by a memset, which other streams need not wait for. */
	CHECK(cu.MemAlloc_v2(&memory, size));
	CHECK(cu.MemcpyHtoD_v2(memory, zeros, size));
	free(zeros);
	return memory;
}

uint64_t value_at(CUdeviceptr address)
{
	uint64_t value;

	CHECK(cu.MemcpyDtoH_v2(&value, address, sizeof(value)));
	return value;
}

uint64_t launches_made;

CUresult launch_at(CUfunction function, CUdeviceptr address, unsigned blocks, unsigned threads, CUstream stream)
{
	__atomic_fetch_add(&launches_made, 1, __ATOMIC_RELAXED);
	uint32_t unused = 5;
	void *parameters[] = {&address, &unused};

	return cu.LaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
}

void run_threads(int count, void *(*work)(void *))
{
	pthread_t threads[16];

	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}
