/* What a driver says of contexts: stacks, counts, resets, faults that stay, and what was destroyed. */
#include "asking.h"

static CUresult try_alloc(void)
{
	CUdeviceptr p;

	return cuMemAlloc_v2(&p, 64);
}

static void stacks(void)
{
	CUcontext made, popped, found;
	CUdevice device;
	unsigned version;
	unsigned long long id, other_id;

	question("pop and push");
	answer(cuCtxPopCurrent_v2(&popped));
	answer(popped == context);
	answer(cuCtxGetCurrent(&found));
	answer(found == NULL);
	answer(try_alloc());
	answer(cuCtxGetDevice(&device));
	answer(cuCtxSynchronize());
	answer(cuCtxPopCurrent_v2(&popped));
	answer(cuCtxPushCurrent_v2(NULL));
	answer(cuCtxPushCurrent_v2(context));
	answer(cuCtxPushCurrent_v2(context));
	answer(cuCtxPopCurrent_v2(NULL));
	answer(cuCtxGetCurrent(&found));
	answer(found == context);
	answered();

	question("set current");
	answer(cuCtxSetCurrent(NULL));
	answer(cuCtxGetCurrent(&found));
	answer(found == NULL);
	answer(cuCtxSetCurrent(context));
	answer(cuCtxGetCurrent(NULL));
	answered();

	question("create and destroy");
	answer(cuCtxCreate_v2(&made, 0, 0));
	answer(cuCtxGetCurrent(&found));
	answer(found == made);
	answer(cuCtxGetApiVersion(made, &version));
	answer(cuCtxGetId(made, &id));
	answer(cuCtxGetId(context, &other_id));
	answer(id != other_id);
	answer(cuCtxDestroy_v2(made));
	answer(cuCtxGetCurrent(&found));
	answer(found == context);
	answered();

	question("create and destroy, refused ones");
	answer(cuCtxCreate_v2(NULL, 0, 0));
	answer(cuCtxCreate_v2(&made, 0, 99));
	answer(cuCtxCreate_v2(&made, 0x1000, 0));
	answer(cuCtxDestroy_v2(NULL));
	answer(cuCtxDestroy_v2(context));
	answered();

	question("destroyed below the top of the stack");
	answer(cuCtxCreate_v2(&made, 0, 0));
	answer(cuCtxPushCurrent_v2(context));
	answer(cuCtxDestroy_v2(made));
	answer(cuCtxPopCurrent_v2(&popped));
	answer(cuCtxGetCurrent(&found));
	answer(found == made);
	answer(try_alloc());
	answer(cuCtxSetCurrent(context));
	answer(try_alloc());
	answered();

	question("objects of one context used in another");
	CUstream stream = make_stream(1);
	CUevent event, other_event;
	CUdeviceptr word = allocate(64);
	uint32_t x = 1;
	void *parameters[] = {&word, &x};
	CUfunction add = obtain(module, "add"), other_add;
	CHECK(cuEventCreate(&event, 0));
	answer(cuCtxCreate_v2(&made, 0, 0));
	answer(cuEventCreate(&other_event, 0));
	answer(launch(add, 1, 1, NULL, parameters));
	answer(launch(add, 1, 1, stream, parameters));
	answer(cuEventRecord(event, stream));
	answer(cuEventRecord(event, NULL));
	answer(cuEventRecord(other_event, stream));
	answer(cuStreamSynchronize(stream));
	answer(cuEventQuery(event));
	answer(cuModuleGetFunction(&other_add, module, "add"));
	answer(cuMemcpyHtoD_v2(word, &x, 4));
	answer(cuMemFree_v2(word));
	answer(cuCtxDestroy_v2(made));
	answered();
}

