#include "front/slots.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/apart.h"
#include "base/driver.h"
#include "base/lock.h"
#include "base/memory.h"
#include "front/cached_pointers.h"
#include "front/hook.h"
#include "front/object.h"
#include "front/slot_write.h"

#if defined(__x86_64__)

/*
 * Defines nt_slots_NAME, the replacement of a dynamic loader's function. It calls the C function nt_slots_NAME_try with
 * the program's arguments and its return address, and returns what that returns.
 *
 * The result of some calls (dlsym of RTLD_NEXT, dlopen of a bare name) depends on which object calls, by the return
 * address on the stack. For these the C function returns NULL; then the real function is jumped to, with registers and
 * stack as the program left them.
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

/* Called by the assembly, in the program's thread. They return NULL if the real function is to be jumped to. */
__attribute__((visibility("hidden"), used)) void *nt_slots_dlsym_try(void *handle, const char *name);
__attribute__((visibility("hidden"), used)) void *nt_slots_dlvsym_try(void *handle, const char *name,
								       const char *version);
__attribute__((visibility("hidden"), used)) void *nt_slots_dlopen_try(const char *file, int mode, const void *unused,
								       const void *caller);

/*
 * Whether an object's slots (pointers for calls into other objects) must not be redirected: the hook's own, the
 * driver's and those of libraries that come with it, which call the driver on its behalf, libc's and the dynamic
 * loader's.
 */
