/* Memory, modules, launches, streams: `basic SCENARIO`. */
#include "host.h"

static void vecadd(CUmodule module, CUstream stream)
{
	enum { N = 1000 };
	static float a[N], b[N], c[N];
	CUdeviceptr on_device[3];
	int n = N;
	void *parameters[] = {&on_device[0], &on_device[1], &on_device[2], &n};

	for (int i = 0; i < N; i++) {
		a[i] = (float)i;
		b[i] = 0.5f * (float)i;
		c[i] = 0;
	}
	for (int i = 0; i < 3; i++)
		on_device[i] = allocate(sizeof(a));
	to_device(on_device[1], a, sizeof(a));
	to_device(on_device[2], b, sizeof(b));
	CHECK(launch(obtain(module, "vecadd"), 8, 128, stream, parameters));
	CHECK(synchronize(stream));
	to_host(c, on_device[0], sizeof(c));
	for (int i = 0; i < N; i++)
		EXPECT((int)(a[i] + b[i]), (int)c[i]);
	for (int i = 0; i < 3; i++)
		CHECK(CALL(cuMemFree_v2, (CUdeviceptr))(on_device[i]));
}

/* Steps on each of several streams: the order within one must hold. */
static void order(CUmodule module)
{
	enum { STREAMS = 4, STEPS = 20 };
	CUfunction step = obtain(module, "step");
	CUstream streams[STREAMS];
	CUdeviceptr words = allocate(STREAMS * 4);
	uint32_t expected[STREAMS] = {0}, found[STREAMS];

	to_device(words, expected, sizeof(expected));
	for (int i = 0; i < STREAMS; i++)
		streams[i] = make_stream(i % 2);
	for (uint32_t i = 0; i < STEPS; i++)
		for (uint32_t j = 0; j < STREAMS; j++) {
			uint32_t x = i * 7 + j;
			CUdeviceptr word = words + j * 4;
			void *parameters[] = {&word, &x};
			CHECK(launch(step, 1, 1, streams[j], parameters));
			expected[j] = expected[j] * 3 + x;
		}
	CHECK(CALL(cuCtxSynchronize, (void))());
	to_host(found, words, sizeof(found));
	for (int i = 0; i < STREAMS; i++)
		EXPECT(expected[i], found[i]);
}

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "vecadd";

	begin();
	CUmodule module = load();
	if (!strcmp(scenario, "vecadd")) {
		vecadd(module, NULL);
		vecadd(module, make_stream(0));
	} else if (!strcmp(scenario, "order")) {
		order(module);
	} else {
		return 2;
	}
	printf("done\n");
	return 0;
}
