/* Contexts: the thread's current one, and the device's fault. */
#ifndef ED_CONTEXT_H
#define ED_CONTEXT_H

#include "abi.h"
#include "count.h"
#include "objects.h"

struct ed_queue;

struct ed_context {
	struct ed_object object;
	uint64_t id;	 /* unlike the handle, never reused */
	unsigned flags;
	unsigned version; /* of the API of the function that made it */
	bool is_primary;
	uint32_t attached; /* by cuCtxAttach, since the last cuCtxDetach that undid it */
	uint32_t is_ended; /* the primary context between its end and the next time that it is retained */
	struct ed_queue *legacy; /* the default stream */
	struct ed_context *green_of; /* of a green context: the primary one, whose modules and memory it has; else NULL */
	uint32_t multiprocessors;    /* of a green context */
	int32_t thread;		     /* that a green context was made current in, 0 for none */
};

/* CUDA_SUCCESS with the calling thread's context; 201 without one, 709 when it was destroyed, or its fault. */
CUresult ed_context_current(struct ed_context **ret);

/* The calling thread's context as the program named it, NULL without one: a green context is itself here. */
CUcontext ed_context_handle(void);

/* A new green context, without its resources; NULL without memory. */
struct ed_context *ed_context_make_green(struct ed_context *of);

CUresult ed_context_retain_primary(CUcontext *context);
CUresult ed_context_release_primary(void);

/* The context of a handle, or the thread's current one for NULL: 709 if it has ended. */
CUresult ed_context_of(CUcontext handle, struct ed_context **ret);

/* Record a fault of the device. The first one stays; line is the message about it, NULL for none. */
void ed_device_fail(CUresult fault, const char *line);

/* The fault that every call in every context returns after it, 0 if there was none. */
CUresult ed_device_fault(void);

/* Whether cuInit has been called in this process. */
bool ed_initialised(void);

/* The thread runs a host function or callback of a stream, which must not call the driver. */
extern __thread bool ed_in_host_function;

/* For functions that need no context: count the call, refuse it before cuInit. */
#define ENTER_ANYWHERE_OR_RETURN()                                                                                              \
	do {                                                                                                           \
		static struct ed_counter entered;                                                                      \
		ed_count(&entered, __func__, __builtin_return_address(0));                                             \
		if (!ed_initialised())                                                                                 \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
	} while (0)

/* The same, but the call is also refused in a host function. */
#define ENTER_OR_RETURN()                                                                                              \
	ENTER_ANYWHERE_OR_RETURN();                                                                                    \
	if (ed_in_host_function)                                                                                       \
	return CUDA_ERROR_NOT_PERMITTED

/* Declare and get the thread's context; return from the function with an error if there is none, or after a fault. */
#define GET_CONTEXT_OR_RETURN(context)                                                                                 \
	struct ed_context *context;                                                                                    \
	do {                                                                                                           \
		CUresult in_context = ed_context_current(&context);                                                    \
		if (in_context)                                                                                        \
			return in_context;                                                                             \
	} while (0)

/* For functions that need a context: ENTER_OR_RETURN() and GET_CONTEXT_OR_RETURN(). */
#define ENTER_CONTEXT_OR_RETURN(context)                                                                               \
	ENTER_OR_RETURN();                                                                                             \
	GET_CONTEXT_OR_RETURN(context)

#endif
