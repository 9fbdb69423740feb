/* A program that was linked with a patched library. */
#include <stdint.h>
#include <stdio.h>

uint64_t patched_work(int launches);

int main(void)
{
	printf("%llu\n", (unsigned long long)patched_work(20));
	return 0;
}
