/*
 * With any LD_AUDIT, glibc lays out the thread-local storage of all threads when it knows the program alone. What the
 * libraries of its start have of the fixed kind (initial-exec) must then fit into a room that is meant for what the
 * program loads later, or the program does not start. A tunable enlarges that room, for each thread's stack: so the
 * programs that need it, and only these, are run anew, with as much room as their libraries take.
 *
 * That happens while the dynamic loader still maps the libraries, before any code of the program runs. The environment
 * that the program sees is then as it was.
 */
#include "front/audit_start.h"

#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "front/audit_calls.h"
#include "front/audit_object.h"

#define TUNABLES "GLIBC_TUNABLES="
#define ROOM "glibc.rtld.optional_static_tls"
#define DEFAULT_ROOM 512u /* glibc's, for that tunable */
/* For each auditing module glibc adds 304 bytes, 160 of which are for another libc. Ours has none; that of the program, of
 * which the room is not plain either, takes 144. */
#define MODULE_ROOM 304u
/* What GLIBC_TUNABLES was, name and all, in a program that has been run anew; empty: there was none. */
#define BEFORE "NEUTRINO_TUNABLES_BEFORE="
#define FOLLOW "NEUTRINO_FOLLOW="
#define AUDIT "LD_AUDIT="
#define MODULE "libneutrino_audit.so"
#define MOST_VARIABLES 8192u /* of the environment; and bytes of a value of GLIBC_TUNABLES */
/* Bytes of the room that are not the tunable's, with one module: what does not fit into both together does not start. */
#define FIXED_ROOM 1360u
#define LARGEST_ROOM (UINT64_C(1) << 30)

static const struct link_map *program;
static char **arguments, **environment; /* on the process's stack; NULL: not known */
static uint64_t room, needed;		/* bytes: what the tunable says; what the libraries take so far */
static uint64_t said; /* bytes: what was said to be enough */
static bool has_started;

/* The entry of the environment that begins so; NULL if there is none. */
static char **find_variable(const char *prefix)
{
	for (char **entry = environment; *entry; entry++)
		if (nt_audit_object_begins(*entry, prefix))
			return entry;
	return NULL;
}

/* Remove an entry of the environment in place: those after it move up by one. */
static void remove_variable(char **entry)
{
	do
		entry[0] = entry[1];
	while (*entry++);
}

/*
 * Bytes of extra room for thread-local storage that a value of GLIBC_TUNABLES asks for: the last tunable of that name,
 * as C writes numbers; DEFAULT_ROOM if there is none that is valid.
 */
static uint64_t room_of(const char *tunables)
{
	uint64_t ret = DEFAULT_ROOM;

	while (*tunables) {
		if (nt_audit_object_begins(tunables, ROOM "=")) {
			const char *digit = tunables + sizeof(ROOM);
			unsigned base = *digit != '0' ? 10 : (digit[1] | 32) == 'x' ? 16 : 8;
			uint64_t value = 0;

			for (digit += base == 16 ? 2 : 0; *digit && *digit != ':'; digit++) {
				unsigned letter = (unsigned)(*digit | 32);
				unsigned one = *digit >= '0' && *digit <= '9' ? (unsigned)(*digit - '0') :
					       letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : 16;
				if (one >= base || value > LARGEST_ROOM)
					break;
				value = value * base + one;
			}
			ret = *digit && *digit != ':' ? DEFAULT_ROOM : value;
		}
		while (*tunables && *tunables++ != ':')
			;
	}
	return ret;
}

/*
 * Find the program's arguments and environment on its first stack (argc, then pointers). In a program that was run anew
 * by begin_again, give GLIBC_TUNABLES back its old value.
 */
static void read_stack(const void *stack)
{
	uint64_t count = *(const uint64_t *)stack;
	char **first = (char **)(uintptr_t)stack + 1;

	if (count > UINT32_MAX || first[count])
		return;
	arguments = first;
	environment = first + count + 1;
	char **tunables = find_variable(TUNABLES), **before = find_variable(BEFORE);
	room = tunables ? room_of(*tunables + sizeof(TUNABLES) - 1) : DEFAULT_ROOM;
	if (!before || !tunables)
		return;
	char *text = *before + sizeof(BEFORE) - 1;
	/* The mark is the last entry, and what is not in its old place the one before: the others keep theirs. */
	remove_variable(before);
	if (*text)
		*tunables = text;
	else
		remove_variable(tunables);
}

