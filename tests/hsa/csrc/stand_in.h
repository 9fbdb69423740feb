/* A stand-in of HSA's runtime (libhsa-runtime64.so.1) with one make-believe GPU, for AMD's HIP runtime to start, load
   code objects, pack arguments and dispatch without a GPU. Written against the open HSA specification; nothing of it is
   AMD's. The environment variable HSA_STAND_IN_ISA names the GPU, as amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-. */
#pragma once

#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <hsa/hsa_ven_amd_loader.h>
#include <stdint.h>

enum { AGENT_CPU = 1, AGENT_GPU = 2 };

enum { POOL_FINE = 10, POOL_KERNARG = 11, POOL_COARSE = 12, POOL_GPU = 20, POOL_GROUP = 21 };

/* What a dispatch is handed to: the packet, the kernel's descriptor and its first instruction. NULL: nothing runs. */
typedef void (*stand_in_dispatch)(const hsa_kernel_dispatch_packet_t *packet, const void *descriptor, const void *code);

void hsa_stand_in_on_dispatch(stand_in_dispatch function);

/* Why the last code object was not loaded or has not a symbol, "" if there was no problem. */
const char *hsa_stand_in_problem(void);

/* The memory of the GPU: where it begins, and how much of it is in use. */
void *hsa_stand_in_arena(size_t *size);

#define STAND_IN_ARENA 0x7f0000000000ul
#define STAND_IN_ARENA_SIZE ((size_t)1 << 30)

/* Memory of the GPU, all 0; NULL if there is none left. */
void *stand_in_allocate(size_t size);

/* Carries out the packets that are in the queue. */
void stand_in_ring(void);

const char *stand_in_isa(void);
