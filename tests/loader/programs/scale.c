/*
 * scale CASE PROBED OTHER AMOUNT ALIVE THREADS: much of one thing, on a driver that does nothing.
 *
 *   streams   AMOUNT streams are created, launched in and destroyed, one by one; as many in turns of ALIVE at once
 *   handles   AMOUNT modules and libraries are loaded, a kernel of each is launched, and they are unloaded, ALIVE later
 *   launches  AMOUNT launches by THREADS threads
 *   mixed     all of it by turns
 *
 * PROBED, OTHER: files of the image whose kernel is probed, and of one whose kernel is not. Prints what it did; the status
 * is 7 if every call has succeeded.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_calls.h"

enum { GOOD = 7, MOST_THREADS = 64 };
enum { PROBED, OTHER, IMAGES };

static char images[IMAGES][1 << 20];
static uint64_t launches[IMAGES], streams, modules; /* done so far */
static long alive, threads;

/* End the process with this status if a call of the driver has failed. */
static void check(CUresult result, int status)
{
	if (result)
		_exit(status);
}

/* Launch a kernel of an image (PROBED or OTHER) in a stream, and count that. */
static void launch(CUfunction function, int image, CUstream stream)
{
	unsigned long long counter = 0;
	unsigned unused = 5;
	void *parameters[] = {&counter, &unused};

	check(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL), 5);
	__atomic_fetch_add(&launches[image], 1, __ATOMIC_RELAXED);
}

/* A module or a library of an image, and its kernel. */
struct loaded {
	void *handle, *function;
	bool is_library;
	int image;
};

/* Load an image as a module or a library, and get its kernel. The process ends if that fails. */
static struct loaded load(int image, bool is_library)
{
	struct loaded new = {.is_library = is_library, .image = image};

	if (is_library) {
		check(cuLibraryLoadData(&new.handle, images[image], NULL, NULL, 0, NULL, NULL, 0), 4);
		check(cuLibraryGetKernel(&new.function, new.handle, "count_p2"), 4);
	} else {
		check(cuModuleLoadData(&new.handle, images[image]), 4);
		check(cuModuleGetFunction(&new.function, new.handle, "count_p2"), 4);
	}
	return new;
}

/* Unload what load() has loaded. */
static void unload(struct loaded *old)
{
	check(old->is_library ? cuLibraryUnload(old->handle) : cuModuleUnload(old->handle), 6);
	old->handle = NULL;
}

/*
 * Pause a millisecond after each `count` of what is done: so many come about as fast as in front of a driver that does
 * something.
 */
static void rest(long done, long count)
{
	if (done % count == count - 1)
		usleep(1000);
}

/* Make `amount` streams, launch in each and destroy them, one by one; then as many in turns of `alive` at once. */
static void run_streams(long amount)
{
	CUstream *list = calloc((size_t)alive, sizeof(*list));
	struct loaded kernels[IMAGES] = {load(PROBED, false), load(OTHER, false)};

	for (long i = 0; i < amount; i++) {
		CUstream stream;
		check(cuStreamCreate(&stream, 1), 4);
		launch(kernels[i % IMAGES].function, kernels[i % IMAGES].image, stream);
		launch(kernels[PROBED].function, PROBED, stream);
		check(cuStreamDestroy_v2(stream), 6);
		rest(i, 64);
	}
	for (long done = 0; done < amount; done += alive) {
		for (long i = 0; i < alive; i++)
			check(cuStreamCreate(&list[i], 1), 4);
		for (long i = 0; i < 2 * alive; i++) {
			launch(kernels[i % 3 == 2].function, i % 3 == 2, list[i % alive]);
			rest(i, 64);
		}
		for (long i = 0; i < alive; i++) {
			check(cuStreamDestroy_v2(list[i]), 6);
		}
		streams += (uint64_t)alive;
	}
	streams += (uint64_t)amount;
	unload(&kernels[PROBED]);
	unload(&kernels[OTHER]);
	free(list);
}

