/*
 * What the hook keeps of PTX that passes through the process, from several threads: `kept both ARCH CUBIN TEXT` writes the
 * fatbin of a cubin and its PTX to stdout; `kept threads` keeps and finds PTX in threads, and prints how often each was found;
 * `kept ltoir COUNT SIZE` links so many inputs of LTO IR of that size, three times, and prints how many are to be linked again.
 */
#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "image/links.h"
#include "image/ltoir.h"
#include "image/passed.h"

enum { THREADS = 8, ROUNDS = 4000, CUBINS = 200, MOST = 1 << 20 };

static unsigned long found_count, wrong_count;

/* A cubin of no code, which differs from others by its number. */
static struct cubin {
	Elf64_Ehdr header;
} cubin_of(unsigned number)
{
	struct cubin ret = {{.e_machine = 190, .e_ehsize = sizeof(Elf64_Ehdr), .e_entry = number}};

	memcpy(ret.header.e_ident, ELFMAG, SELFMAG);
	ret.header.e_ident[EI_CLASS] = ELFCLASS64;
	return ret;
}

/* Find the PTX of a cubin: it must be that of its number, if it is there. */
static void look_up(unsigned number)
{
	struct cubin cubin = cubin_of(number);
	struct nt_image_bytes bytes;
	char expected[64];

	if (!nt_image_bytes_measure(&cubin, sizeof(cubin), &bytes))
		exit(2);
	struct nt_passed passed = nt_passed_find(&bytes, "sm_90a");
	if (passed.fatbin) {
		int length = snprintf(expected, sizeof(expected), "// number %u;\n", number);
		bool is_right = memmem(passed.fatbin, passed.size, expected, (size_t)length) &&
				memmem(passed.fatbin, passed.size, &cubin, sizeof(cubin));
		__atomic_add_fetch(is_right ? &found_count : &wrong_count, 1, __ATOMIC_RELAXED);
	}
	nt_memory_free(passed.fatbin);
}

/* Begin a link whose LTO IR is kept. */
static void begin_ltoir(const void *handle)
{
	nt_links_begin(handle, NULL, nt_ltoir_create(3, (const char *const[]){"-lto", "-time", "-arch=sm_90a"}));
}

/* A link of several inputs, each a magic number and the text: its PTX is the text, unless there is PTX among the inputs. */
static void link_ltoir(const void *handle, const struct cubin *cubin, const char *text, unsigned *seed)
{
	static const uint8_t magic[] = {0xed, 0x43, 0x4e, 0x7f};
	char input[256];
	unsigned count = 1 + (unsigned)rand_r(seed) % 3, other = (unsigned)rand_r(seed) % 8;
	size_t size = sizeof(magic) + strlen(text) + 1;

	memcpy(input, magic, sizeof(magic));
	memcpy(input + sizeof(magic), text, size - sizeof(magic));
	begin_ltoir(handle);
	for (unsigned i = 0; i < count; i++) {
		if (i == other)
			nt_links_add(handle, text, strlen(text), NULL);
		else
			nt_links_add_ltoir(handle, input, size);
	}
	struct nt_ltoir *ltoir = nt_links_take_ltoir(handle);
	if ((ltoir != NULL) != (other >= count))
		exit(5);
	if (ltoir) {
		if (ltoir->inputs_count != count || ltoir->options_count != 2 || strcmp(ltoir->options[1], "-arch=sm_90a") != 0 ||
		    ltoir->last->size != size || memcmp(ltoir->last->data, input, size) != 0 || nt_links_take_ltoir(handle))
			exit(6);
		char *given = rand_r(seed) % 4 ? nt_memory_alloc(size) : NULL;
		if (given)
			memcpy(given, ltoir->first->data + sizeof(magic), size - sizeof(magic));
		nt_links_give_ptx(handle, given, size - sizeof(magic), "it failed");
		nt_ltoir_free(ltoir);
	}
	nt_links_done(handle, cubin, sizeof(*cubin), "LTO IR");
	nt_links_end(handle);
}

/* Three links of so many inputs of that size, at the same time. Returns how many are to be linked again. */
static int link_three(unsigned count, size_t size)
{
	char *input = calloc(1, size);
	struct nt_ltoir *taken[3];
	int ret = 0;

	for (uintptr_t link = 0; link < 3; link++) {
		const void *handle = (const void *)(link + 1);
		begin_ltoir(handle);
		for (unsigned i = 0; i < count; i++)
			nt_links_add_ltoir(handle, input, size);
		taken[link] = nt_links_take_ltoir(handle);
		ret += taken[link] != NULL;
	}
	for (uintptr_t link = 0; link < 3; link++) {
		nt_ltoir_free(taken[link]);
		nt_links_end((const void *)(link + 1));
	}
	free(input);
	return ret;
}

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	char text[128];

	for (int i = 0; i < ROUNDS; i++) {
		unsigned number = (unsigned)rand_r(&seed) % CUBINS;
		struct cubin cubin = cubin_of(number);
		snprintf(text, sizeof(text), ".version 8.0\n.target sm_90a\n// number %u;\n", number);
		/* Handles are the thread's own. */
		const void *handle = (const char *)argument + i % 3;
		switch (rand_r(&seed) % 4) {
		case 0:
			nt_passed_keep(&cubin, sizeof(cubin), text, sizeof(text), "one", NULL);
			break;
		case 1:
			nt_links_begin(handle, NULL, NULL);
			nt_links_add(handle, text, sizeof(text), NULL);
			if (rand_r(&seed) % 4 == 0) {
				/* Then nothing is known of the result. */
				nt_links_add(handle, "another", 8, NULL);
			}
			nt_links_done(handle, &cubin, sizeof(cubin), "another");
			if (rand_r(&seed) % 4)
				nt_links_end(handle);
			break;
		case 2:
			link_ltoir(handle, &cubin, text, &seed);
			break;
		default:
			look_up(number);
		}
	}
	return NULL;
}

/* Read a file into memory that is one byte larger, as its size says. */
static char *read_file(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	char *ret = malloc(MOST);

	if (!file)
		exit(3);
	*size = fread(ret, 1, MOST, file);
	fclose(file);
	/* So that reading beyond its end is found. */
	return realloc(ret, *size ? *size : 1);
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	if (argc == 5 && !strcmp(argv[1], "both")) {
		size_t cubin_size, size;
		char *cubin = read_file(argv[3], &cubin_size), *text = read_file(argv[4], &size);
		struct nt_image_bytes bytes;

		if (!nt_image_bytes_measure(cubin, cubin_size, &bytes))
			return 4;
		nt_passed_keep(cubin, cubin_size, text, size, "a test", NULL);
		struct nt_passed passed = nt_passed_find(&bytes, argv[2]);
		if (passed.fatbin)
			fwrite(passed.fatbin, 1, passed.size, stdout);
		fprintf(stderr, "%s", passed.why ? passed.why : "");
		nt_memory_free(passed.fatbin);
		free(cubin);
		free(text);
		return 0;
	}
	if (argc == 4 && !strcmp(argv[1], "ltoir")) {
		/* Twice: what the first ones have taken of the limits is given back. */
		for (int i = 0; i < 2; i++)
			printf("%d\n", link_three((unsigned)atoi(argv[2]), (size_t)atoi(argv[3])));
		return 0;
	}
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)(16 * (i + 1)));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%d %lu\n", found_count > 100, wrong_count);
	return 0;
}
