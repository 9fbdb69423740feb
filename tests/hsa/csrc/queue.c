/* Signals, and the one queue: its packets are carried out when its doorbell rings, in the thread that rings it. */
#define _GNU_SOURCE
#include "stand_in.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* HIP reads a signal's value, and the times when a dispatch began and ended, in memory. */
struct signal {
	int64_t kind;
	int64_t value;
	uint64_t mailbox;
	uint32_t event;
	uint32_t reserved;
	uint64_t begin;
	uint64_t end;
};

static stand_in_dispatch dispatch;
static hsa_queue_t *queue;
static uint64_t written, read_;

void hsa_stand_in_on_dispatch(stand_in_dispatch function) { dispatch = function; }

static struct signal *of(hsa_signal_t signal) { return (struct signal *)signal.handle; }

hsa_status_t hsa_signal_create(hsa_signal_value_t value, uint32_t count, const hsa_agent_t *consumers, hsa_signal_t *signal)
{
	struct signal *made = aligned_alloc(64, 64);
	if (!made)
		return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
	memset(made, 0, 64);
	made->kind = 1;
	made->value = value;
	signal->handle = (uint64_t)made;
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_signal_create(hsa_signal_value_t value, uint32_t count, const hsa_agent_t *consumers, uint64_t attributes, hsa_signal_t *signal)
{
	return hsa_signal_create(value, count, consumers, signal);
}

hsa_status_t hsa_signal_destroy(hsa_signal_t signal)
{
	free(of(signal));
	return HSA_STATUS_SUCCESS;
}

hsa_signal_value_t hsa_signal_load_relaxed(hsa_signal_t signal) { return of(signal)->value; }

void hsa_signal_store_relaxed(hsa_signal_t signal, hsa_signal_value_t value)
{
	of(signal)->value = value;
	stand_in_ring();
}

void hsa_signal_store_screlease(hsa_signal_t signal, hsa_signal_value_t value) { hsa_signal_store_relaxed(signal, value); }

void hsa_signal_silent_store_relaxed(hsa_signal_t signal, hsa_signal_value_t value) { of(signal)->value = value; }

void hsa_signal_add_relaxed(hsa_signal_t signal, hsa_signal_value_t value) { of(signal)->value += value; }

void hsa_signal_subtract_relaxed(hsa_signal_t signal, hsa_signal_value_t value) { of(signal)->value -= value; }

hsa_signal_value_t hsa_signal_wait_scacquire(hsa_signal_t signal, hsa_signal_condition_t condition, hsa_signal_value_t compared, uint64_t timeout, hsa_wait_state_t state)
{
	/* What it may wait for is done, but for host calls of kernels, for which HIP has a thread. */
	hsa_signal_value_t value = of(signal)->value;
	bool met = condition == HSA_SIGNAL_CONDITION_EQ ? value == compared
		   : condition == HSA_SIGNAL_CONDITION_NE ? value != compared
		   : condition == HSA_SIGNAL_CONDITION_LT ? value < compared
							  : value >= compared;
	if (!met)
		usleep(1000);
	return of(signal)->value;
}

hsa_status_t hsa_amd_signal_async_handler(hsa_signal_t signal, hsa_signal_condition_t condition, hsa_signal_value_t value, hsa_amd_signal_handler handler, void *data)
{
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_signal_value_pointer(hsa_signal_t signal, volatile hsa_signal_value_t **value)
{
	*value = &of(signal)->value;
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_queue_create(hsa_agent_t agent, uint32_t size, hsa_queue_type32_t type, void (*callback)(hsa_status_t, hsa_queue_t *, void *), void *data, uint32_t private_size, uint32_t group_size, hsa_queue_t **made)
{
	/* HIP reads what ROCr has behind the queue, of which everything may be 0. */
	queue = calloc(1, 4096);
	char *packets = aligned_alloc(4096, (size_t)size * 64);
	if (!queue || !packets)
		return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
	memset(packets, 0, (size_t)size * 64);
	for (uint32_t index = 0; index < size; index++)
		*(uint16_t *)(packets + 64 * (size_t)index) = HSA_PACKET_TYPE_INVALID;
	queue->base_address = packets;
	queue->size = size;
	written = read_ = 0;
	hsa_signal_create(0, 0, NULL, &queue->doorbell_signal);
	*made = queue;
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_queue_destroy(hsa_queue_t *destroyed) { return HSA_STATUS_SUCCESS; }

uint64_t hsa_queue_add_write_index_screlease(const hsa_queue_t *of_queue, uint64_t value)
{
	uint64_t old = written;
	written += value;
	return old;
}

uint64_t hsa_queue_load_read_index_relaxed(const hsa_queue_t *of_queue) { return read_; }

uint64_t hsa_queue_load_read_index_scacquire(const hsa_queue_t *of_queue) { return read_; }

uint64_t hsa_queue_load_write_index_relaxed(const hsa_queue_t *of_queue) { return written; }

hsa_status_t hsa_amd_queue_cu_set_mask(const hsa_queue_t *of_queue, uint32_t count, const uint32_t *mask) { return HSA_STATUS_SUCCESS; }

hsa_status_t hsa_amd_queue_set_priority(hsa_queue_t *of_queue, hsa_amd_queue_priority_t priority) { return HSA_STATUS_SUCCESS; }

void stand_in_ring(void)
{
	while (queue && read_ < written) {
		char *packet = (char *)queue->base_address + 64 * (read_ % queue->size);
		unsigned type = *(uint16_t *)packet & 0xff;
		hsa_signal_t completion;
		/* Its place was taken, but it is not written yet. */
		if (type == HSA_PACKET_TYPE_INVALID)
			return;
		if (type == HSA_PACKET_TYPE_KERNEL_DISPATCH) {
			hsa_kernel_dispatch_packet_t *kernel = (hsa_kernel_dispatch_packet_t *)packet;
			const char *descriptor = (const char *)kernel->kernel_object;
			int64_t entry;
			memcpy(&entry, descriptor + 16, sizeof entry);
			if (dispatch)
				dispatch(kernel, descriptor, descriptor + entry);
			completion = kernel->completion_signal;
		} else {
			completion = ((hsa_barrier_and_packet_t *)packet)->completion_signal;
		}
		*(uint16_t *)packet = HSA_PACKET_TYPE_INVALID;
		read_++;
		if (completion.handle)
			of(completion)->value--;
	}
}

hsa_status_t hsa_amd_memory_async_copy(void *to, hsa_agent_t to_agent, const void *from, hsa_agent_t from_agent, size_t size, uint32_t count, const hsa_signal_t *wait_for, hsa_signal_t completion)
{
	memcpy(to, from, size);
	if (completion.handle)
		of(completion)->value--;
	return HSA_STATUS_SUCCESS;
}
