/* The device process, which runs the kernels: its start, the memory that is shared with it, requests and replies. */
#ifndef ED_CHANNEL_H
#define ED_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Requests. server.py reads the same numbers. */
enum ed_request {
	ED_REQUEST_LOAD = 1, /* an image's bytes -> module.h's description */
	ED_REQUEST_UNLOAD,   /* u64 module */
	ED_REQUEST_LAUNCH,   /* struct ed_launch_request, parameters -> u64 thread instructions, u64 steps, what it printed */
	ED_REQUEST_ALLOW,    /* u64 address, u64 size: kernels may access it. No reply */
	ED_REQUEST_FORBID,   /* u64 address: no longer. No reply */
};

struct ed_launch_request {
	uint64_t module;
	uint32_t kernel; /* its index in the description */
	uint32_t grid[3], block[3];
	uint32_t shared; /* dynamic, bytes */
	uint32_t cooperative;
	uint32_t size; /* of the parameters after this */
};

struct ed_reply {
	int status;	/* the driver's error, 0 when done */
	size_t size;	/* of data */
	uint8_t *data;	/* the caller's to free; after an error a line of text, and for a
			 * launch a zero and what it printed. Always ends in a zero byte beyond size */
};

/*
 * Memory that both processes have mapped. device is mapped here at another address than kernels use; host has the same
 * address for kernels.
 */
struct ed_shared {
	uint8_t *device, *host;
	uint64_t device_size, host_size;
};

extern struct ed_shared ed_shared;

/* Start the process, without waiting until it is ready. False, with a line on stderr, if that fails. */
bool ed_channel_start(void);

/* Send a request and wait for the reply. Any number of threads may do so at once. */
void ed_channel_call(enum ed_request kind, const struct iovec *parts, int count, struct ed_reply *ret);

/* Send a request that has no reply. It is handled before any later request. */
void ed_channel_tell(enum ed_request kind, const struct iovec *parts, int count);

/* Whether the calling process started the device process, and is not a fork of one that did. */
bool ed_channel_is_ours(void);

#endif
