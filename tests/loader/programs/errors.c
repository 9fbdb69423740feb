/* What a program finds in errno and dlerror after each call of the driver, which it must find without the hook, too. */
#include <errno.h>

#include "program.h"

#define BEFORE 1234

/* The call's result, whether errno changed, and whether an error of the dynamic loader is left. */
#define DO(call)                                                                                                       \
	do {                                                                                                           \
		errno = BEFORE;                                                                                        \
		CUresult do_result = (call);                                                                           \
		int do_error = errno;                                                                                  \
		const char *do_text = dlerror();                                                                       \
		printf("%s: %d, errno %d, %s\n", #call, do_result, do_error, do_text ? "an error" : "no error");          \
	} while (0)

int main(void)
{
	CUcontext context, other;
	CUmodule module, of_library;
	CUlibrary library;
	CUfunction function, of_kernel;
	CUkernel kernel;
	CUstream stream;
	uint32_t unused = 5;

	read_image();
	errno = BEFORE;
	find_driver("libcuda.so.1");
	printf("no error: %d\n", !dlerror());
	DO(cu.Init(0));
	find_launches();
	DO(cu.GetProcAddress_v2("cuNobody", &(void *){NULL}, 13000, 0, NULL));
	DO(cu.DevicePrimaryCtxRetain(&context, 0));
	DO(cu.CtxSetCurrent(context));
	DO(cu.ModuleLoadData(&module, "neither PTX nor an ELF file"));
	DO(cu.ModuleLoadData(&module, image));
	DO(cu.ModuleGetFunction(&function, module, "count_p2"));
	DO(cu.ModuleGetFunction(&of_kernel, module, "nobody"));
	DO(cu.LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	DO(cu.LibraryGetKernel(&kernel, library, "count_p2"));
	DO(cu.LibraryGetModule(&of_library, library));
	DO(cu.KernelGetFunction(&of_kernel, kernel));
	DO(cu.FuncSetAttribute(function, 8, 1024));
	DO(cu.StreamCreate(&stream, 0));
	CUdeviceptr counter = allocate(sizeof(uint64_t));
	void *parameters[] = {&counter, &unused};
	CUlaunchConfig config = {2, 1, 1, 96, 1, 1, 0, stream, NULL, 0};
	for (int i = 0; i < 3; i++) {
		DO(cu.LaunchKernel(function, 2, 1, 1, 96, 1, 1, 0, stream, parameters, NULL));
		DO(cu.LaunchKernel_ptsz(function, 2, 1, 1, 96, 1, 1, 0, NULL, parameters, NULL));
		DO(cu.LaunchKernelEx(&config, of_kernel, parameters, NULL));
		DO(cu.LaunchCooperativeKernel(function, 2, 1, 1, 96, 1, 1, 0, stream, parameters));
		DO(cu.LaunchKernel(function, 2, 1, 1, 9600, 1, 1, 0, stream, parameters, NULL));
		DO(cu.StreamSynchronize(stream));
		DO(cu.StreamSynchronize_ptsz(NULL));
		DO(cu.CtxSynchronize());
	}
	DO(cu.StreamDestroy_v2(stream));
	DO(cu.ModuleUnload(module));
	DO(cu.LibraryUnload(library));
	DO(cu.CtxCreate_v2(&other, 0, 0));
	DO(cu.CtxDestroy_v2(other));
	DO(cu.CtxSetCurrent(context));
	printf("%llu\n", (unsigned long long)value_at(counter));
	DO(cu.DevicePrimaryCtxRelease_v2(0));
	DO(cu.DevicePrimaryCtxReset_v2(0));
	return 0;
}
