/* A change of the set of probes (image/sets.h): all functions get the twins of another set, which are made if they are new. */
#ifndef NEUTRINO_CHANGE_H
#define NEUTRINO_CHANGE_H

#include "image/sets.h"

enum nt_changed_to {
	NT_CHANGED,
	NT_CHANGE_BUSY,	    /* another thread changes the set */
	NT_CHANGE_CAPTURED, /* a stream is being captured */
	NT_CHANGE_FAILED,   /* no memory */
};

/*
 * Put a set of probes in force: every function gets its twins of that set. Waits for the listener as a program does that
 * obtains kernels. In a thread of the program, from no call of the driver.
 */
enum nt_changed_to nt_change_to(const struct nt_set *set);

#endif