/*
 * Bytes of thread-local storage of the fixed kind (initial-exec) that an object takes, at most; 0 if it has none or
 * that is not known.
 */
static uint64_t fixed_storage(const struct link_map *object)
{
	const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)object->l_addr;

	if (!object->l_ld || !(nt_audit_object_value(object, DT_FLAGS) & DF_STATIC_TLS))
		return 0;
	/* It begins with its header, but for one that is linked at a place of its own, where nothing may be mapped. */
	unsigned char resident;
	if (!object->l_addr || nt_audit_call(SYS_mincore, (long)header, 1, (long)&resident, 0) ||
	    header->e_ident[EI_MAG0] != ELFMAG0 || header->e_ident[EI_MAG1] != ELFMAG1)
		return 0;
	const ElfW(Phdr) *segments = (const ElfW(Phdr) *)(object->l_addr + header->e_phoff);
	for (unsigned i = 0; i < header->e_phnum; i++)
		if (segments[i].p_type == PT_TLS)
			return segments[i].p_memsz + 2 * segments[i].p_align;
	return 0;
}

/*
 * A value of the auxiliary vector, in which the kernel tells a program about itself, by its type (AT_...); 0 if it is
 * not there.
 */
static uint64_t auxiliary(uint64_t type)
{
	char **end = environment;

	while (*end)
		end++;
	/* Entries that were removed have left empty ones. */
	while (!*end)
		end++;
	for (const ElfW(auxv_t) *entry = (const ElfW(auxv_t) *)(void *)end; entry->a_type != AT_NULL; entry++)
		if (entry->a_type == type)
			return entry->a_un.a_val;
	return 0;
}

/* Append text, with NUL, at `to`, which must have room; returns where the next text goes. */
static char *append_text(char *to, const char *text)
{
	while (*text)
		*to++ = *text++;
	*to = 0;
	return to;
}

/*
 * Run the program anew (execve) with these environment variables. name: what it was started as; a script runs by its
 * own name, so that the process is called by it. Returns only if that fails.
 */
static void run_anew(const char *name, char **variables)
{
	struct stat by_name, running;

	if (!nt_audit_call(SYS_newfstatat, AT_FDCWD, (long)name, (long)&by_name, 0) &&
	    !nt_audit_call(SYS_newfstatat, AT_FDCWD, (long)"/proc/self/exe", (long)&running, 0)) {
		if (by_name.st_dev == running.st_dev && by_name.st_ino == running.st_ino)
			nt_audit_call(SYS_execve, (long)name, (long)arguments, (long)variables, 0);
		/* The kernel has put the interpreter and at most one argument of it before a script's name. */
		for (unsigned i = 1; i <= 2 && arguments[0] && arguments[i - 1] && arguments[i]; i++)
			if (nt_audit_object_is_same(arguments[i], name))
				nt_audit_call(SYS_execve, (long)name, (long)(arguments + i), (long)variables, 0);
	}
	nt_audit_call(SYS_execve, (long)"/proc/self/exe", (long)arguments, (long)variables, 0);
}

/* Write a number in decimal digits; returns where they begin, in digits, which has at least 24 bytes. */
static const char *write_decimal(char *digits, uint64_t number)
{
	char *digit = digits + 23;

	*digit = 0;
	do
		*--digit = (char)('0' + number % 10);
	while (number /= 10);
	return digit;
}

/*
 * Run the program anew with enough room for the thread-local storage that its libraries take, by a tunable of
 * glibc; its own value of GLIBC_TUNABLES is kept in a variable. Returns if that fails.
 */