/*
 * Load `amount` modules and libraries, launch a kernel of each, and unload each when `alive` others were loaded after
 * it.
 */
static void run_handles(long amount)
{
	struct loaded *ring = calloc((size_t)alive, sizeof(*ring));
	CUstream stream;

	check(cuStreamCreate(&stream, 1), 4);
	for (long i = 0; i < amount; i++) {
		struct loaded *place = &ring[i % alive];
		if (place->handle)
			unload(place);
		*place = load(i % 3 == 2, i / 3 % 2);
		launch(place->function, place->image, stream);
	}
	for (long i = 0; i < alive; i++)
		if (ring[i].handle)
			unload(&ring[i]);
	check(cuStreamDestroy_v2(stream), 6);
	modules += (uint64_t)amount;
	free(ring);
}

struct share {
	struct loaded kernels[IMAGES];
	long amount, all;
};

/* Main function of a launching thread (argument: struct share): launches its amount in a stream of its own. */
static void *launch_share(void *argument)
{
	const struct share *share = argument;
	CUstream stream;

	check(!begin_context(), 3);
	check(cuStreamCreate(&stream, 1), 4);
	for (long i = 0; i < share->amount; i++) {
		launch(share->kernels[i % IMAGES].function, share->kernels[i % IMAGES].image, stream);
		rest(i, 256);
	}
	check(cuStreamDestroy_v2(stream), 6);
	return NULL;
}

/* Have `threads` threads, this one among them, launch kernels `amount` times together. */
static void run_launches(long amount)
{
	pthread_t others[MOST_THREADS];
	struct share share = {{load(PROBED, false), load(OTHER, true)}, amount / threads, amount};
	struct share rest = share;

	/* What the division leaves over is this thread's. */
	rest.amount += amount % threads;
	for (long i = 1; i < threads; i++)
		check(pthread_create(&others[i], NULL, launch_share, &share), 3);
	launch_share(&rest);
	for (long i = 1; i < threads; i++)
		check(pthread_join(others[i], NULL), 3);
	unload(&share.kernels[PROBED]);
	unload(&share.kernels[OTHER]);
	streams += (uint64_t)threads;
}

/* Do all cases by turns. amount: launches of a turn. */
static void run_mixed(long amount)
{
	for (int turn = 0; turn < 6; turn++) {
		if (turn % 3 == 0)
			run_launches(amount);
		else if (turn % 3 == 1)
			run_handles(amount / 16);
		else
			run_streams(amount / 16);
	}
}

/* Read the file of an image into a buffer of the size of images[0]; false if that fails. */
static bool read_image(const char *path, char *ret)
{
	FILE *file = fopen(path, "rb");
	bool is_read = file && fread(ret, 1, sizeof(images[0]) - 1, file);

	if (file)
		fclose(file);
	return is_read;
}

/*
 * Do the case of the first argument; the others are described at the top of the file. Status 7 (GOOD) if every call has
 * succeeded.
 */
int main(int argc, char **argv)
{
	if (argc != 7 || !read_image(argv[2], images[PROBED]) || !read_image(argv[3], images[OTHER]))
		return 2;
	long amount = atol(argv[4]);
	alive = atol(argv[5]);
	threads = atol(argv[6]);
	if (amount < 1 || alive < 1 || threads < 1 || threads > MOST_THREADS || !find_driver() || !begin_context())
		return 3;
	if (!strcmp(argv[1], "streams"))
		run_streams(amount);
	else if (!strcmp(argv[1], "handles"))
		run_handles(amount);
	else if (!strcmp(argv[1], "launches"))
		run_launches(amount);
	else if (!strcmp(argv[1], "mixed"))
		run_mixed(amount);
	else
		return 2;
	printf("launches %lu %lu\nstreams %lu\nmodules %lu\n", launches[PROBED], launches[OTHER], streams, modules);
	return GOOD;
}
