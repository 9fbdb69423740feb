/* A user's own auditing module, which says that it is there, and which names it was asked for. */
#include <link.h>
#include <string.h>
#include <unistd.h>

unsigned la_version(unsigned version)
{
	return version;
}

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
	(void)cookie;
	if (flag == LA_SER_ORIG && strstr(name, "libcuda.so.1") && name[0] != '/')
		return write(2, "asked\n", 6) == 6 ? (char *)name : NULL;
	return (char *)name;
}
