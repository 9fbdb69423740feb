/* Device, managed and pinned memory: which bytes are allocated, and where this process finds them. */
#ifndef ED_MEMORY_H
#define ED_MEMORY_H

#include "abi.h"
#include "context.h"

/* The address of device memory for kernels. Nothing is mapped there in this process. */
#define ED_DEVICE_BASE UINT64_C(0x200000000000)

/* The address of the modules' constants for kernels. They are the first bytes of device memory. */
#define ED_CONSTANT_BASE UINT64_C(0x30000000000)
#define ED_CONSTANT_SIZE (UINT64_C(4) << 20)

/* The alignment of every allocation. */
#define ED_ALIGNMENT 256u

/* The byte that fresh memory and freed memory is filled with; a part of it where it is large. */
#define ED_POISON 0xa5

/* The size of the first part of device memory, where the device process places the modules' variables. */
uint64_t ed_memory_module_part(void);

/* Whether [address, address + size) lies in one allocation or variable. */
bool ed_memory_is_valid(uint64_t address, uint64_t size);

/* Whether the address is in device memory, allocated or not. */
bool ed_memory_is_device(uint64_t address);

/* Whether the address is pinned or managed memory: copies from there may be read late. */
bool ed_memory_is_pinned(uint64_t address);

/* The pointer with which this process accesses an address of the device, or of the program itself. */
uint8_t *ed_memory_here(uint64_t address);

/* Fill memory with poison, what is large in part. */
void ed_memory_poison(uint8_t *bytes, uint64_t size);

/* As memset. Pages of device memory that become zero are given back. */
void ed_memory_fill(uint8_t *bytes, uint8_t value, uint64_t size);

/* Free all memory that a context allocated. */
void ed_memory_forget_context(const struct ed_context *context);

/* Add or remove a variable of a module, which the device process has placed. */
void ed_memory_add_variable(struct ed_context *context, uint64_t address, uint64_t size);
void ed_memory_remove_variable(uint64_t address);

/* Free memory for cuMemFreeAsync, when it is the stream's turn. */
void ed_memory_free_now(uint64_t address);

#endif
