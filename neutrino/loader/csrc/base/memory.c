#include "base/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_WATCHED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_WATCHED
#endif
#endif

#ifdef IS_WATCHED

/* As malloc; under a sanitizer, which watches malloc, it is malloc. */
void *nt_memory_alloc(size_t size)
{
	return malloc(size);
}

/* As calloc; under a sanitizer, which watches malloc, it is calloc. */
void *nt_memory_alloc_zeroed(size_t count, size_t size)
{
	return calloc(count, size);
}

/* As aligned_alloc, for any size; alignment is a power of two. */
void *nt_memory_alloc_aligned(size_t alignment, size_t size)
{
	return aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
}

/* As realloc; under a sanitizer, which watches malloc, it is realloc. */
void *nt_memory_realloc(void *memory, size_t size)
{
	return realloc(memory, size);
}

/* As strdup; under a sanitizer, which watches malloc, it is strdup. */
char *nt_memory_strdup(const char *text)
{
	return strdup(text);
}

/* As free; under a sanitizer, which watches malloc, it is free. */
void nt_memory_free(void *memory)
{
	free(memory);
}

#else

#define LEAST_BITS 5			  /* blocks of 32 bytes, with their head, */
#define MOST_BITS 17			  /* to 128 KiB; what is larger is mapped alone */
#define PIECE_SIZE (UINT64_C(1) << 20)	  /* mapped at once */
#define ADDRESS_BITS 48			  /* of user space, on x86-64 and aarch64 with pages of 4 KiB */
#define ADDRESS_MASK ((UINT64_C(1) << ADDRESS_BITS) - 1)

/*
 * Before each block. size: of the block with its head, a power of two, or whole pages if it is mapped alone; WITHIN: this is no
 * head of a block, but lies in one, so that what follows is aligned.
 */
struct head {
	uint64_t size;
	uint64_t next; /* of a free block: the address of the next one's head; of WITHIN: of the block's memory */
};

#define WITHIN 1

_Static_assert(sizeof(struct head) == 16, "blocks are aligned to 16 bytes, as those of malloc");

/*
 * Free blocks of each size: the address of the first one's head, and above ADDRESS_BITS a count of changes, so that a
 * compare-and-exchange fails if the same block has come back meanwhile. Memory that was a block stays mapped.
 */
static uint64_t free_blocks[MOST_BITS + 1];
/* Where the next block is cut off: the address, and after it what is left of the piece, in units of 32 bytes, above it. */
static uint64_t cut;

/* Map fresh zeroed pages for an allocation; NULL if that fails. errno stays. */
static void *map_pages(size_t size)
{
	int before = errno;
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	errno = before;
	return memory == MAP_FAILED ? NULL : memory;
}

