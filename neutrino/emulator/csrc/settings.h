/* The settings in NEUTRINO_EMBEDDED: key=value pairs separated by ';', with '%XX' for a byte that would separate. */
#ifndef ED_SETTINGS_H
#define ED_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

struct ed_settings {
	char python[4096];    /* the interpreter of the device process */
	char root[4096];      /* the folder that holds the package neutrino */
	char count[4096];     /* where to write the counters at exit; empty: nowhere */
	char fail[1024];      /* requested failures: failure.h */
	char seed[32];	      /* of the warps' schedule and the streams' delays; empty: fixed and none */
	uint64_t steps;	      /* limit of a launch; 0: none */
	uint64_t memory;      /* bytes of device memory */
	uint64_t host_memory; /* bytes of managed and pinned memory */
	uint32_t delay;	      /* maximum microseconds that an item of a stream waits before it runs */
	bool strict;	      /* use of a destroyed object ends the process */
};

/* Read once, at first use. */
const struct ed_settings *ed_settings(void);

/* Write a line to stderr that begins with "neutrino: embedded device: "; with a format as printf's. */
void ed_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t ed_now_ns(void);

#endif