static void begin_again(void)
{
	char **tunables = find_variable(TUNABLES), digits[24];
	uint64_t own = tunables ? room_of(*tunables + sizeof(TUNABLES) - 1) : DEFAULT_ROOM;
	const char *before = tunables ? *tunables : "", *name = (const char *)(uintptr_t)auxiliary(AT_EXECFN);
	size_t count = 0;

	while (environment[count])
		count++;
	/* AT_BASE: not if the loader itself was started as a program. */
	if (count > MOST_VARIABLES || nt_audit_object_length(before) > MOST_VARIABLES || !name || !auxiliary(AT_BASE))
		return;
	char **variables = __builtin_alloca((count + 3) * sizeof(*variables));
	char *text = __builtin_alloca(nt_audit_object_length(before) + 128), *kept = __builtin_alloca(nt_audit_object_length(before) + 64);
	char *end = append_text(text, tunables ? before : TUNABLES);
	if (tunables && before[sizeof(TUNABLES) - 1])
		end = append_text(end, ":");
	append_text(append_text(end, ROOM "="),
		    write_decimal(digits, (own < DEFAULT_ROOM ? DEFAULT_ROOM : own) + needed));
	append_text(append_text(kept, BEFORE), before);
	for (size_t i = 0; i < count; i++)
		variables[i] = environment + i == tunables ? text : environment[i];
	if (!tunables)
		variables[count++] = text;
	variables[count++] = kept;
	variables[count] = NULL;
	run_anew(name, variables);
}

/*
 * Say on stderr that the dynamic loader is about to refuse the program, for lack of room for thread-local storage, and
 * what helps. Each time that more room is needed than was said.
 */
static void say_how_to_start(void)
{
	char text[256], digits[24], *end = text;

	if (needed <= said)
		return;
	/* More libraries may follow. */
	for (said = UINT64_C(1) << 16; said < 2 * needed; said *= 2)
		;
	end = append_text(end, "neutrino: this program's libraries need more static TLS than glibc has beside LD_AUDIT; "
			       "it starts with " TUNABLES ROOM "=");
	end = append_text(append_text(end, write_decimal(digits, said)), ", or with neutrino --follow none\n");
	nt_audit_call(SYS_write, 2, (long)text, end - text, 0);
}

/*
 * Take this module out of LD_AUDIT in the environment, so that programs which the process starts do not get it
 * (--follow none).
 */
static void leave_children_alone(void)
{
	char **audit = find_variable(AUDIT);
	char *to = audit ? *audit + sizeof(AUDIT) - 1 : NULL;
	const char *from = to;

	if (!audit)
		return;
	while (*from) {
		const char *base = from, *end = from;
		for (; *end && *end != ':'; end++)
			if (*end == '/')
				base = end + 1;
		bool is_own = nt_audit_object_begins(base, MODULE) && end == base + sizeof(MODULE) - 1;
		if (!is_own && to != *audit + sizeof(AUDIT) - 1)
			*to++ = ':';
		for (; from < end; from++)
			if (!is_own)
				*to++ = *from;
		from += *from == ':';
	}
	*to = 0;
	if (to == *audit + sizeof(AUDIT) - 1)
		remove_variable(audit);
}

/*
 * The dynamic loader has mapped an object while the process starts; the program itself is the first. Adds up the
 * thread-local storage that libraries take, and runs the program anew if glibc has not enough room for it.
 */
void nt_audit_start_object(const struct link_map *object)
{
	if (has_started)
		return;
	if (!program) {
		program = object;
		return;
	}
	if (!environment) {
		const void *const *stack = nt_audit_object_symbol(object, "__libc_stack_end");
		if (stack && *stack)
			read_stack(*stack);
	}
	needed += fixed_storage(object);
	if (environment && needed > MODULE_ROOM + (room > DEFAULT_ROOM ? room - DEFAULT_ROOM : 0))
		begin_again();
	if (environment && needed > FIXED_ROOM + room)
		say_how_to_start();
}

/*
 * The objects of the process's start are there and relocated, and no code of the program has run: with --follow none
 * its children get no auditing module.
 */
void nt_audit_start_end(void)
{
	if (has_started)
		return;
	has_started = true;
	char **follow = environment ? find_variable(FOLLOW) : NULL;
	if (follow && nt_audit_object_is_same(*follow, FOLLOW "none"))
		leave_children_alone();
}
