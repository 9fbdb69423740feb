#include "slots.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "object.h"
#include "trace.h"

#if defined(__x86_64__)

/*
 * dlsym(RTLD_NEXT) and dlopen of a bare name ask who calls. Where that matters the real function is jumped to, with the
 * stack as the program left it; else the C function of the wrapper calls it.
 */
#define NT_TAIL_JUMP(name)                                                                                             \
	__asm__(".text\n"                                                                                              \
		".balign 16\n"                                                                                         \
		".globl nt_slots_" #name "\n"                                                                          \
		".hidden nt_slots_" #name "\n"                                                                         \
		".type nt_slots_" #name ", @function\n"                                                                \
		"nt_slots_" #name ":\n"                                                                                \
		".cfi_startproc\n"                                                                                     \
		"endbr64\n"                                                                                            \
		"push %rdi\n"                                                                                          \
		".cfi_adjust_cfa_offset 8\n"                                                                           \
		"push %rsi\n"                                                                                          \
		".cfi_adjust_cfa_offset 8\n"                                                                           \
		"push %rdx\n"                                                                                          \
		".cfi_adjust_cfa_offset 8\n"                                                                           \
		"mov 24(%rsp), %rcx\n"                                                                                 \
		"call nt_slots_" #name "_try\n"                                                                        \
		"pop %rdx\n"                                                                                           \
		".cfi_adjust_cfa_offset -8\n"                                                                          \
		"pop %rsi\n"                                                                                           \
		".cfi_adjust_cfa_offset -8\n"                                                                          \
		"pop %rdi\n"                                                                                           \
		".cfi_adjust_cfa_offset -8\n"                                                                          \
		"test %rax, %rax\n"                                                                                    \
		"jz 1f\n"                                                                                              \
		"ret\n"                                                                                                \
		"1: jmp " #name "@PLT\n"                                                                               \
		".cfi_endproc\n"                                                                                       \
		".size nt_slots_" #name ", . - nt_slots_" #name "\n")

NT_TAIL_JUMP(dlsym);
NT_TAIL_JUMP(dlvsym);
NT_TAIL_JUMP(dlopen);

extern const char nt_slots_dlsym[], nt_slots_dlvsym[], nt_slots_dlopen[];

/* What the assembly calls; NULL: jump to the real function. caller: the program's return address. */
__attribute__((visibility("hidden"), used)) void *nt_slots_dlsym_try(void *handle, const char *name);
__attribute__((visibility("hidden"), used)) void *nt_slots_dlvsym_try(void *handle, const char *name,
								       const char *version);
__attribute__((visibility("hidden"), used)) void *nt_slots_dlopen_try(const char *file, int mode, const void *unused,
								       const void *caller);

/* The driver's companions look up on its behalf, and call nothing that a program does. */
static bool is_left_alone(const struct nt_object *object, const struct nt_dynamic *dynamic)
{
	static const char *const begins[] = {
		"ld-linux", "libc.so.", "libdl.so.", "linux-vdso", NT_DRIVER_COMPANIONS
	};

	if (nt_object_holds(object, nt_slots_dlsym) || nt_object_holds(object, *(void **)&nt_driver.NT_DRIVER_START))
		return true;
	for (size_t i = 0; dynamic->soname && i < sizeof(begins) / sizeof(begins[0]); i++)
		if (strncmp(dynamic->soname, begins[i], strlen(begins[i])) == 0)
			return true;
	return false;
}

/* --- a slot --- */

/* PROT_ of the page at that address, by what /proc/self/maps says; -1 when it does not. */
static int read_protection(int fd, uintptr_t page)
{
	char text[4096];
	size_t used = 0;

	for (;;) {
		ssize_t got = read(fd, text + used, sizeof(text) - 1 - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		used += (size_t)got;
		text[used] = 0;
		/* Whole lines; "from-to rwxp ..." is at their beginning, whatever is cut off a longer one. */
		char *line = text, *end;
		while ((end = strchr(line, '\n')) || used == sizeof(text) - 1) {
			unsigned long from, to;
			char flags[5] = "";
			if (sscanf(line, "%lx-%lx %4s", &from, &to, flags) == 3 && page >= from && page < to) {
				return (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) |
				       (flags[2] == 'x' ? PROT_EXEC : 0);
			}
			if (!end) {
				line = text + used;
				break;
			}
			line = end + 1;
		}
		used -= (size_t)(line - text);
		memmove(text, line, used);
	}
	return -1;
}

static int protection_of(uintptr_t page)
{
	int ret = -1, before;

	/* dlsym does not end a thread that is being cancelled, and the dynamic loader's lock would stay held. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	int fd = nt_above_stdio(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
	if (fd >= 0) {
		ret = read_protection(fd, page);
		close(fd);
	}
	pthread_setcancelstate(before, NULL);
	return ret;
}

static bool is_after_relocation_read_only(const struct nt_object *object, uintptr_t address, uintptr_t page_size)
{
	for (unsigned i = 0; i < object->count; i++) {
		const ElfW(Phdr) *segment = &object->segments[i];
		/* Rounded as the dynamic loader does. */
		uintptr_t start = (object->base + segment->p_vaddr) & -page_size;
		uintptr_t end = (object->base + segment->p_vaddr + segment->p_memsz) & -page_size;
		if (segment->p_type == PT_GNU_RELRO && address >= start && address < end)
			return true;
	}
	return false;
}

/* One store of 8 bytes: other threads may be calling through the slot. */
static bool store(const struct nt_object *object, void **slot, void *value)
{
	uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE), page = (uintptr_t)slot & -page_size;
	const ElfW(Phdr) *segment = nt_object_segment(object, (uintptr_t)slot, sizeof(*slot));
	int before = PROT_READ | PROT_WRITE;

	if (!segment || !(segment->p_flags & PF_W))
		return false;
	if (is_after_relocation_read_only(object, (uintptr_t)slot, page_size)) {
		before = protection_of(page);
		if (before < 0)
			before = PROT_READ;
	}
	if (!(before & PROT_WRITE) && mprotect((void *)page, page_size, before | PROT_WRITE) != 0)
		return false;
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (!(before & PROT_WRITE))
		mprotect((void *)page, page_size, before);
	return true;
}

