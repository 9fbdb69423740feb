/*
 * What the dynamic loader answers a program: `asking LIBRARY FOLDER...` opens the library first, then asks. With and
 * without the stub it must print the same.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *error(void)
{
	const char *text = dlerror();

	return text ? text : "no error";
}

/* Whether something was found, and what dlerror says then; in this order, which a call's arguments have not. */
#define ASK(expression)                                                                                                \
	do {                                                                                                           \
		bool found = (expression) != NULL;                                                                     \
		printf("%d %s\n", found, error());                                                                     \
	} while (0)

/* A writable page of this program's own stays so, and one that was protected after loading is protected still. */
static void say_protections(const char *program)
{
	char line[4352];
	FILE *maps = fopen("/proc/self/maps", "r");

	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to, offset;
		char flags[5];
		if (strstr(line, program) && sscanf(line, "%lx-%lx %4s %lx", &from, &to, flags, &offset) == 4)
			printf("%lx at %lx %s\n", to - from, offset, flags);
	}
	fclose(maps);
}

int main(int argc, char **argv)
{
	char path[4096];
	int (*ask)(void), (*beside)(const char *);

	if (argc < 3 || !dlopen(argv[1], RTLD_NOW)) {
		printf("%s\n", error());
		return 1;
	}
	printf("opened: %s\n", error());
	snprintf(path, sizeof(path), "%s/first.so", argv[2]);
	void *first = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	printf("first: %s\n", error());
	errno = 77;
	*(void **)&ask = dlsym(first, "next");
	*(void **)&beside = dlsym(first, "beside");
	int number = errno;
	printf("errno %d, %s\n", number, error());
	printf("next of the first: %d\n", ask());
	printf("beside it: %d\n", beside("third.so"));
	printf("beside it: %d\n", beside("fourth.so"));
	/* This program's own folders are not the library's. */
	ASK(dlopen("beside.so", RTLD_NOW));
	ASK(dlsym(first, "nobody"));
	ASK(dlsym(first, "cuNobody"));
	ASK(dlsym(RTLD_DEFAULT, "nobody"));
	ASK(dlsym(RTLD_DEFAULT, "cuInit"));
	ASK(dlsym(RTLD_NEXT, "main"));
	ASK(dlsym(RTLD_DEFAULT, "who"));
	ASK(dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5"));
	ASK(dlvsym(first, "dlsym", "GLIBC_NO"));
	ASK(dlopen("/no/such", RTLD_NOW));
	ASK(dlopen("/no/such/$ORIGIN", RTLD_NOW));
	/* An error stays until it is asked for. */
	dlsym(first, "nobody");
	errno = 78;
	printf("%s\n", error());
	number = errno;
	printf("errno %d, %s\n", number, error());
	printf("%d\n", dlopen(NULL, RTLD_NOW) == dlopen(NULL, RTLD_LAZY));
	say_protections("/asking");
	return 0;
}
