#include "image/section.h"

#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/sha256.h"
#include "trace/trace.h"

#define MOST_UNUSED 32 /* libraries that nt_section_unused reports */

/*
 * The path of a loaded object (program or shared library) into ret, of size bytes; the program itself has no name in
 * the dynamic loader's list.
 */
static void name_of(const struct dl_phdr_info *object, char *ret, size_t size)
{
	if (object->dlpi_name && *object->dlpi_name) {
		snprintf(ret, size, "%s", object->dlpi_name);
		return;
	}
	ssize_t length = readlink("/proc/self/exe", ret, size - 1);
	ret[length > 0 ? length : 0] = 0;
}

/*
 * Call dl_iterate_phdr, which holds a lock of the dynamic loader meanwhile: a signal handler that runs then could end the
 * process, and what ends it may need that lock.
 */
static void visit_objects(int (*each)(struct dl_phdr_info *, size_t, void *), void *argument)
{
	nt_lock_begin_quiet();
	dl_iterate_phdr(each, argument);
	nt_lock_end_quiet();
}

/* Whether an address is in a loaded segment of an object. */
static bool holds(const struct dl_phdr_info *object, const void *address)
{
	for (unsigned i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		if (segment->p_type == PT_LOAD &&
		    (uintptr_t)address - (object->dlpi_addr + segment->p_vaddr) < segment->p_memsz)
			return true;
	}
	return false;
}

/* Whether a range of bytes at an offset is within a section of that size. The comparisons cannot overflow. */
static bool range_fits(size_t size, uint64_t offset, uint64_t bytes)
{
	return offset <= size && bytes <= size - offset;
}

/* Whether a NUL-terminated string begins at an offset and ends within a section; offset 0 is none. */
static bool string_fits(const uint8_t *data, size_t size, uint64_t offset)
{
	return offset && offset < size && memchr(data + offset, 0, size - offset);
}

/*
 * Whether everything that the header of a .neutrino section points at is within the section, and the section within its
 * segment of segment_size bytes.
 */
static bool is_valid(const struct neutrino_section_header *header, size_t segment_size)
{
	const uint8_t *data = (const uint8_t *)header;
	uint64_t size = header->size;

	return header->version == NEUTRINO_SECTION_VERSION && size >= sizeof(*header) && size <= segment_size &&
	       header->rows_offset % 8 == 0 && header->rows_offset <= size &&
	       header->rows <= (size - header->rows_offset) / sizeof(struct neutrino_section_twins) &&
	       string_fits(data, size, header->names_offset) && string_fits(data, size, header->maker_offset) &&
	       range_fits(size, header->probes_offset, header->probes_size) &&
	       range_fits(size, header->reader_offset, header->reader_size);
}

/*
 * The .neutrino section of a loaded object (which neutrino-patch has put there), at the start of a readable segment.
 * NULL if there is none that can be used: then *why says whether there is none (NT_SECTION_NONE) or why it cannot be
 * used.
 */
static const struct neutrino_section_header *section_of(const struct dl_phdr_info *object, enum nt_section_answer *why)
{
	*why = NT_SECTION_NONE;
	for (unsigned i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		const struct neutrino_section_header *header =
			(const void *)(object->dlpi_addr + segment->p_vaddr);
		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_R) || segment->p_filesz < sizeof(*header) ||
		    segment->p_memsz < segment->p_filesz || (uintptr_t)header % 8 ||
		    memcmp(header->magic, NEUTRINO_SECTION_MAGIC, sizeof(header->magic)) != 0)
			continue;
		if (is_valid(header, segment->p_filesz))
			return header;
		*why = header->version == NEUTRINO_SECTION_VERSION ? NT_SECTION_UNSOUND : NT_SECTION_OTHER_VERSION;
	}
	return NULL;
}

/* The NUL-terminated text at an offset of a section; it is a part of the section. */
static const char *text_at(const struct neutrino_section_header *section, uint64_t offset)
{
	return (const char *)section + offset;
}

/* For search_object: an address, and the results. */
struct search {
	const void *address;
	const struct neutrino_section_header *section;
	enum nt_section_answer why;
	char *library;
	size_t library_size;
};

/*
 * Callback of dl_iterate_phdr (argument: struct search): if the object contains the address, find its .neutrino
 * section, and stop.
 */
static int search_object(struct dl_phdr_info *object, size_t size, void *argument)
{
	struct search *search = argument;

	(void)size;
	if (!holds(object, search->address))
		return 0;
	search->section = section_of(object, &search->why);
	if (search->section || search->why != NT_SECTION_NONE)
		name_of(object, search->library, search->library_size);
	return 1;
}

