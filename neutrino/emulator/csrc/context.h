/* Contexts: which one is current to a thread, and its errors. */
#ifndef ED_CONTEXT_H
#define ED_CONTEXT_H

#include "abi.h"
#include "count.h"
#include "objects.h"

struct ed_queue;

struct ed_context {
	struct ed_object object;
	uint64_t id;	 /* never used again, as the handle is */
	unsigned flags;
	unsigned version; /* of the function that made it */
	bool is_primary;
	uint32_t is_ended; /* the primary context between its end and the next time that it is retained */
	struct ed_queue *legacy; /* the default stream */
};

/* CUDA_SUCCESS with the calling thread's context; 201 without one, 709 when it was destroyed, or its fault. */
CUresult ed_context_current(struct ed_context **ret);

/* The context that the handle, or for NULL the thread, names: 709 where it has ended. */
CUresult ed_context_of(CUcontext handle, struct ed_context **ret);

/* The process has lost the device. The first fault stays; line is what is said of it, NULL for nothing. */
void ed_device_fail(CUresult fault, const char *line);

/* The error that every call in every context returns since a kernel's fault, 0 while all is well. */
CUresult ed_device_fault(void);

/* Whether cuInit has been called in this process. */
bool ed_initialised(void);

/* The thread runs a host function or callback of a stream, which must not call the driver. */
extern __thread bool ed_in_host_function;

/* For functions that need no context: count the call, refuse it before cuInit. */
#define ENTER_ANYWHERE()                                                                                                        \
	do {                                                                                                           \
		static struct ed_counter entered;                                                                      \
		ed_count(&entered, __func__, __builtin_return_address(0));                                             \
		if (!ed_initialised())                                                                                 \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
	} while (0)

/* The same, and refuse it in a host function. */
#define ENTER()                                                                                                        \
	ENTER_ANYWHERE();                                                                                              \
	if (ed_in_host_function)                                                                                       \
	return CUDA_ERROR_NOT_PERMITTED

/* The thread's context, which is declared; returns where there is none or it has a fault. */
#define IN_CONTEXT(context)                                                                                            \
	struct ed_context *context;                                                                                    \
	do {                                                                                                           \
		CUresult in_context = ed_context_current(&context);                                                    \
		if (in_context)                                                                                        \
			return in_context;                                                                             \
	} while (0)

/* For functions that work in the thread's context. */
#define ENTER_CONTEXT(context)                                                                                         \
	ENTER();                                                                                                       \
	IN_CONTEXT(context)

#endif