/* Put a free block of 2^bits bytes into the list of its size. Lock-free. */
static void put_free_block(struct head *head, unsigned bits)
{
	uint64_t before = __atomic_load_n(&free_blocks[bits], __ATOMIC_RELAXED), after;

	do {
		__atomic_store_n(&head->next, before & ADDRESS_MASK, __ATOMIC_RELAXED);
		after = (uint64_t)(uintptr_t)head | ((before >> ADDRESS_BITS) + 1) << ADDRESS_BITS;
	} while (!__atomic_compare_exchange_n(&free_blocks[bits], &before, after, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/* Take a block of 2^bits bytes out of the list of free ones; NULL if that is empty. Lock-free. */
static struct head *take_free_block(unsigned bits)
{
	uint64_t before = __atomic_load_n(&free_blocks[bits], __ATOMIC_ACQUIRE), after;
	struct head *head;

	do {
		head = (struct head *)(uintptr_t)(before & ADDRESS_MASK);
		if (!head)
			return NULL;
		/* Another thread may have taken it: then this is anything, and the exchange fails. */
		after = (__atomic_load_n(&head->next, __ATOMIC_RELAXED) & ADDRESS_MASK) |
			((before >> ADDRESS_BITS) + 1) << ADDRESS_BITS;
	} while (!__atomic_compare_exchange_n(&free_blocks[bits], &before, after, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE));
	return head;
}

/*
 * Get a new block of `size` bytes: cut off the mapped piece of 1 MiB that is in use, or of a new one. NULL without
 * memory. Lock-free.
 */
static struct head *cut_new_block(uint64_t size)
{
	for (;;) {
		uint64_t before = __atomic_load_n(&cut, __ATOMIC_ACQUIRE);
		uint64_t address = before & ADDRESS_MASK, left = (before >> ADDRESS_BITS) << LEAST_BITS;
		if (left >= size) {
			uint64_t after = (address + size) | (left - size) >> LEAST_BITS << ADDRESS_BITS;
			if (__atomic_compare_exchange_n(&cut, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				return (struct head *)(uintptr_t)address;
			continue;
		}
		void *piece = map_pages(PIECE_SIZE);
		if (!piece)
			return NULL;
		/* The rest of the old one is lost, at most 128 KiB of 1 MiB. */
		uint64_t after = (uint64_t)(uintptr_t)piece | PIECE_SIZE >> LEAST_BITS << ADDRESS_BITS;
		if (!__atomic_compare_exchange_n(&cut, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			munmap(piece, PIECE_SIZE);
	}
}

_Static_assert(PIECE_SIZE >> LEAST_BITS < UINT64_C(1) << (64 - ADDRESS_BITS), "what is left fits above an address");

/*
 * As malloc, in memory of this library's own: the program's allocator, whose locks a thread may hold for ever, is not
 * touched. NULL without memory. errno stays. Lock-free.
 */
void *nt_memory_alloc(size_t size)
{
	unsigned bits = LEAST_BITS;
	struct head *head;

	if (size > PTRDIFF_MAX - 8192)
		return NULL;
	uint64_t whole = size + sizeof(*head);
	while (bits <= MOST_BITS && UINT64_C(1) << bits < whole)
		bits++;
	if (bits > MOST_BITS) {
		whole = (whole + 4095) & ~UINT64_C(4095);
		head = map_pages(whole);
	} else {
		whole = UINT64_C(1) << bits;
		head = take_free_block(bits);
		if (!head)
			head = cut_new_block(whole);
	}
	if (!head)
		return NULL;
	head->size = whole;
	return head + 1;
}

/*
 * As calloc, in memory of this library's own: count * size bytes of zeros, for nt_memory_free. NULL without memory, or
 * if the product overflows.
 */
void *nt_memory_alloc_zeroed(size_t count, size_t size)
{
	size_t whole;

	if (__builtin_mul_overflow(count, size, &whole))
		return NULL;
	void *memory = nt_memory_alloc(whole);
	/* What was mapped alone is zeros. */
	if (memory && ((struct head *)memory - 1)->size <= UINT64_C(1) << MOST_BITS)
		memset(memory, 0, whole);
	return memory;
}

/*
 * Allocate size bytes whose address is a multiple of alignment (a power of two), for nt_memory_free. NULL without
 * memory.
 */
void *nt_memory_alloc_aligned(size_t alignment, size_t size)
{
	if (size > PTRDIFF_MAX - alignment - sizeof(struct head))
		return NULL;
	char *memory = nt_memory_alloc(size + alignment + sizeof(struct head));
	if (!memory)
		return NULL;
	uintptr_t aligned = ((uintptr_t)memory + sizeof(struct head) + alignment - 1) & ~(uintptr_t)(alignment - 1);
	struct head *head = (struct head *)aligned - 1;
	head->size = WITHIN;
	head->next = (uint64_t)(uintptr_t)memory;
	return (void *)aligned;
}

/*
 * As realloc, for what nt_memory_alloc or nt_memory_alloc_zeroed has returned, but not nt_memory_alloc_aligned. NULL
 * without memory: then the old block stays.
 */
void *nt_memory_realloc(void *memory, size_t size)
{
	if (!memory)
		return nt_memory_alloc(size);
	uint64_t room = ((struct head *)memory - 1)->size - sizeof(struct head);
	/* A small rest of a large block is not kept. */
	if (size <= room && (size > room / 4 || room < 4096))
		return memory;
	void *moved = nt_memory_alloc(size);
	if (!moved)
		return NULL;
	memcpy(moved, memory, size < room ? size : room);
	nt_memory_free(memory);
	return moved;
}

/* Copy a string, for nt_memory_free. NULL without memory. */
char *nt_memory_strdup(const char *text)
{
	size_t size = strlen(text) + 1;
	char *copy = nt_memory_alloc(size);

	return copy ? memcpy(copy, text, size) : NULL;
}

/* Free what any of the nt_memory functions has returned; NULL is ignored. errno stays. Lock-free. */
void nt_memory_free(void *memory)
{
	if (!memory)
		return;
	struct head *head = (struct head *)memory - 1;
	if (head->size == WITHIN)
		head = (struct head *)(uintptr_t)head->next - 1;
	uint64_t size = head->size;
	if (size > UINT64_C(1) << MOST_BITS) {
		int before = errno;
		munmap(head, size);
		errno = before;
	} else {
		put_free_block(head, (unsigned)__builtin_ctzll(size));
	}
}

#endif