enum { LOADERS = 3 };

/*
 * The dynamic loader's functions. real: what our own jump slots are bound to. The address that C has for one is the
 * program's procedure linkage table where the program itself takes its address: through that table, once redirected,
 * we would call ourselves for ever.
 */
static struct {
	const char *name, *ours;
	void *real;
} loaders[LOADERS] = {
	{"dlsym", nt_slots_dlsym, NULL},
	{"dlvsym", nt_slots_dlvsym, NULL},
	{"dlopen", nt_slots_dlopen, NULL},
};

static int find_loaders(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct nt_object object = {info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum, ""};
	struct nt_dynamic dynamic;
	int *found = argument;

	(void)size;
	if (!nt_object_holds(&object, nt_slots_dlsym) || !nt_object_read(&object, &dynamic))
		return 0;
	for (size_t i = 0; i < dynamic.rows[0]; i++) {
		const ElfW(Rela) *row = &dynamic.tables[0][i];
		const char *name = nt_object_string(&dynamic, dynamic.symbols[ELF64_R_SYM(row->r_info)].st_name);
		for (int j = 0; name && j < LOADERS; j++)
			if (ELF64_R_TYPE(row->r_info) == R_X86_64_JUMP_SLOT && !strcmp(name, loaders[j].name)) {
				loaders[j].real = *(void **)(object.base + row->r_offset);
				++*found;
			}
	}
	return 1;
}

/* Ours for a function of that name, and what a slot is bound to that means it; NULL for all other names. */
static void *replacement(const char *name, void **real)
{
	if (nt_driver_may_have(name))
		return nt_driver_wrapper_named(name, real);
	if (name[0] != 'd' || name[1] != 'l')
		return NULL;
	for (int i = 0; i < LOADERS; i++)
		if (strcmp(name, loaders[i].name) == 0) {
			*real = loaders[i].real;
			return (void *)(uintptr_t)loaders[i].ours;
		}
	return NULL;
}

/* Whether an address stands for a function of another object, in the linkage table of a program that takes its address. */
static bool is_linkage_table(const void *address)
{
	const ElfW(Sym) *symbol = NULL;
	Dl_info info;

	return dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) && symbol && symbol->st_shndx == SHN_UNDEF;
}

/* Whether a slot would be bound to that function at its first use. */
static bool is_bound_later(const struct nt_object *object, const char *name, const void *real)
{
	void *found = dlsym(RTLD_DEFAULT, name);

	/* Slots of calls are not bound to it. */
	if (found)
		return found == real || is_linkage_table(found);
	void *handle = dlopen(*object->name ? object->name : NULL, RTLD_LAZY | RTLD_NOLOAD);
	if (handle) {
		found = dlsym(handle, name);
		dlclose(handle);
	}
	return found == real;
}

/* The first slot of an object that was redirected, by which the object is known again. */
struct mark {
	void **slot;
	void *value;
};

