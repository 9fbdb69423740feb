/* Two threads without stderr, as the hook's have none, that race on a variable: what its sanitizer says must be found. */
#include <sched.h>

#include "program.h"

static int raced;
static pthread_barrier_t both;

static void *race(void *unused)
{
	if (unshare(CLONE_FILES) != 0)
		exit(3);
	close(STDERR_FILENO);
	pthread_barrier_wait(&both);
	for (int i = 0; i < 1000; i++)
		raced++;
	return unused;
}

int main(void)
{
	pthread_t threads[2];

	pthread_barrier_init(&both, NULL, 2);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, race, NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	printf("%d\n", raced > 0);
	return 0;
}