static void counts(void)
{
	CUcontext again, found;
	unsigned flags;
	int active;

	question("retained twice");
	answer(cuDevicePrimaryCtxRetain(&again, 0));
	answer(again == context);
	answer(cuDevicePrimaryCtxRelease_v2(0));
	answer(try_alloc());
	answer(cuDevicePrimaryCtxGetState(0, &flags, &active));
	answer(active);
	answered();

	question("retain, refused ones");
	answer(cuDevicePrimaryCtxRetain(NULL, 0));
	answer(cuDevicePrimaryCtxRetain(&again, 99));
	answer(cuDevicePrimaryCtxRelease_v2(99));
	answer(cuDevicePrimaryCtxReset_v2(99));
	answered();

	question("flags while active");
	answer(cuDevicePrimaryCtxSetFlags_v2(0, 4));
	answer(cuDevicePrimaryCtxGetState(0, &flags, &active));
	answer(flags & 7);
	answer(cuDevicePrimaryCtxSetFlags_v2(0, 0x10000));
	answered();

	question("released to nothing");
	answer(cuDevicePrimaryCtxRelease_v2(0));
	answer(cuDevicePrimaryCtxGetState(0, &flags, &active));
	answer(active);
	answer(cuCtxGetCurrent(&found));
	answer(found == context);
	answer(try_alloc());
	answer(cuCtxSynchronize());
	answer(cuDevicePrimaryCtxRelease_v2(0));
	answer(cuDevicePrimaryCtxRetain(&again, 0));
	answer(again == context);
	answer(try_alloc());
	answer(cuCtxSetCurrent(again));
	answer(try_alloc());
	answered();
}

static void ask_reset(void)
{
	CUcontext found, again = NULL;
	CUmodule fresh;
	CUfunction function;
	unsigned long long id = 0, id_again = 0;
	unsigned flags;
	int active;

	cuCtxGetId(context, &id);
	question("reset");
	answer(cuDevicePrimaryCtxReset_v2(0));
	answer(cuCtxGetCurrent(&found));
	answer(found == context);
	answer(try_alloc());
	answer(cuCtxSynchronize());
	answer(cuStreamSynchronize(NULL));
	answered();
	question("set again");
	answer(cuCtxSetCurrent(context));
	answer(try_alloc());
	answer(cuDevicePrimaryCtxGetState(0, &flags, &active));
	answer(active);
	answered();
	question("retain again");
	answer(cuDevicePrimaryCtxRetain(&again, 0));
	answer(again == context);
	answer(again == NULL);
	answer(try_alloc());
	answered();
	question("identity after retaining");
	answer(cuCtxGetId(context, &id_again));
	answer(id == id_again);
	answered();
	question("set after retaining");
	answer(cuCtxSetCurrent(again));
	answer(try_alloc());
	answer(cuModuleGetFunction(&function, module, "add"));
	answer(cuModuleLoadData(&fresh, image));
	answer(cuDevicePrimaryCtxGetState(0, &flags, &active));
	answer(active);
	answered();
	question("release");
	answer(cuDevicePrimaryCtxRelease_v2(0));
	answer(cuDevicePrimaryCtxRelease_v2(0));
	answer(cuDevicePrimaryCtxRelease_v2(0));
	answered();
}

static CUdeviceptr word;
static CUfunction add;
static uint32_t one = 1;
static void *parameters[] = {&word, &one};

static void ask_sticky(CUfunction function, void **given)
{
	CUstream stream = make_stream(1);
	CUevent event;
	CUcontext found, made;
	CUdevice device;
	size_t a, b;
	int status;
	const char *name;
	CUfunction other;

	add = obtain(module, "add");
	CHECK(cuEventCreate(&event, 0));
	question("fault");
	answer(launch(function, 1, 1, stream, given));
	answer(cuStreamSynchronize(stream));
	answer(cuCtxSynchronize());
	answered();
	ASK("alloc", try_alloc());
	ASK("free", cuMemFree_v2(word));
	ASK("launch", launch(add, 1, 1, NULL, parameters));
	ASK("launch wrong", launch(add, 0, 1, NULL, parameters));
	ASK("stream query", cuStreamQuery(stream));
	ASK("stream is capturing", cuStreamIsCapturing(stream, &status));
	ASK("begin capture", cuStreamBeginCapture_v2(stream, 0));
	ASK("event query", cuEventQuery(event));
	ASK("event record", cuEventRecord(event, stream));
	ASK("event create", cuEventCreate(&event, 0));
	ASK("stream create", cuStreamCreate(&stream, 1));
	ASK("copy", cuMemcpyDtoH_v2(&one, word, 4));
	ASK("mem info", cuMemGetInfo_v2(&a, &b));
	ASK("get function", cuModuleGetFunction(&other, module, "empty"));
	ASK("function name", cuFuncGetName(&name, add));
	ASK("context get device", cuCtxGetDevice(&device));
	ASK("context get current", cuCtxGetCurrent(&found));
	ASK("context set current", cuCtxSetCurrent(context));
	ASK("event destroy", cuEventDestroy_v2(event));
	ASK("stream destroy", cuStreamDestroy_v2(stream));
	ASK("load", cuModuleLoadData(&(CUmodule){NULL}, image));
	ASK("unload", cuModuleUnload(module));
	ASK("another context", cuCtxCreate_v2(&made, 0, 0));
}

