/* Device, managed and pinned memory: who has which bytes, and where this process finds them. */
#ifndef ED_MEMORY_H
#define ED_MEMORY_H

#include "abi.h"
#include "context.h"

/* Where kernels find the device's memory. Nothing lies there in this process. */
#define ED_DEVICE_BASE UINT64_C(0x200000000000)

/* Where kernels find constants of modules: the first bytes of the same memory. */
#define ED_CONSTANT_BASE UINT64_C(0x30000000000)
#define ED_CONSTANT_SIZE (UINT64_C(4) << 20)

/* Multiple of every address given out. */
#define ED_ALIGNMENT 256u

/* What fresh memory, and freed memory, is filled with. */
#define ED_POISON 0xa5

/* The first part of device memory is the device process's, for variables of modules. */
uint64_t ed_memory_module_part(void);

/* Whether [address, address + size) are bytes that the device has and a program may use. */
bool ed_memory_is_valid(uint64_t address, uint64_t size);

/* Whether the address is the device's, and not the program's own. */
bool ed_memory_is_device(uint64_t address);

/* Whether the address is pinned or managed memory: copies from there may be read late. */
bool ed_memory_is_pinned(uint64_t address);

/* Where the bytes lie in this process, whosever they are. */
uint8_t *ed_memory_here(uint64_t address);

/* The context's memory is no more. */
void ed_memory_forget_context(const struct ed_context *context);

/* Variables of a module, which the device process placed, and their end. */
void ed_memory_add_variable(struct ed_context *context, uint64_t address, uint64_t size);
void ed_memory_remove_variable(uint64_t address);

/* For memory that a stream gives back in its turn. */
void ed_memory_free_now(uint64_t address);

#endif
