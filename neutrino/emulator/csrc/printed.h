/*
 * What kernels print: kept until the host waits for the device, then written to the host's standard output.
 * CUDA C++ Programming Guide, formatted output, limitations.
 */
#ifndef ED_PRINTED_H
#define ED_PRINTED_H

#include <stddef.h>

#define ED_PRINTED_SIZE 1048576u /* CU_LIMIT_PRINTF_FIFO_SIZE, before the program sets it */

/* Append what a launch has printed. Beyond the limit the oldest text is dropped. */
void ed_printed_add(const void *text, size_t size);

/* Write the text to stdout, by stdio as NVIDIA's driver does, in the order in which launches ended. */
void ed_printed_flush(void);

/* Set the limit in bytes. */
void ed_printed_limit(size_t size);

#endif