/*
 * Find the twins (copies with probes) of an image (GPU code of the program) in the .neutrino section of the loaded
 * object that contains it. arch: of the device, such as "sm_90". embedded: whether that is the embedded device instead
 * of a GPU. Unless the answer is NONE, ret->library is the object's path; the other members are set if it is FOUND, and
 * valid while the object is loaded.
 */
enum nt_section_answer nt_section_find(const struct nt_image_bytes *image, const char *arch, bool embedded,
				       struct nt_section_twins *ret)
{
	struct search search = {
		.address = image->data, .library = ret->library, .library_size = sizeof(ret->library)};
	struct nt_sha256 hash;
	uint8_t digest[32];
	bool is_hashed = false;

	visit_objects(search_object, &search);
	const struct neutrino_section_header *section = search.section;
	if (!section)
		return search.why;
	const uint8_t *data = (const uint8_t *)section;
	const struct neutrino_section_twins *rows = (const void *)(data + section->rows_offset);
	for (uint32_t i = 0; i < section->rows; i++) {
		const struct neutrino_section_twins *row = &rows[i];
		if (row->device != embedded || row->image_size != image->size ||
		    strncmp(row->arch, arch, sizeof(row->arch)) != 0)
			continue;
		/* The image is hashed only if a row may be for it, and only once. */
		if (!is_hashed) {
			nt_sha256_init(&hash);
			nt_sha256_add(&hash, image->data, image->size);
			nt_sha256_finish(&hash, digest);
			is_hashed = true;
		}
		if (memcmp(row->image_digest, digest, sizeof(digest)) != 0)
			continue;
		/* Rows are checked only here, when one is used; the entry's digest, when it is opened. */
		if (!range_fits(section->size, row->entry_offset, row->entry_size) || !row->entry_size)
			return NT_SECTION_UNSOUND;
		const struct neutrino_twins_header *entry = (const void *)(data + row->entry_offset);
		if (row->entry_size >= sizeof(*entry) && row->entry_offset % 8 == 0 &&
		    memcmp(entry->magic, NEUTRINO_TWINS_MAGIC, sizeof(entry->magic)) == 0 &&
		    entry->version != NEUTRINO_TWINS_VERSION)
			return NT_SECTION_OTHER_VERSION;
		ret->section = section;
		memcpy(ret->key, row->key, sizeof(ret->key));
		ret->entry = data + row->entry_offset;
		ret->entry_size = row->entry_size;
		return NT_SECTION_FOUND;
	}
	return NT_SECTION_OTHER;
}

/* --- events of sections --- */

/* A patched library whose twins are used. Records are never freed; there are few. */
struct used_library {
	char *library;
	uint8_t probes[32]; /* SHA-256 of probe.toml */
	unsigned file;	    /* of the trace: 1: probe.toml, 2: probe-2.toml ... */
	struct used_library *next;
};

/* Guards the list. Never held across a call of the dynamic loader. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct used_library *used_libraries;
static unsigned files;

/*
 * Remember that the twins (copies with probes) of a patched library are used. False if the same library with the same
 * probes was remembered before. *is_first: whether these probes are new, so that their file has to be written. Takes
 * the mutex.
 */
static bool add_used(struct used_library *added, bool *is_first)
{
	unsigned file = 0; /* of an earlier library with the same probes */

	NT_LOCKED(&mutex);
	for (struct used_library *record = used_libraries; record; record = record->next) {
		if (memcmp(record->probes, added->probes, sizeof(record->probes)) != 0)
			continue;
		file = record->file;
		if (strcmp(record->library, added->library) == 0)
			return false;
	}
	*is_first = !file;
	added->file = file ? file : ++files;
	added->next = used_libraries;
	used_libraries = added;
	return true;
}

/*
 * Record in the trace that twins (copies with probes) of a patched file are used: the library's event and its probe
 * file, once. Only right after nt_section_find, with its result.
 */