static void redirect(const struct nt_object *object, const struct nt_dynamic *dynamic, const ElfW(Rela) *row, struct mark *mark)
{
	uint32_t type = (uint32_t)ELF64_R_TYPE(row->r_info);
	void *real = NULL;

	if ((type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) ||
	    (type == R_X86_64_64 && row->r_addend))
		return;
	const ElfW(Sym) *symbol = &dynamic->symbols[ELF64_R_SYM(row->r_info)];
	if (!nt_object_segment(object, (uintptr_t)symbol, sizeof(*symbol)) || symbol->st_name + sizeof(NT_DRIVER_PREFIX) > dynamic->strings_size)
		return;
	const char *first = dynamic->strings + symbol->st_name;
	if (!nt_driver_may_have(first) && strncmp(first, "dl", 2) != 0)
		return;
	const char *name = nt_object_string(dynamic, symbol->st_name);
	void *ours = name ? replacement(name, &real) : NULL;
	void **slot = (void **)(object->base + row->r_offset);
	if (!ours || !real || (uintptr_t)slot % sizeof(*slot) || !nt_object_segment(object, (uintptr_t)slot, sizeof(*slot)))
		return;
	void *value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
	if (value == ours && !mark->slot)
		*mark = (struct mark){slot, ours};
	/* A slot that leads into its own object waits for its first use. */
	if (value != real && !(type == R_X86_64_JUMP_SLOT && nt_object_holds(object, value) && is_bound_later(object, name, real)))
		return;
	if (store(object, slot, ours) && !mark->slot)
		*mark = (struct mark){slot, ours};
}

/* --- all objects --- */

/* An object that was looked through. Another may lie at its place since: then its slot is not as it was left. */
struct known {
	ElfW(Addr) base;
	const ElfW(Phdr) *segments;
	uint64_t name; /* a hash of it */
	struct mark mark;
	bool with_driver; /* the driver was known then */
};

struct objects {
	struct nt_object *rows;
	size_t count, room;
};

/* Under the dynamic loader's lock, and a lock of their own, of which sanitizers know. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct known *known;
static size_t known_count;

/* What the last pass had seen: the sum of what the dynamic loader has loaded and unloaded, and whether of the driver. */
static uint64_t seen_state;
static void *self;

static int count_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct objects *objects = argument;

	(void)size;
	if (objects->rows && objects->count < objects->room)
		objects->rows[objects->count] = (struct nt_object){info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum,
								info->dlpi_name ? info->dlpi_name : ""};
	objects->count++;
	return 0;
}

static int first_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	uint64_t *state = argument;

	/* A program's own dl_iterate_phdr may tell less. */
	if (size < offsetof(struct dl_phdr_info, dlpi_subs) + sizeof(info->dlpi_subs))
		return 1;
	*state = ((uint64_t)info->dlpi_adds + (uint64_t)info->dlpi_subs) << 1;
	return 1;
}

static uint64_t state_now(void)
{
	uint64_t state = 0;

	dl_iterate_phdr(first_object, &state);
	return state | nt_driver_known();
}

static uint64_t hash_of(const char *name)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	while (*name)
		hash = (hash ^ (unsigned char)*name++) * UINT64_C(0x100000001b3);
	return hash;
}

/* at: where the search begins, and where the next one will. Objects stay in their order, so most are found at once. */
static const struct known *find_known(const struct nt_object *object, uint64_t name, bool with_driver, size_t *at)
{
	for (size_t i = 0; i < known_count; i++) {
		size_t place = (*at + i) % known_count;
		const struct known *one = &known[place];
		if (one->base != object->base || one->segments != object->segments || one->name != name ||
		    one->with_driver != with_driver)
			continue;
		if (!one->mark.slot || (nt_object_segment(object, (uintptr_t)one->mark.slot, sizeof(void *)) &&
					__atomic_load_n(one->mark.slot, __ATOMIC_ACQUIRE) == one->mark.value)) {
			*at = place + 1;
			return one;
		}
	}
	return NULL;
}

static struct known look_through(const struct nt_object *object, uint64_t name, bool with_driver)
{
	struct known ret = {object->base, object->segments, name, {NULL, NULL}, with_driver};
	struct nt_dynamic dynamic;

	if (!nt_object_read(object, &dynamic) || is_left_alone(object, &dynamic))
		return ret;
	for (int table = 0; table < 2; table++)
		for (size_t i = table ? dynamic.relative : 0; i < dynamic.rows[table]; i++)
			redirect(object, &dynamic, &dynamic.tables[table][i], &ret.mark);
	return ret;
}

/* A malloc of the program's may look something up while it is called from pass: that is this very thread. */
static int passing;

/* The thread that was at it is not in the child. What it knew may be half written. */
static void in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	if (!__atomic_exchange_n(&passing, 0, __ATOMIC_ACQ_REL))
		return;
	mutex = fresh;
	known = NULL;
	known_count = 0;
	__atomic_store_n(&seen_state, 0, __ATOMIC_RELEASE);
}

