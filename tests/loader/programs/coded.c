/*
 * A program that loads machine code and launches kernels of it: `coded WAY FILE NAME...`, where WAY is
 *   module    the file's bytes are a module, in memory that is written over before a kernel is obtained
 *   library   likewise a library
 *   constant  the bytes that -DCONSTANT names, which are in the program's own code, are a library; FILE is not read
 * Each kernel has one parameter, a pointer, and is obtained and launched twice. Prints what the driver answers.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda_abi.h"

CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuCtxSetCurrent(CUcontext);
CUresult cuModuleLoadData(CUmodule *, const void *), cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
			void **);

#ifdef CONSTANT
/* As nvcc puts a fatbin into a program. */
__asm__(".section .nv_fatbin, \"a\"\n.balign 64\nconstant:\n.incbin \"" CONSTANT "\"\n.previous\n");
extern const char constant[];
#else
static const char constant[1];
#endif

/* Print what the driver has answered; end the process, unless that is success. */
static void check(const char *what, int result)
{
	printf("%s: %d\n", what, result);
	if (result)
		exit(9);
}

int main(int argc, char **argv)
{
	bool is_constant = strcmp(argv[1], "constant") == 0, is_module = strcmp(argv[1], "module") == 0;
	static char bytes[1 << 22];
	CUcontext context;
	CUmodule module = NULL;
	CUlibrary library = NULL;
	const void *image = is_constant ? constant : bytes;

	check("cuInit", cuInit(0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	FILE *file = is_constant ? NULL : fopen(argv[2], "rb");
	if (file) {
		printf("%zu bytes\n", fread(bytes, 1, sizeof(bytes), file));
		fclose(file);
	}
	if (is_module)
		check("cuModuleLoadData", cuModuleLoadData(&module, image));
	else
		check("cuLibraryLoadData", cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	memset(bytes, 0x5a, sizeof(bytes));
	for (int round = 0; round < 2; round++)
		for (int i = 3; i < argc; i++) {
			void *function = NULL;
			uint64_t pointer = 0x1000;
			void *parameters[] = {&pointer};
			if (is_module)
				check(argv[i], cuModuleGetFunction(&function, module, argv[i]));
			else
				check(argv[i], cuLibraryGetKernel(&function, library, argv[i]));
			check("cuLaunchKernel", cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL));
		}
	return argc > 99;
}
