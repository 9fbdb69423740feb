/* A library beside others, which finds the next of its own name, and those beside it. NUMBER distinguishes it from the others. */
#include <dlfcn.h>
#include <stdio.h>

int who(void)
{
	return NUMBER;
}

/* Who comes next: an answer that depends on which object asks. */
int next(void)
{
	int (*found)(void);

	*(void **)&found = dlsym(RTLD_NEXT, "who");
	return found ? found() : -1;
}

/* A name without a path is looked for where this library says ($ORIGIN). */
int beside(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);
	int (*found)(void);

	if (!library) {
		printf("%s\n", dlerror());
		return -1;
	}
	*(void **)&found = dlsym(library, "who");
	return found();
}
