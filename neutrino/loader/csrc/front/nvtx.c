/*
 * The program's calls of NVTX. It is a library of headers that, at a process's first call, loads the library that
 * NVTX_INJECTION64_PATH names, and hands it tables of pointers to set: https://github.com/NVIDIA/NVTX, version 3,
 * nvtxDetail/nvtxTypes.h. Each library of the program that was compiled with them has tables of its own.
 */
#include <stddef.h>
#include <string.h>
#include <wchar.h>

#include "image/ranges.h"
#ifdef NEUTRINO_LATE
#include "front/late.h"
#endif

#define EXPORTED __attribute__((visibility("default")))

/* --- NVTX's binary interface, as far as it is used --- */

enum { TABLES_CALLBACKS = 1 }; /* NVTX_ETID_CALLBACKS */
enum { MODULE_CORE = 1, MODULE_CORE2 = 5 };

typedef void (*any_function)(void);

struct callbacks {
	size_t size;
	int (*table_of)(int module, any_function ***table, unsigned *size);
};

enum { MESSAGE_TEXT = 1, MESSAGE_WIDE = 2, MESSAGE_REGISTERED = 3 };

struct attributes {
	uint16_t version;
	uint16_t size;
	uint32_t category;
	int32_t color_type;
	uint32_t color;
	int32_t payload_type;
	int32_t reserved;
	uint64_t payload;
	int32_t message_type;
	const void *message;
};

/* --- names --- */

/* Handles of registered strings: all that is to be known of one is whether it is chosen. */
static const struct nt_chosen_range registered[] = {{false, false}, {true, false}, {true, true}};

/*
 * The handle that a registered string (NVTX's term for a name that is looked up once) gets: it only says whether ranges
 * of that name are chosen.
 */
static const struct nt_chosen_range *registered_as(struct nt_chosen_range chosen)
{
	return &registered[chosen.if_pushed + chosen.if_started];
}

/* Convert wide characters to UTF-8 in ret, of size bytes. What does not fit is left out. */
static void narrow(char *ret, size_t size, const wchar_t *text)
{
	size_t used = 0;

	for (; *text && used + 5 <= size; text++) {
		uint32_t c = (uint32_t)*text;
		unsigned more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
		static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};
		ret[used++] = (char)(first[more] | (c >> 6 * more & (more ? 0x3fu >> more : 0x7f)));
		while (more--)
			ret[used++] = (char)(0x80 | (c >> 6 * more & 0x3f));
	}
	ret[used] = 0;
}

/* Whether --range has chosen ranges of that name in a domain. NULL is no name, and never chosen. */
static struct nt_chosen_range chosen_text(const struct nt_domain *domain, const char *name)
{
	return name ? nt_ranges_chosen(domain, name) : (struct nt_chosen_range){false, false};
}

/* Whether --range has chosen ranges of that name (wide characters) in a domain. NULL is no name, and never chosen. */
static struct nt_chosen_range chosen_wide(const struct nt_domain *domain, const wchar_t *name)
{
	char text[1024];

	if (!name)
		return (struct nt_chosen_range){false, false};
	narrow(text, sizeof(text), name);
	return nt_ranges_chosen(domain, text);
}

/*
 * Whether --range has chosen a range with these attributes, which hold its name as text, wide text or a registered
 * string.
 */
static struct nt_chosen_range chosen_by(const struct nt_domain *domain, const struct attributes *attributes)
{
	if (attributes && attributes->size >= sizeof(*attributes))
		switch (attributes->message_type) {
		case MESSAGE_TEXT:
			return chosen_text(domain, attributes->message);
		case MESSAGE_WIDE:
			return chosen_wide(domain, attributes->message);
		case MESSAGE_REGISTERED:
			/* Only if the handle is one of ours. */
			for (size_t i = 0; i < sizeof(registered) / sizeof(registered[0]); i++)
				if (attributes->message == &registered[i])
					return registered[i];
		}
	return (struct nt_chosen_range){false, false};
}

/* --- what NVTX calls --- */

/* NVTX's push of a range with attributes in a domain. Returns its level. */
static int domain_push(void *handle, const struct attributes *attributes)
{
	struct nt_domain *domain = nt_ranges_domain_of(handle);

	return nt_ranges_push(domain, chosen_by(domain, attributes));
}

/* NVTX's pop of the last range of this thread in a domain. Returns its level. */
static int domain_pop(void *handle)
{
	return nt_ranges_pop(nt_ranges_domain_of(handle));
}

/* NVTX's start of a range that any thread may end, with attributes in a domain. Returns its number. */
static uint64_t domain_start(void *handle, const struct attributes *attributes)
{
	struct nt_domain *domain = nt_ranges_domain_of(handle);

	return nt_ranges_start(domain, chosen_by(domain, attributes));
}

/* NVTX's end of a started range, by its number. */
static void domain_end(void *handle, uint64_t number)
{
	(void)handle;
	nt_ranges_end(number);
}

/* NVTX's push of a range with attributes, in the default domain. Returns its level. */
static int push(const struct attributes *attributes)
{
	return domain_push(NULL, attributes);
}