/* Under the dynamic loader's lock: no object is halfway loaded, none comes or goes. */
static void pass(void)
{
	struct objects objects = {0};
	uint64_t state = state_now();
	bool with_driver = state & 1;

	if (__atomic_exchange_n(&passing, 1, __ATOMIC_ACQ_REL))
		return;
	pthread_mutex_lock(&mutex);
	dl_iterate_phdr(count_object, &objects);
	objects.room = objects.count;
	objects.rows = calloc(objects.room, sizeof(*objects.rows));
	struct known *now = calloc(objects.room, sizeof(*now));
	objects.count = 0;
	if (objects.rows)
		dl_iterate_phdr(count_object, &objects);
	size_t count = objects.count < objects.room ? objects.count : objects.room, at = 0;
	for (size_t i = 0; now && objects.rows && i < count; i++) {
		const struct nt_object *object = &objects.rows[i];
		uint64_t name = hash_of(object->name);
		const struct known *before = find_known(object, name, with_driver, &at);
		now[i] = before ? *before : look_through(object, name, with_driver);
	}
	if (now && objects.rows) {
		free(known);
		known = now;
		known_count = count;
	} else {
		free(now);
	}
	free(objects.rows);
	__atomic_store_n(&seen_state, state, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
	__atomic_store_n(&passing, 0, __ATOMIC_RELEASE);
}

/*
 * dlsym of a function that is chosen when it is looked up calls this with the dynamic loader's lock held, and there is
 * no other way to have it: without it an object could be seen while another thread relocates it.
 */
static void nothing(void)
{
}

static void (*choose_nothing(void))(void)
{
	pass();
	return nothing;
}

__attribute__((visibility("default"))) void neutrino_slots_pass(void) __attribute__((ifunc("choose_nothing")));

void nt_slots_update(void)
{
	int error = errno;

	if (self && __atomic_load_n(&seen_state, __ATOMIC_ACQUIRE) != state_now())
		dlsym(self, "neutrino_slots_pass");
	errno = error;
}

bool nt_slots_start(void)
{
	Dl_info info;
	int found = 0;

	dl_iterate_phdr(find_loaders, &found);
	if (found != LOADERS || !dladdr(nt_slots_dlsym, &info) || !info.dli_fname ||
	    pthread_atfork(NULL, NULL, in_child) != 0)
		return false;
	self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!self)
		return false;
	pass();
	return true;
}

/* --- in place of the dynamic loader's functions --- */

/* A function of the driver's makes the driver known, and all other ways to it are redirected at once. */
static void *ours_for(void *found, const char *name)
{
	if (!found || !nt_driver_may_have(name))
		return found;
	int error = errno;
	if (nt_driver_load()) {
		nt_slots_update();
		found = nt_driver_wrapper_of(found);
	}
	/* The program's call succeeded: no error of ours may be left. */
	dlerror();
	errno = error;
	return found;
}

/* Who calls matters to these two. What is found for us is what is found for the caller when it is the driver's. */
static bool asks_who_calls(void *handle, const char *name)
{
	void *real = NULL;

	if (handle != RTLD_DEFAULT)
		return handle == RTLD_NEXT;
	return !nt_driver_may_have(name) || !nt_driver_load() || !nt_driver_wrapper_named(name, &real) ||
	       dlsym(RTLD_DEFAULT, name) != real;
}

void *nt_slots_dlsym_try(void *handle, const char *name)
{
	nt_slots_update();
	if (!name || asks_who_calls(handle, name))
		return NULL;
	return ours_for(dlsym(handle, name), name);
}

void *nt_slots_dlvsym_try(void *handle, const char *name, const char *version)
{
	nt_slots_update();
	if (!name || !version || handle == RTLD_DEFAULT || handle == RTLD_NEXT)
		return NULL;
	return ours_for(dlvsym(handle, name, version), name);
}

struct rpath_search {
	const void *caller;
	bool found;
};

static int search_rpath(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct rpath_search *search = argument;
	struct nt_object object = {info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum, ""};
	struct nt_dynamic dynamic;

	(void)size;
	if (!nt_object_holds(&object, search->caller))
		return 0;
	search->found = nt_object_read(&object, &dynamic) && dynamic.has_rpath;
	return 1;
}

/*
 * What a path with a slash in it leads to depends on the caller only through its DT_RPATH, for what the object needs in
 * turn. Called from here, the new object's slots are redirected before the program goes on. A failure is repeated in the
 * caller's name, so that what dlerror says is what it would have said.
 */
void *nt_slots_dlopen_try(const char *file, int mode, const void *unused, const void *caller)
{
	struct rpath_search search = {.caller = caller};

	(void)unused;
	nt_slots_update();
	if (!file || !strchr(file, '/') || strchr(file, '$'))
		return NULL;
	dl_iterate_phdr(search_rpath, &search);
	if (search.found)
		return NULL;
	void *handle = dlopen(file, mode);
	if (handle) {
		nt_slots_update();
		dlerror();
	}
	return handle;
}

#else

bool nt_slots_start(void)
{
	return false;
}

void nt_slots_update(void)
{
}

#endif