static void trap(void)
{
	word = allocate(64);
	ask_sticky(obtain(module, "trap_here"), NULL);
}

static void illegal_address(void)
{
	CUdeviceptr nowhere = 0x10;
	void *given[] = {&nowhere};

	word = allocate(64);
	ask_sticky(obtain(module, "follow"), given);
}

static void misaligned(void)
{
	CUdeviceptr odd;
	void *given[] = {&odd};

	word = allocate(64);
	odd = word + 1;
	ask_sticky(obtain(module, "follow"), given);
}

static void reset(void)
{
	ask_reset();
}

static void reset_after_trap(void)
{
	question("trap");
	answer(launch(obtain(module, "trap_here"), 1, 1, NULL, NULL));
	answer(cuCtxSynchronize());
	answered();
	ask_reset();
}

static void reset_when_not_current(void)
{
	CUcontext again;

	question("reset when nothing is current");
	answer(cuCtxSetCurrent(NULL));
	answer(cuDevicePrimaryCtxReset_v2(0));
	answer(cuCtxSetCurrent(context));
	answer(try_alloc());
	answer(cuDevicePrimaryCtxRetain(&again, 0));
	answer(again == context);
	answer(cuCtxSetCurrent(again));
	answer(try_alloc());
	answered();
}

/* A fault in a context of its own: the primary one lives on or not, and what destroying it gives. */
static void fault_in_own_context(void)
{
	CUcontext made;
	CUmodule own;

	question("fault in a context of its own");
	answer(cuCtxCreate_v2(&made, 0, 0));
	own = load();
	answer(launch(obtain(own, "trap_here"), 1, 1, NULL, NULL));
	answer(cuCtxSynchronize());
	answer(cuCtxPopCurrent_v2(NULL));
	answer(try_alloc());
	answer(cuCtxSynchronize());
	answer(cuCtxDestroy_v2(made));
	answer(try_alloc());
	answered();
}

static void destroyed_context(void)
{
	CUcontext made;
	unsigned version;

	CHECK(cuCtxCreate_v2(&made, 0, 0));
	CHECK(cuCtxDestroy_v2(made));
	question("destroyed context");
	answer(cuCtxSetCurrent(made));
	answer(cuCtxPushCurrent_v2(made));
	answer(cuCtxGetApiVersion(made, &version));
	answer(cuCtxDestroy_v2(made));
	answered();
}

static void destroyed_event(void)
{
	CUevent event;

	CHECK(cuEventCreate(&event, 0));
	CHECK(cuEventDestroy_v2(event));
	question("destroyed event");
	answer(cuEventQuery(event));
	answer(cuEventSynchronize(event));
	answer(cuEventRecord(event, NULL));
	answer(cuEventDestroy_v2(event));
	answered();
}

static void destroyed_module(void)
{
	CUmodule extra = load();
	CUfunction function;

	CHECK(cuModuleUnload(extra));
	question("unloaded module");
	answer(cuModuleGetFunction(&function, extra, "add"));
	answer(cuModuleUnload(extra));
	answered();
}

static void destroyed_library(void)
{
	CUlibrary library;
	CUkernel kernel;

	CHECK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryUnload(library));
	question("unloaded library");
	answer(cuLibraryGetKernel(&kernel, library, "add"));
	answer(cuLibraryUnload(library));
	answered();
}

static void destroyed_stream(void)
{
	CUstream stream = make_stream(1);

	CHECK(cuStreamDestroy_v2(stream));
	question("destroyed stream");
	answer(cuStreamQuery(stream));
	answer(cuStreamDestroy_v2(stream));
	answered();
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"stacks", stacks},
		{"counts", counts},
		{"trap", trap},
		{"illegal-address", illegal_address},
		{"misaligned", misaligned},
		{"reset", reset},
		{"reset-after-trap", reset_after_trap},
		{"reset-when-not-current", reset_when_not_current},
		{"fault-in-own-context", fault_in_own_context},
		{"destroyed-context", destroyed_context},
		{"destroyed-event", destroyed_event},
		{"destroyed-module", destroyed_module},
		{"destroyed-library", destroyed_library},
		{"destroyed-stream", destroyed_stream},
	};

	return run_group(argc, argv, groups, sizeof(groups) / sizeof(groups[0]));
}
