#include "background.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "quiet.h"
#include "settings.h"
#include "trace.h"

/* How long a context has to become idle before the others get their turn. */
#define QUIET_MS 20
/* Pauses between rounds in which nothing became ready: they double. */
#define SHORTEST_PAUSE_US 1000
#define LONGEST_PAUSE_US 64000
#define END_LIMIT_MS 1000

bool nt_background_is_on;

/* Launches of a kernel after which its twin is requested; 0: it is when the program obtains the kernel. */
static uint64_t hot;

/* Kernels that were requested and not taken yet, linked by next_requested, the last one first. */
static struct nt_kernel *requested;
static uint32_t wakes; /* counts requests; the thread sleeps on it */

/* Guards these; never held across a call of the driver. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int holds;     /* calls under way that destroy contexts */
static int is_inside; /* the thread is, or may be, in a call of the driver */
static int is_stopped;

/* The calling thread has one of the holds. */
static __thread __attribute__((tls_model("initial-exec"))) bool is_holding;

void nt_background_begin(void)
{
	const struct nt_settings *settings = nt_settings();

	if (!settings->hot && !settings->waits_for_none)
		return;
	if (!nt_quiet_is_supported()) {
		nt_trace_note("this driver, older than CUDA 12.5, cannot tell when a context is idle: twins are waited for");
		return;
	}
	hot = settings->hot;
	nt_quiet_counts = true;
	nt_background_is_on = true;
}

bool nt_background_is_by_launch(void)
{
	return nt_background_is_on && hot;
}

bool nt_background_defers(struct nt_image *image)
{
	if (!nt_background_is_on || !image->has_entry)
		return false;
	return hot ? !nt_image_is_resolved(image) : !nt_image_resolve_at_once(image);
}

/* --- requests --- */

