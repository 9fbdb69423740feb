/* The runtime that several libraries share, as a library: it looks the driver up once, and keeps what it found. */
#include "program.h"

int begin_runtime(void)
{
	find_driver("libcuda.so.1");
	if (cu.Init(0))
		return 1;
	find_launches();
	return 0;
}
