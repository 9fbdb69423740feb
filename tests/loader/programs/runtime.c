/*
 * The runtime that several libraries share, as a library: it looks the driver up once, and keeps what it found. With
 * READ_ONLY in the environment it does not let that be changed.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "program.h"

enum { PAGE = 4096 };

/* Data of which nobody may read the second page. */
static char guarded[4 * PAGE];

int begin_runtime(void)
{
	find_driver("libcuda.so.1");
	if (cu.Init(0))
		return 1;
	find_launches();
	uintptr_t page = ((uintptr_t)guarded + PAGE) & -(uintptr_t)PAGE, first = (uintptr_t)&cu & -(uintptr_t)PAGE;
	uintptr_t end = ((uintptr_t)(&cu + 1) + PAGE - 1) & -(uintptr_t)PAGE;
	*(char *)page = 1;
	CHECK(mprotect((void *)page, PAGE, PROT_NONE));
	if (getenv("READ_ONLY"))
		CHECK(mprotect((void *)first, end - first, PROT_READ));
	return 0;
}