/* List a kernel, unless it is. Lock-free. */
static void request(struct nt_kernel *kernel)
{
	if (__atomic_exchange_n(&kernel->is_requested, 1, __ATOMIC_ACQ_REL))
		return;
	kernel->next_requested = __atomic_load_n(&requested, __ATOMIC_ACQUIRE);
	while (!__atomic_compare_exchange_n(&requested, &kernel->next_requested, kernel, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE))
		;
	__atomic_add_fetch(&wakes, 1, __ATOMIC_ACQ_REL);
	syscall(SYS_futex, &wakes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

bool nt_background_is_due(struct nt_function *function)
{
	struct nt_kernel *kernel = function->kernel;

	if (__atomic_load_n(&kernel->is_requested, __ATOMIC_RELAXED))
		return false;
	return !hot || __atomic_load_n(&kernel->called, __ATOMIC_RELAXED) >= hot ||
	       __atomic_add_fetch(&kernel->called, 1, __ATOMIC_RELAXED) >= hot;
}

void nt_background_request(struct nt_function *function, CUcontext context)
{
	CUcontext none = NULL;

	if (function->is_kernel)
		__atomic_compare_exchange_n(&function->wanted_in, &none, context, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	request(function->kernel);
}

/* Take what was requested, and put it behind the list, first come first served. */
static void take(struct nt_kernel **list)
{
	struct nt_kernel *taken = __atomic_exchange_n(&requested, NULL, __ATOMIC_ACQ_REL), *reversed = NULL;

	while (taken) {
		struct nt_kernel *next = taken->next_requested;
		taken->next_requested = reversed;
		reversed = taken;
		/* So that twins of many images are made side by side. */
		nt_image_begin(taken->image);
		taken = next;
	}
	while (*list)
		list = &(*list)->next_requested;
	*list = reversed;
}

/* --- the thread --- */

/* Begin to call the driver, unless contexts are being destroyed, or the process ends. */
static bool enter(void)
{
	pthread_mutex_lock(&mutex);
	bool may_enter = !holds && !is_stopped;
	__atomic_store_n(&is_inside, may_enter, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
	return may_enter;
}

/* Make what functions of a kernel wait for, whose image is resolved. Whether all of them are ready. */
static bool serve(struct nt_kernel *kernel)
{
	bool is_done;

	nt_image_complete(kernel);
	if (!enter())
		return false;
	is_done = nt_registry_make_ready(kernel, QUIET_MS);
	__atomic_store_n(&is_inside, 0, __ATOMIC_RELEASE);
	return is_done;
}

/* One round over the list; takes out those that are done. Whether there were any, or a long wait. */
static bool serve_all(struct nt_kernel **list)
{
	struct nt_kernel *unresolved = NULL;
	bool is_any = false, has_others = false;

	for (struct nt_kernel **link = list; *link;) {
		struct nt_kernel *kernel = *link;
		bool is_resolved = nt_image_is_resolved(kernel->image);
		if (!is_resolved && nt_image_is_answered(kernel->image)) {
			nt_image_resolve(kernel->image);
			is_resolved = true;
		}
		if (!is_resolved && !unresolved)
			unresolved = kernel;
		if (!is_resolved || !serve(kernel)) {
			has_others |= is_resolved;
			link = &kernel->next_requested;
			continue;
		}
		*link = kernel->next_requested;
		/* From now on it may be requested again, for functions that were added meanwhile. */
		__atomic_store_n(&kernel->is_requested, 0, __ATOMIC_RELEASE);
		is_any = true;
	}
	/* Only while nothing else can be done: this waits for the listener. */
	if (unresolved && !is_any && !has_others && !__atomic_load_n(&is_stopped, __ATOMIC_ACQUIRE)) {
		nt_image_resolve(unresolved->image);
		return true;
	}
	return is_any;
}

/* The main function of the thread. */
static void *work(void *unused)
{
	struct nt_kernel *list = NULL;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	long pause = SHORTEST_PAUSE_US;

	(void)unused;
	pthread_setname_np(pthread_self(), "neutrino-twins");
	/* Calls of this thread must neither fail because the program captures a stream, nor invalidate the capture. */
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	while (!__atomic_load_n(&is_stopped, __ATOMIC_ACQUIRE)) {
		uint32_t seen = __atomic_load_n(&wakes, __ATOMIC_ACQUIRE);
		take(&list);
		if (!list) {
			syscall(SYS_futex, &wakes, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
		} else if (serve_all(&list)) {
			pause = SHORTEST_PAUSE_US;
		} else {
			nt_sleep_us(pause);
			pause = pause < LONGEST_PAUSE_US ? 2 * pause : pause;
		}
	}
	return NULL;
}

/* Start the thread, once. */
static void start(void)
{
	static int is_started;
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;

	if (__atomic_exchange_n(&is_started, 1, __ATOMIC_ACQ_REL))
		return;
	/* With all signals blocked, so that the program's signals are delivered to its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attributes, work, NULL) != 0)
		nt_trace_note("no thread could be started to load twins: kernels run unprobed");
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void nt_background_added(const struct nt_function *function)
{
	start();
	/* A CUkernel that was obtained without a context waits for its first launch, which has one. */
	if (!hot && (!function->is_kernel || __atomic_load_n(&function->wanted_in, __ATOMIC_ACQUIRE)))
		request(function->kernel);
}

/* --- ends --- */

/* Wait until the thread is in no call of the driver; false after that many milliseconds. */
static void wait_outside(unsigned milliseconds)
{
	uint64_t until = nt_now_ns() + milliseconds * UINT64_C(1000000);

	while (__atomic_load_n(&is_inside, __ATOMIC_ACQUIRE) && nt_now_ns() < until)
		nt_sleep_us(100);
}

void nt_background_hold(unsigned milliseconds)
{
	if (!nt_background_is_on || is_holding)
		return;
	is_holding = true;
	pthread_mutex_lock(&mutex);
	holds++;
	pthread_mutex_unlock(&mutex);
	wait_outside(milliseconds);
}

void nt_background_release(void)
{
	if (!is_holding)
		return;
	is_holding = false;
	pthread_mutex_lock(&mutex);
	holds--;
	pthread_mutex_unlock(&mutex);
}

void nt_background_end(void)
{
	if (!nt_background_is_on)
		return;
	pthread_mutex_lock(&mutex);
	__atomic_store_n(&is_stopped, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
	wait_outside(END_LIMIT_MS);
}

void nt_background_child(void)
{
	nt_background_is_on = false;
	nt_quiet_child();
}
