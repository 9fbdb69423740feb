#include "image/image_log.h"

#include <stdio.h>
#include <string.h>

#include "base/scope.h"
#include "image/sets.h"
#include "memory/own_memory.h"
#include "trace/trace.h"

#define LOGGED_DEVICES 64

/* Write the event of a device into the trace, once for each. From any thread. */
void nt_image_log_device(CUdevice device, const char *arch)
{
	static int logged[LOGGED_DEVICES];
	char name[256] = "";
	struct nt_event event;

	if (device < 0 || device >= LOGGED_DEVICES || __atomic_exchange_n(&logged[device], 1, __ATOMIC_ACQ_REL))
		return;
	nt_driver.cuDeviceGetName(name, sizeof(name), device);
	nt_event_begin(&event, "device");
	nt_event_number(&event, "ordinal", (uint64_t)device);
	nt_event_string(&event, "name", name);
	nt_event_string(&event, "arch", arch);
	nt_lines_event(&event);
}

/*
 * Add to an image's event the hash of its bytes as they were loaded, from which readers know them again: its key, with
 * what else that covers; of an image that cannot have twins (copies with probes) its identity. None if that was not
 * hashed here: of twins from a patched file, of single kernels, and of images that are not in the table.
 */
static void add_hash(struct nt_event *event, const struct nt_image *image)
{
	static const char digits[] = "0123456789abcdef";
	char text[2 * sizeof(image->key) + 1] = "";

	if (image->from_section || image->is_of_kernel || image->reason == NEUTRINO_REASON_TABLE_FULL)
		return;
	for (size_t i = 0; i < sizeof(image->key); i++) {
		text[2 * i] = digits[image->key[i] >> 4];
		text[2 * i + 1] = digits[image->key[i] & 15];
	}
	nt_event_string(event, image->set ? "key" : "begins", text);
	if (image->set) {
		nt_event_string(event, "settings", image->set->key);
		nt_event_string(event, "arch", image->arch);
	}
}

/*
 * Write the event of an image (GPU code of the program) into the trace. cached: whether its twins (copies with probes)
 * were in the cache. ready_ms: milliseconds until they were there.
 */
void nt_image_log_image(const struct nt_image *image, bool cached, double ready_ms)
{
	struct nt_event event;

	nt_event_begin(&event, "image");
	nt_event_number(&event, "id", image->id);
	if (image->set && image->set->number > 1)
		nt_event_number(&event, "set", image->set->number);
	nt_event_string(&event, "kind", nt_image_bytes_kind(image->kind));
	nt_event_number(&event, "size", image->size);
	nt_event_string(&event, "source", image->source ? image->source : "");
	if (image->ptx_by)
		nt_event_string(&event, "ptx_by", image->ptx_by);
	if (image->from_section)
		nt_event_string(&event, "twins", "section");
	if (image->is_of_kernel)
		nt_event_string(&event, "twins", "kernel");
	add_hash(&event, image);
	if (image->reason == NEUTRINO_REASON_PROBED) {
		if (!image->from_section)
			nt_event_number(&event, "cached", cached);
		nt_event_real(&event, "ready_ms", ready_ms);
	}
	nt_lines_event(&event);
}

/*
 * Write a kernel's manifest, which begins with a brace, with the number of its set of probes, unless that is the first.
 * name: of the file in the trace. False if that was not done, since it is to be written as it is.
 */
static bool write_with_set(const char *name, const uint8_t *data, size_t size, uint32_t set)
{
	char member[32];

	if (set < 2 || size < 2 || data[0] != '{')
		return false;
	size_t length = (size_t)snprintf(member, sizeof(member), "{\"set\": %u,", set);
	NT_FREED uint8_t *text = nt_memory_alloc(length + size);
	if (!text)
		return false;
	memcpy(text, member, length);
	memcpy(text + length, data + 1, size - 1);
	nt_trace_file(name, text, length + size - 1);
	return true;
}

/*
 * Write the files of a kernel (manifest, PTX), which come with its twin (copy with probes), into the trace's folder
 * kernel/<id>.
 */
static void write_kernel_files(const struct nt_image *image, const struct nt_kernel *kernel)
{
	const struct neutrino_twin_file *files = (const void *)(image->entry.data + kernel->twin->files_offset);
	char name[512];

	snprintf(name, sizeof(name), "kernel/%u", kernel->id);
	if (!nt_trace_mkdir(name))
		return;
	for (uint32_t i = 0; i < kernel->twin->files; i++) {
		const char *file = nt_entry_string(&image->entry, files[i].name_offset);
		bool is_short = snprintf(name, sizeof(name), "kernel/%u/%s", kernel->id, file) < (int)sizeof(name);
		bool is_manifest = strcmp(file, "manifest.json") == 0;
		if (is_short && !(is_manifest && write_with_set(name, image->entry.data + files[i].offset, files[i].size, kernel->set)))
			nt_trace_file(name, image->entry.data + files[i].offset, files[i].size);
	}
}

/*
 * Write the files of a kernel, its event, and a line for event.log into the trace. detail: what the kernel's reason
 * alone does not say, or NULL.
 */
void nt_image_log_kernel(const struct nt_image *image, const struct nt_kernel *kernel, const char *detail)
{
	static const char *const words[NEUTRINO_REASON_SLOTS] = {NEUTRINO_REASON_WORDS};
	static const char *const texts[NEUTRINO_REASON_SLOTS] = {NEUTRINO_REASON_TEXTS};
	struct nt_event event;
	enum neutrino_reason reason = kernel->reason;

	if (reason == NEUTRINO_REASON_PROBED)
		write_kernel_files(image, kernel);
	nt_event_begin(&event, "kernel");
	nt_event_number(&event, "id", kernel->id);
	nt_event_number(&event, "image", image->id);
	if (kernel->set > 1)
		nt_event_number(&event, "set", kernel->set);
	nt_event_string(&event, "name", kernel->name);
	nt_event_string(&event, "reason", words[reason] ? words[reason] : "unknown");
	nt_event_string(&event, "detail", detail ? detail : "");
	/* What an earlier process has learnt. */
	if (nt_own_memory_is_memusage && kernel->log_kept.units) {
		nt_event_number(&event, "log_units", kernel->log_kept.units);
		nt_event_number(&event, "log_per_warp", kernel->log_kept.per_warp);
	}
	nt_lines_event(&event);
	if (reason == NEUTRINO_REASON_PROBED)
		nt_lines_log("kernel %u %s: probed%s%s", kernel->id, kernel->name, detail && *detail ? "; " : "",
			     detail ? detail : "");
	else if (reason == NEUTRINO_REASON_NOT_READY)
		nt_lines_log("kernel %u %s: its twin is not ready yet", kernel->id, kernel->name);
	else
		nt_lines_log("kernel %u %s: not probed: %s%s%s", kernel->id, kernel->name,
			     texts[reason] ? texts[reason] : "", detail && *detail ? ": " : "", detail ? detail : "");
}