static bool is_excluded(const struct nt_object *object, const struct nt_dynamic *dynamic)
{
	static const char *const prefixes[] = {
		"ld-linux", "libc.so.", "libdl.so.", "linux-vdso", NT_DRIVER_COMPANIONS
	};

	if (nt_object_holds(object, nt_slots_dlsym) || nt_object_holds(object, *(void **)&nt_driver.NT_DRIVER_START))
		return true;
	for (size_t i = 0; dynamic->soname && i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
		if (strncmp(dynamic->soname, prefixes[i], strlen(prefixes[i])) == 0)
			return true;
	return false;
}

/* --- one slot: a pointer in memory through which an object calls a function of another one --- */

enum { LOADERS = 3 };

/*
 * The dynamic loader's functions that are replaced. real: what our own jump slots are bound to. &dlsym in C may be an
 * entry of the program's procedure linkage table, if the program takes that address: its slot will be redirected, so
 * calling it from our replacement would call ourselves forever.
 */
static struct {
	const char *name, *ours;
	void *real;
} loaders[LOADERS] = {
	{"dlsym", nt_slots_dlsym, NULL},
	{"dlvsym", nt_slots_dlvsym, NULL},
	{"dlopen", nt_slots_dlopen, NULL},
};

/*
 * Callback of dl_iterate_phdr: in the object of this library, find the addresses of the real dlsym, dlvsym and dlopen
 * in its jump slots (loaders[].real), and count them in *argument (int).
 */
static int find_loaders(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct nt_object object = {info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum, ""};
	struct nt_dynamic dynamic;
	int *found = argument;

	(void)size;
	if (!nt_object_holds(&object, nt_slots_dlsym) || !nt_object_read(&object, &dynamic))
		return 0;
	/* Table 0 has the jump slots. */
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

/*
 * Our function in place of the one of that name (dlsym and its like, or the driver's); NULL if it is not replaced.
 * *real: what a slot (a pointer for calls into another object) of that function is bound to, NULL while the driver is
 * not known.
 */
static void *replacement(const char *name, void **real)
{
	if (nt_driver_may_have(name))
		return nt_hook_wrapper_named(name, real);
	/* All of them begin so; most names do not, which saves the comparisons. */
	if (name[0] != 'd' || name[1] != 'l')
		return NULL;
	for (int i = 0; i < LOADERS; i++)
		if (strcmp(name, loaders[i].name) == 0) {
			*real = loaders[i].real;
			return (void *)(uintptr_t)loaders[i].ours;
		}
	return NULL;
}

/*
 * Whether an address is a procedure linkage table entry that stands for a function of another object, as in a program
 * that takes the function's address.
 */
static bool is_linkage_table(const void *address)
{
	const ElfW(Sym) *symbol = NULL;
	Dl_info info;

	return dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) && symbol && symbol->st_shndx == SHN_UNDEF;
}

/*
 * Whether a lazily bound slot (a pointer for calls into another object) of an object would be bound to the function
 * real at its first use.
 */
static bool would_bind_to(const struct nt_object *object, const char *name, const void *real)
{
	void *address = dlsym(RTLD_DEFAULT, name);

	/* If a program takes the function's address, dlsym returns that linkage table entry; slots of calls skip it. */
	if (address)
		return address == real || is_linkage_table(address);
	/* Else the object's own dependencies may have it. */
	void *handle = dlopen(*object->name ? object->name : NULL, RTLD_LAZY | RTLD_NOLOAD);
	if (handle) {
		address = dlsym(handle, name);
		dlclose(handle);
	}
	return address == real;
}

/* The first slot of an object that was redirected: while it keeps its value, this is still the same object. */
struct mark {
	void **slot;
	void *value;
};

/*
 * Redirect the slot (a pointer for calls into another object) of one relocation to our function, if it is one of a
 * replaced function and is bound to the real one, or would be. Sets *mark if the slot is the object's first.
 */
static void redirect_slot(const struct nt_object *object, const struct nt_dynamic *dynamic, const ElfW(Rela) *row,
			  struct mark *mark)
{
	uint32_t type = (uint32_t)ELF64_R_TYPE(row->r_info);
	void *real = NULL;

	/* Only relocations that store the plain address of a symbol. */
	if ((type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) ||
	    (type == R_X86_64_64 && row->r_addend))
		return;
	/*
	 * The name begins as a replaced function's does: most do not, and looking at the prefix is cheap. Nothing in the
	 * object is trusted: symbol and name must be within it.
	 */
	const ElfW(Sym) *symbol = &dynamic->symbols[ELF64_R_SYM(row->r_info)];
	if (!nt_object_segment(object, (uintptr_t)symbol, sizeof(*symbol)) || symbol->st_name + sizeof(NT_DRIVER_PREFIX) > dynamic->strings_size)
		return;
	const char *prefix = dynamic->strings + symbol->st_name;
	if (!nt_driver_may_have(prefix) && strncmp(prefix, "dl", 2) != 0)
		return;
	const char *name = nt_object_string(dynamic, symbol->st_name);
	void *ours = name ? replacement(name, &real) : NULL;
	void **slot = (void **)(object->base + row->r_offset);
	if (!ours || !real || (uintptr_t)slot % sizeof(*slot) || !nt_object_segment(object, (uintptr_t)slot, sizeof(*slot)))
		return;
	void *value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
	/* It was redirected already. */
	if (value == ours && !mark->slot)
		*mark = (struct mark){slot, ours};
	/* A slot that points into its own object, to the linkage table, is bound at its first use. */
	if (value != real && !(type == R_X86_64_JUMP_SLOT && nt_object_holds(object, value) && would_bind_to(object, name, real)))
		return;
	if (nt_slot_write(object, slot, ours) && !mark->slot)
		*mark = (struct mark){slot, ours};
}

/* --- all objects --- */

/*
 * An object whose relocations were processed. If another object is loaded at its place later, the marked slot shows it.
 */
struct processed {
	ElfW(Addr) base;
	const ElfW(Phdr) *segments;
	uint64_t name_hash;
	struct mark mark;
	bool with_driver; /* whether the driver was known, so that its functions were redirected, too */
};

struct objects {
	struct nt_object *rows;
	size_t count, capacity;
};

/* Guarded by the dynamic loader's lock, and by the mutex only because sanitizers do not know that lock. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct processed *processed;
static size_t processed_count;
static bool searched; /* pointers that objects have cached: once, since all later look-ups return the hook's */

/* The loader_state at the last pass. */
static uint64_t last_state;
static void *self; /* dlopen's handle of this library */

/* Callback of dl_iterate_phdr: count an object, and store it if there is an array with a free row. */
static int count_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct objects *objects = argument;

	(void)size;
	if (objects->rows && objects->count < objects->capacity)
		objects->rows[objects->count] = (struct nt_object){info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum,
								info->dlpi_name ? info->dlpi_name : ""};
	objects->count++;
	return 0;
}

