/*
 * Runs every kernel of first.cu and second.cu and prints what comes out, a line a kernel. The lines are the same with
 * and without probes: integers in decimal, floats as the bits of their sum.
 */
#include "common.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

void run_first(float *p, int n);
void run_second(float *p, int n);
__global__ void uses_own(float *p, int n);
__global__ void axpy(const float *a, const float *b, float *c, int n);
__global__ void calls(float *p, int n);
__global__ void sums(float *p, int n);
__global__ void recurses(int *p);
__global__ void uses_extern(float *p, int n);
__global__ void calls_counting(float *p);
__global__ void calls_table(float *p);
void tally_first(int *p, int n);
void tally_second(int *p, int n);

static void check(cudaError_t error, const char *what)
{
	if (error != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
		exit(1);
	}
}

static float *memory;
static float host[32];

static void begin(int integers)
{
	for (int i = 0; i < 32; i++) {
		int number = i * 7 + 3;
		float value = number * 0.37f;
		memcpy(&host[i], integers ? (void *)&number : (void *)&value, 4);
	}
	check(cudaMemcpy(memory, host, sizeof(host), cudaMemcpyHostToDevice), "copy to the device");
}

static void show(const char *name)
{
	unsigned hash = 2166136261u;

	check(cudaGetLastError(), name);
	check(cudaDeviceSynchronize(), name);
	check(cudaMemcpy(host, memory, sizeof(host), cudaMemcpyDeviceToHost), name);
	for (int i = 0; i < 32; i++) {
		unsigned bits;
		memcpy(&bits, &host[i], 4);
		hash = (hash ^ bits) * 16777619u;
	}
	printf("%s %08x\n", name, hash);
}

int main()
{
	unsigned count;
	float *p;

	check(cudaMalloc(&memory, sizeof(host)), "cudaMalloc");
	p = memory;
	begin(0);
	uses_own<<<1, 32>>>(p, 32);
	show("uses_own");
	begin(0);
	axpy<<<2, 16>>>(p, p, p, 32);
	show("axpy");
	begin(0);
	calls<<<1, 32>>>(p, 32);
	show("calls");
	begin(0);
	sums<<<1, 32, 128>>>(p, 32);
	show("sums");
	begin(1);
	recurses<<<1, 32>>>((int *)p);
	show("recurses");
	begin(0);
	uses_extern<<<1, 32>>>(p, 32);
	show("uses_extern");
	begin(0);
	calls_counting<<<1, 32>>>(p);
	show("calls_counting");
	begin(0);
	calls_table<<<1, 32>>>(p);
	show("calls_table");
	begin(0);
	fill<<<2, 16>>>(p, 2.5f, 32);
	show("fill");
	begin(1);
	numbered<1><<<1, 32>>>((int *)p);
	show("numbered");
	begin(1);
	tally_first((int *)p, 1);
	tally_second((int *)p, 1);
	show("tally");
	check(cudaMemcpyFromSymbol(&count, hits, sizeof(count)), "hits");
	printf("hits %u\n", count);
	run_first(p, 32);
	run_second(p, 32);
	check(cudaDeviceSynchronize(), "run_second");
	return 0;
}
