#include "image/requests.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/upcalls.h"

bool nt_requests_are_on;
uint64_t nt_requests_hot;
struct nt_inbox nt_requests;
struct nt_image *nt_requests_announced;

/*
 * Whether twins (copies with probes) are requested when kernels are launched (--when launch, --hot), not when the
 * program obtains them: then also twins that are in the cache are not loaded before.
 */
bool nt_requests_are_by_launch(void)
{
	return nt_requests_are_on && nt_requests_hot;
}

/* Count a reason to wake, and wake the thread that sleeps on an inbox. */
void nt_requests_wake(struct nt_inbox *inbox)
{
	__atomic_add_fetch(&inbox->wakes, 1, __ATOMIC_ACQ_REL);
	syscall(SYS_futex, &inbox->wakes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/*
 * Sleep until the inbox's thread is woken, unless its count of wakes differs from what was seen before. May return
 * early.
 */
void nt_requests_sleep(struct nt_inbox *inbox, uint32_t seen)
{
	syscall(SYS_futex, &inbox->wakes, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

/* Put a kernel into an inbox, and wake its thread. A kernel must be in one inbox at most. Lock-free. */
void nt_requests_push(struct nt_inbox *inbox, struct nt_kernel *kernel)
{
	kernel->next_requested = __atomic_load_n(&inbox->last, __ATOMIC_ACQUIRE);
	while (!__atomic_compare_exchange_n(&inbox->last, &kernel->next_requested, kernel, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE))
		;
	nt_requests_wake(inbox);
}

/*
 * Take all kernels out of an inbox, and append them to a list (linked by next_requested), in the order in which they
 * came.
 */
void nt_requests_take(struct nt_inbox *inbox, struct nt_kernel **list)
{
	struct nt_kernel *taken = __atomic_exchange_n(&inbox->last, NULL, __ATOMIC_ACQ_REL), *reversed = NULL;

	while (taken) {
		struct nt_kernel *next = taken->next_requested;
		taken->next_requested = reversed;
		reversed = taken;
		taken = next;
	}
	while (*list)
		list = &(*list)->next_requested;
	*list = reversed;
}

/* Request a kernel's twin (copy with probes) from the thread in the background, unless that was done. Lock-free. */
static void request_twin(struct nt_kernel *kernel)
{
	if (__atomic_exchange_n(&kernel->is_requested, 1, __ATOMIC_ACQ_REL))
		return;
	nt_requests_push(&nt_requests, kernel);
}

/*
 * Whether the twin (copy with probes) of a function that is not ready is to be requested now that it is launched,
 * captured, or in a graph that is instantiated: not if it was requested, or before as many launches as --hot says.
 * Counts the launch. On the launch path: lock-free.
 */
bool nt_requests_is_due(struct nt_function *function)
{
	struct nt_kernel *kernel = function->kernel;

	if (__atomic_load_n(&kernel->is_requested, __ATOMIC_RELAXED))
		return false;
	return !nt_requests_hot || __atomic_load_n(&kernel->called, __ATOMIC_RELAXED) >= nt_requests_hot ||
	       __atomic_add_fetch(&kernel->called, 1, __ATOMIC_RELAXED) >= nt_requests_hot;
}

/*
 * Request the twin (copy with probes) of a function that is due. context: in which it is launched, and a CUkernel is
 * prepared. Lock-free; wakes the thread.
 */
void nt_requests_add(struct nt_function *function, CUcontext context)
{
	CUcontext none = NULL;

	if (function->is_kernel)
		__atomic_compare_exchange_n(&function->wanted_in, &none, context, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	request_twin(function->kernel);
}

/*
 * A new image (GPU code of the program) may have twins (copies with probes): have the background thread ask for them
 * ahead. Does nothing if twins are not loaded in the background, or only by --hot.
 */
void nt_requests_announce(struct nt_image *image)
{
	if (!nt_requests_are_on || nt_requests_hot)
		return;
	nt_upcalls.background_start();
	image->next_begun = __atomic_load_n(&nt_requests_announced, __ATOMIC_ACQUIRE);
	while (!__atomic_compare_exchange_n(&nt_requests_announced, &image->next_begun, image, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	nt_requests_wake(&nt_requests);
}

/*
 * A function whose twin (copy with probes) is not ready was registered: start the background threads, and request its
 * twin unless that waits for a launch.
 */
void nt_requests_added(const struct nt_function *function)
{
	nt_upcalls.background_start();
	/* A CUkernel that was obtained without a context waits for its first launch, which has one. */
	if (!nt_requests_hot && (!function->is_kernel || __atomic_load_n(&function->wanted_in, __ATOMIC_ACQUIRE)))
		request_twin(function->kernel);
}