/* Callback of dl_iterate_phdr: set the loader's state from its counters, and stop. */
static int first_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	uint64_t *state = argument;

	/* A program's own dl_iterate_phdr may have a shorter structure, without the counters. */
	if (size < offsetof(struct dl_phdr_info, dlpi_subs) + sizeof(info->dlpi_subs))
		return 1;
	/* Bit 0 is left for loader_state. */
	*state = ((uint64_t)info->dlpi_adds + (uint64_t)info->dlpi_subs) << 1;
	return 1;
}

/*
 * A number that changes when objects are loaded or unloaded, by the dynamic loader's counters, or when the driver
 * becomes known (bit 0).
 */
static uint64_t loader_state(void)
{
	uint64_t state = 0;

	dl_iterate_phdr(first_object, &state);
	return state | nt_driver_known();
}

/* A 64-bit hash of an object's name, by FNV-1a. */
static uint64_t hash_of(const char *name)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	while (*name)
		hash = (hash ^ (unsigned char)*name++) * UINT64_C(0x100000001b3);
	return hash;
}

/*
 * The record of an object that was processed before; NULL if it is new. *hint: the index where the search begins, and
 * on return where the next one should: the dynamic loader lists objects in the same order each time, so most are found
 * at once.
 */
static const struct processed *find_processed(const struct nt_object *object, uint64_t name_hash, bool with_driver,
					      size_t *hint)
{
	for (size_t i = 0; i < processed_count; i++) {
		size_t index = (*hint + i) % processed_count;
		const struct processed *record = &processed[index];
		if (record->base != object->base || record->segments != object->segments ||
		    record->name_hash != name_hash || record->with_driver != with_driver)
			continue;
		if (!record->mark.slot || (nt_object_segment(object, (uintptr_t)record->mark.slot, sizeof(void *)) &&
					   __atomic_load_n(record->mark.slot, __ATOMIC_ACQUIRE) == record->mark.value)) {
			*hint = index + 1;
			return record;
		}
	}
	return NULL;
}

/*
 * Redirect the slots (pointers for calls into other objects) of one object, and return the record of that. search: for
 * the pointers in its data, NULL if these are not to be redirected.
 */
static struct processed process_object(const struct nt_object *object, uint64_t name_hash, bool with_driver,
				       const struct nt_cached_pointers *search)
{
	struct processed ret = {object->base, object->segments, name_hash, {NULL, NULL}, with_driver};
	struct nt_dynamic dynamic;

	if (!nt_object_read(object, &dynamic) || is_excluded(object, &dynamic))
		return ret;
	/* In table 1 the relocations without a symbol come first. */
	for (int table = 0; table < 2; table++)
		for (size_t i = table ? dynamic.relative : 0; i < dynamic.rows[table]; i++)
			redirect_slot(object, &dynamic, &dynamic.tables[table][i], &ret.mark);
	if (search)
		nt_cached_pointers_redirect(search, object);
	return ret;
}

/*
 * 1 while pass runs. Only one thread can, since it holds the dynamic loader's lock, but the program's own malloc may call
 * dlsym from there, in the same thread.
 */
static int passing;

/*
 * After fork, in the child: a pass of another thread does not go on here, and may have left the records half written,
 * so they are discarded.
 */
static void in_child(void)
{
	pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	if (!__atomic_exchange_n(&passing, 0, __ATOMIC_ACQ_REL))
		return;
	mutex = unlocked;
	processed = NULL;
	processed_count = 0;
	__atomic_store_n(&last_state, 0, __ATOMIC_RELEASE);
}

