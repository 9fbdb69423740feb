/*
 * What kernels print: kept until the host waits for the device, then written to the host's standard output.
 * CUDA C++ Programming Guide, formatted output, limitations.
 */
#ifndef ED_PRINTED_H
#define ED_PRINTED_H

#include <stddef.h>

#define ED_PRINTED_SIZE 1048576u /* CU_LIMIT_PRINTF_FIFO_SIZE, before the program sets it */

/* A launch has ended that printed so. Of more than the limit the latest is kept. */
void ed_printed_add(const void *text, size_t size);

/* Write what there is, through stdio as the driver does, and in the order of the launches' ends. */
void ed_printed_flush(void);

/* The bytes that are kept. */
void ed_printed_limit(size_t size);

#endif
