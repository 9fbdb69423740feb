/*
 * When a program has loaded this library by dlmopen, it is in a namespace of its own, with a copy of libc of its own:
 * apart. glibc's copies share the threads, and know too little of each other:
 * - Only the copy whose pthread_create was called learns that there are several threads. Until then malloc of the
 *   program's copy takes no lock, and it is what the dynamic loader allocates by in all threads (thread-local storage).
 *   So the program's copy starts a thread, too, once, which ends at once.
 * - pthread_create reuses stacks of threads that have ended, whichever copy has started them, and frees what the dynamic
 *   loader has allocated for them by its own copy's free. So our threads have stacks of our own, which nobody reuses.
 * - Keys of pthread_key_create have the same numbers and places in both copies. So there are none of ours.
 * - fork calls the handlers of its own copy. So ours are registered with both.
 */
#ifndef NEUTRINO_APART_H
#define NEUTRINO_APART_H

#include <pthread.h>
#include <stdbool.h>

/* Whether this library is in another namespace than the program. Constant. */
bool nt_apart_is(void);

/* What fork calls in the child, whichever libc's it is; false if it cannot be registered. */
bool nt_apart_at_fork(void (*in_child)(void));

/* A stack of ours for a thread; NULL without memory. The thread says that it ends by giving it back, at the very end. */
struct nt_apart_stack *nt_apart_stack_take(pthread_attr_t *attributes);
void nt_apart_stack_end(struct nt_apart_stack *stack);
/* Give back one whose thread was not started. */
void nt_apart_stack_give(struct nt_apart_stack *stack);

#endif