/*
 * Redirect the slots (pointers for calls into other objects) of all objects that are new since the last pass. Called
 * with the dynamic loader's lock held: no object is partly loaded or relocated, and none is loaded or unloaded
 * meanwhile.
 */
static void redirect_new_objects(void)
{
	struct objects objects = {0};
	uint64_t state = loader_state();
	bool with_driver = state & 1;

	if (__atomic_exchange_n(&passing, 1, __ATOMIC_ACQ_REL))
		return;
	nt_lock_take(&mutex);

	/* Count the objects, then list them. */
	dl_iterate_phdr(count_object, &objects);
	objects.capacity = objects.count;
	objects.rows = nt_memory_alloc_zeroed(objects.capacity, sizeof(*objects.rows));
	struct processed *records = nt_memory_alloc_zeroed(objects.capacity, sizeof(*records));
	objects.count = 0;
	if (objects.rows)
		dl_iterate_phdr(count_object, &objects);

	struct nt_cached_pointers search;
	bool has_search = with_driver && !searched && nt_cached_pointers_begin(&search);
	size_t count = objects.count < objects.capacity ? objects.count : objects.capacity, hint = 0;
	for (size_t i = 0; records && objects.rows && i < count; i++) {
		const struct nt_object *object = &objects.rows[i];
		uint64_t name_hash = hash_of(object->name);
		const struct processed *earlier = find_processed(object, name_hash, with_driver, &hint);
		records[i] = earlier ? *earlier : process_object(object, name_hash, with_driver, has_search ? &search : NULL);
	}
	if (has_search) {
		nt_cached_pointers_end(&search);
		searched = true;
	}
	/* Without memory the old records stay, and the new objects are not redirected. */
	if (records && objects.rows) {
		nt_memory_free(processed);
		processed = records;
		processed_count = count;
	} else {
		nt_memory_free(records);
	}
	nt_memory_free(objects.rows);
	__atomic_store_n(&last_state, state, __ATOMIC_RELEASE);
	nt_lock_release(&mutex);
	__atomic_store_n(&passing, 0, __ATOMIC_RELEASE);
}

/*
 * The function that neutrino_slots_pass stands for; it is never needed. neutrino_slots_pass is an indirect function
 * (STT_GNU_IFUNC): dlsym of it calls choose_nothing to choose its address, and holds the dynamic loader's lock
 * meanwhile. There is no other way to hold that lock, without which another thread could be relocating an object.
 */
static void nothing(void)
{
}

/*
 * Called by dlsym, which holds the dynamic loader's lock: redirects the slots (pointers for calls into other objects)
 * of new objects. Its result is not needed. used: by name alone, which clang 14 does not count.
 */
__attribute__((used)) static void (*choose_nothing(void))(void)
{
	redirect_new_objects();
	return nothing;
}

__attribute__((visibility("default"))) void neutrino_slots_pass(void) __attribute__((ifunc("choose_nothing")));

/*
 * Redirect the slots (pointers for calls into other objects) of objects that were loaded since the last call, and those
 * of the driver's functions once the driver is known. From any thread. Keeps errno, but may change dlerror's message.
 */
void nt_slots_update(void)
{
	int error = errno;

	/* The look-up is what calls pass; its result is not needed. self is NULL until nt_slots_start. */
	if (self && __atomic_load_n(&last_state, __ATOMIC_ACQUIRE) != loader_state())
		dlsym(self, "neutrino_slots_pass");
	errno = error;
}

/*
 * Start redirecting calls of the dynamic loader and the driver to our functions. Called once, from a constructor of
 * this library, when the dynamic loader holds its lock. False if this process cannot be redirected.
 */
bool nt_slots_start(void)
{
	Dl_info info;
	int found = 0;

	dl_iterate_phdr(find_loaders, &found);
	/* Without all of the real functions none may be replaced. */
	if (found != LOADERS || !dladdr(nt_slots_dlsym, &info) || !info.dli_fname ||
	    !nt_apart_at_fork(in_child))
		return false;
	self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!self)
		return false;
	redirect_new_objects();
	return true;
}