/* NVTX's push of a range by its name, in the default domain. Returns its level. */
static int push_text(const char *name)
{
	struct nt_domain *domain = nt_ranges_domain_of(NULL);

	return nt_ranges_push(domain, chosen_text(domain, name));
}

/* NVTX's push of a range by its name in wide characters, in the default domain. Returns its level. */
static int push_wide(const wchar_t *name)
{
	struct nt_domain *domain = nt_ranges_domain_of(NULL);

	return nt_ranges_push(domain, chosen_wide(domain, name));
}

/* NVTX's pop of the last range of this thread in the default domain. Returns its level. */
static int pop(void)
{
	return domain_pop(NULL);
}

/* NVTX's start of a range with attributes, in the default domain. Returns its number. */
static uint64_t start(const struct attributes *attributes)
{
	return domain_start(NULL, attributes);
}

/* NVTX's start of a range by its name, in the default domain. Returns its number. */
static uint64_t start_text(const char *name)
{
	struct nt_domain *domain = nt_ranges_domain_of(NULL);

	return nt_ranges_start(domain, chosen_text(domain, name));
}

/* NVTX's start of a range by its name in wide characters, in the default domain. Returns its number. */
static uint64_t start_wide(const wchar_t *name)
{
	struct nt_domain *domain = nt_ranges_domain_of(NULL);

	return nt_ranges_start(domain, chosen_wide(domain, name));
}

/* NVTX's registration of a name in a domain: returns a handle that can stand for the name. */
static const void *register_text(void *handle, const char *name)
{
	return registered_as(chosen_text(nt_ranges_domain_of(handle), name));
}

/* NVTX's registration of a name in wide characters in a domain: returns a handle that can stand for the name. */
static const void *register_wide(void *handle, const wchar_t *name)
{
	return registered_as(chosen_wide(nt_ranges_domain_of(handle), name));
}

/* NVTX's creation of a domain (a name space of ranges) by its name; NULL: the default one. */
static void *create_domain(const char *name)
{
	return nt_ranges_domain_named(name ? name : "");
}

/* NVTX's creation of a domain (a name space of ranges) by its name in wide characters; NULL: the default one. */
static void *create_domain_wide(const wchar_t *name)
{
	char text[1024] = "";

	if (name)
		narrow(text, sizeof(text), name);
	return nt_ranges_domain_named(text);
}

/* NVTX's destruction of a domain: ranges that were started in it end. */
static void destroy_domain(void *handle)
{
	nt_ranges_domain_ends(nt_ranges_domain_of(handle));
}

/* --- the tables --- */

/* By their numbers in NVTX's tables. */
static const any_function core[] = {
	[4] = (any_function)start,
	[5] = (any_function)start_text,
	[6] = (any_function)start_wide,
	[7] = (any_function)nt_ranges_end,
	[8] = (any_function)push,
	[9] = (any_function)push_text,
	[10] = (any_function)push_wide,
	[11] = (any_function)pop,
};
static const any_function core2[] = {
	[2] = (any_function)domain_start,
	[3] = (any_function)domain_end,
	[4] = (any_function)domain_push,
	[5] = (any_function)domain_pop,
	[10] = (any_function)register_text,
	[11] = (any_function)register_wide,
	[12] = (any_function)create_domain,
	[13] = (any_function)create_domain_wide,
	[14] = (any_function)destroy_domain,
};

/*
 * Put our functions into one of NVTX's tables, by their numbers in it; NULL ones are left out. False if NVTX lacks the
 * table, or it is shorter than ours.
 */
static bool set_table(const struct callbacks *callbacks, int module, const any_function *functions, unsigned count)
{
	any_function **table = NULL;
	unsigned size = 0;

	if (!callbacks->table_of(module, &table, &size) || !table || size < count)
		return false;
	for (unsigned i = 0; i < count; i++)
		if (functions[i] && table[i])
			*table[i] = functions[i];
	return true;
}

EXPORTED int InitializeInjectionNvtx2(const void *(*table_of)(uint32_t id));

/*
 * What NVTX (marks of programs for profilers) looks up and calls at its first use: puts our functions into its tables
 * (table_of gives them). 1 if its calls are to come here; 0: it calls nobody from then on.
 */
EXPORTED int InitializeInjectionNvtx2(const void *(*table_of)(uint32_t id))
{
#ifdef NEUTRINO_LATE
	/* In a child of the process that it was meant for. */
	if (!nt_late_is_active())
		return 0;
#endif
	const struct callbacks *callbacks = nt_ranges_are_set() && table_of ? table_of(TABLES_CALLBACKS) : NULL;
	if (!callbacks || callbacks->size < sizeof(*callbacks))
		return 0;
	bool is_set = set_table(callbacks, MODULE_CORE, core, sizeof(core) / sizeof(core[0]));
	is_set &= set_table(callbacks, MODULE_CORE2, core2, sizeof(core2) / sizeof(core2[0]));
	if (is_set)
		nt_ranges_arrive();
	return is_set;
}