void nt_section_use(const struct nt_section_twins *twins)
{
	const struct neutrino_section_header *section = twins->section;
	const uint8_t *probes = (const uint8_t *)section + section->probes_offset;
	struct used_library *added = nt_memory_alloc_zeroed(1, sizeof(*added));
	char name[32] = "probe.toml";
	struct nt_sha256 hash;
	struct nt_event event;
	bool is_first;

	if (!added)
		return;
	nt_sha256_init(&hash);
	nt_sha256_add(&hash, probes, section->probes_size);
	nt_sha256_finish(&hash, added->probes);
	added->library = nt_memory_strdup(twins->library);
	if (!added->library || !add_used(added, &is_first)) {
		nt_memory_free(added->library);
		nt_memory_free(added);
		return;
	}
	if (added->file > 1)
		snprintf(name, sizeof(name), "probe-%u.toml", added->file);
	if (is_first)
		nt_trace_file(name, probes, section->probes_size);
	if (is_first && added->file == 1)
		nt_trace_file("read.py", (const uint8_t *)section + section->reader_offset, section->reader_size);
	nt_event_begin(&event, "section");
	nt_event_string(&event, "library", twins->library);
	nt_event_string(&event, "probes", text_at(section, section->names_offset));
	nt_event_string(&event, "version", text_at(section, section->maker_offset));
	nt_event_string(&event, "file", name);
	nt_lines_event(&event);
	nt_lines_log("%s carries twins with %s", twins->library, text_at(section, section->names_offset));
}

/* For collect_names: the results, and their sizes in bytes. */
struct names {
	char *names;
	size_t names_size;
	char *maker;
	size_t maker_size;
};

/* Whether a text, words separated by spaces, has that word. length: of the word. */
static bool has_word(const char *text, const char *word, size_t length)
{
	for (const char *match = text; (match = strstr(match, word)); match++)
		if ((match == text || match[-1] == ' ') && (match[length] == ' ' || !match[length]))
			return true;
	return false;
}

/* Append to text those of the words that it does not have, as far as they fit. size: bytes of text's memory. */
static void add_words(char *text, size_t size, const char *words)
{
	char word[256];

	while (*words) {
		size_t length = strcspn(words, " "), used_size = strlen(text);
		if (length && length < sizeof(word) && used_size + length + 2 <= size) {
			memcpy(word, words, length);
			word[length] = 0;
			if (!has_word(text, word, length))
				snprintf(text + used_size, size - used_size, "%s%s", used_size ? " " : "", word);
		}
		words += length;
		words += strspn(words, " ");
	}
}

/*
 * Callback of dl_iterate_phdr (argument: struct names): add the names of the probes in an object's .neutrino section.
 */
static int collect_names(struct dl_phdr_info *object, size_t object_size, void *argument)
{
	struct names *names = argument;
	enum nt_section_answer why;
	const struct neutrino_section_header *section = section_of(object, &why);

	(void)object_size;
	if (!section)
		return 0;
	add_words(names->names, names->names_size, text_at(section, section->names_offset));
	if (!*names->maker)
		snprintf(names->maker, names->maker_size, "%s", text_at(section, section->maker_offset));
	return 0;
}

/*
 * Collect from all loaded patched objects the names of their probes, each once, separated by spaces, and the version of
 * Neutrino that wrote the first one. Sizes in bytes; what does not fit is left out.
 */
void nt_section_names(char *names, size_t names_size, char *maker, size_t maker_size)
{
	struct names argument = {names, names_size, maker, maker_size};

	*names = *maker = 0;
	visit_objects(collect_names, &argument);
}

/*
 * Whether the twins (copies with probes) of a patched library (by its path) were used in this process. Takes the mutex.
 */
static bool is_used(const char *library)
{
	const struct used_library *record;

	nt_lock_take(&mutex);
	for (record = used_libraries; record && strcmp(record->library, library) != 0; record = record->next)
		;
	nt_lock_release(&mutex);
	return record;
}

/* For collect_unused: the result. */
struct unused {
	char paths[MOST_UNUSED][NT_SECTION_PATH];
	unsigned count;
};

/*
 * Callback of dl_iterate_phdr (argument: struct unused): add the path of a patched object whose twins (copies with
 * probes) were not used.
 */
static int collect_unused(struct dl_phdr_info *object, size_t object_size, void *argument)
{
	struct unused *unused = argument;
	enum nt_section_answer why;

	(void)object_size;
	if (unused->count == MOST_UNUSED || !section_of(object, &why))
		return 0;
	char *path = unused->paths[unused->count];
	name_of(object, path, sizeof(unused->paths[0]));
	/* The path stays only if it counts; else the next one replaces it. */
	unused->count += !is_used(path);
	return 0;
}

/*
 * Call each() with the path of every loaded patched object whose twins (copies with probes) were not used, MOST_UNUSED
 * at most. Returns their number.
 */
unsigned nt_section_unused(void (*each)(const char *library))
{
	struct unused *unused = nt_memory_alloc_zeroed(1, sizeof(*unused));

	if (!unused)
		return 0;
	visit_objects(collect_unused, unused);
	/* Called outside the dynamic loader's lock: it writes files. */
	for (unsigned i = 0; i < unused->count; i++)
		each(unused->paths[i]);
	unsigned count = unused->count;
	nt_memory_free(unused);
	return count;
}