/* --- in place of the dynamic loader's functions --- */

/*
 * What a look-up of a name returns to the program, if the dynamic loader's answer is address: the hook's function for
 * one of the driver. When the program obtains such a function, the driver becomes known, and all slots (pointers for
 * calls into other objects) of its functions are redirected.
 */
static void *replace_result(void *address, const char *name)
{
	if (!address || !nt_driver_may_have(name))
		return address;
	int error = errno;
	if (nt_hook_load_driver()) {
		nt_slots_update();
		address = nt_hook_wrapper_of(address);
	}
	/* The program's call succeeded: no error of ours may be left. */
	dlerror();
	errno = error;
	return address;
}

/*
 * Whether the result of dlsym may depend on the object that calls: with RTLD_NEXT and RTLD_DEFAULT. RTLD_DEFAULT does not,
 * if it finds the driver's function also for us.
 */
static bool depends_on_caller(void *handle, const char *name)
{
	void *real = NULL;

	if (handle != RTLD_DEFAULT)
		return handle == RTLD_NEXT;
	return !nt_driver_may_have(name) || !nt_hook_load_driver() || !nt_hook_wrapper_named(name, &real) ||
	       dlsym(RTLD_DEFAULT, name) != real;
}

/*
 * In place of the program's dlsym: its result, with our function for one of the driver. NULL if the real dlsym must be
 * called after all, as the result depends on the caller or there is none.
 */
void *nt_slots_dlsym_try(void *handle, const char *name)
{
	nt_slots_update();
	if (!name || depends_on_caller(handle, name))
		return NULL;
	return replace_result(dlsym(handle, name), name);
}

/*
 * In place of the program's dlvsym: its result, with our function for one of the driver. NULL if the real dlvsym must
 * be called after all, as the result depends on the caller or there is none.
 */
void *nt_slots_dlvsym_try(void *handle, const char *name, const char *version)
{
	nt_slots_update();
	if (!name || !version || handle == RTLD_DEFAULT || handle == RTLD_NEXT)
		return NULL;
	return replace_result(dlvsym(handle, name, version), name);
}

struct rpath_search {
	const void *caller;
	bool has_rpath; /* the result */
};

/* Callback of dl_iterate_phdr: find out whether the object that contains the caller has DT_RPATH. */
static int search_rpath(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct rpath_search *search = argument;
	struct nt_object object = {info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum, ""};
	struct nt_dynamic dynamic;

	(void)size;
	if (!nt_object_holds(&object, search->caller))
		return 0;
	search->has_rpath = nt_object_read(&object, &dynamic) && dynamic.has_rpath;
	return 1;
}

/*
 * In place of the program's dlopen. With a path that has a slash, it depends on the caller only by the caller's
 * DT_RPATH, by which libraries that the object needs are found: then it is called here, and the new object's slots
 * (pointers for calls into other objects) are redirected before the program goes on. NULL if the real dlopen must be
 * called after all: dlerror then has the message that it would have had.
 */
void *nt_slots_dlopen_try(const char *file, int mode, const void *unused, const void *caller)
{
	struct rpath_search search = {.caller = caller};

	(void)unused;
	nt_slots_update();
	/* '$': $ORIGIN is the folder of the object that calls. */
	if (!file || !strchr(file, '/') || strchr(file, '$'))
		return NULL;
	dl_iterate_phdr(search_rpath, &search);
	if (search.has_rpath)
		return NULL;
	void *handle = dlopen(file, mode);
	if (handle) {
		nt_slots_update();
		dlerror();
	}
	return handle;
}

#else

/* Slots are redirected on x86-64 only. */
bool nt_slots_start(void)
{
	return false;
}

/* Slots are redirected on x86-64 only. */
void nt_slots_update(void)
{
}

#endif
