/* Prints its arguments, its name, and its environment: all that a program can see of how it was started. */
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

extern char **environ;
extern char *where_liba(void), *where_libb(void);

int main(int count, char **arguments)
{
	char name[16];

	*where_liba() = *where_libb() = 1;
	for (int i = 0; i < count; i++)
		printf("argument %d: %s\n", i, arguments[i]);
	prctl(PR_GET_NAME, name);
	printf("name %s, started as %s\n", name, (const char *)getauxval(AT_EXECFN));
	for (char **entry = environ; *entry; entry++)
		puts(*entry);
	return 7;
}
