#include "failure.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "settings.h"

static const struct {
	const char *name;
	uint64_t value;
} points[ED_FAIL_POINTS] = {
	[ED_FAIL_ALLOC] = {"alloc", CUDA_ERROR_OUT_OF_MEMORY},
	[ED_FAIL_HOSTALLOC] = {"hostalloc", CUDA_ERROR_OUT_OF_MEMORY},
	[ED_FAIL_LOAD] = {"load", CUDA_ERROR_INVALID_IMAGE},
	[ED_FAIL_STREAM] = {"stream", CUDA_ERROR_OUT_OF_MEMORY},
	[ED_FAIL_EVENT] = {"event", CUDA_ERROR_OUT_OF_MEMORY},
	[ED_FAIL_COPY] = {"copy", CUDA_ERROR_LAUNCH_FAILED},
	[ED_FAIL_LAUNCH] = {"launch", CUDA_ERROR_INVALID_VALUE},
	[ED_FAIL_TWINLAUNCH] = {"twinlaunch", CUDA_ERROR_INVALID_VALUE},
	[ED_FAIL_WRITE] = {"write", CUDA_ERROR_NOT_SUPPORTED},
	[ED_FAIL_OCCUPANCY] = {"occupancy", 2},
	[ED_FAIL_SLOWALLOC] = {"slowalloc", 300000000},
};

struct request {
	enum ed_point point;
	uint64_t from, to; /* passages, from 1 */
	uint64_t value;
};

static struct request requests[32];
static unsigned request_count;
static uint64_t passages[ED_FAIL_POINTS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A number, or a time such as 5ms or 20us in nanoseconds. */
static uint64_t read_value(const char *text)
{
	char *unit;
	uint64_t value = strtoull(text, &unit, 0);

	return !strncmp(unit, "ms", 2) ? value * 1000000 : !strncmp(unit, "us", 2) ? value * 1000 : value;
}

/*
 * Read one request for a failure, POINT[@N[+]][=VALUE]: passage N of that point fails, with + all after it too, without
 * @ all. length: of the text. An unknown point is named on stderr.
 */
static void read_request(const char *text, size_t length)
{
	size_t name = strcspn(text, "@=,");

	for (int i = 0; i < ED_FAIL_POINTS; i++) {
		if (strlen(points[i].name) != name || memcmp(points[i].name, text, name) != 0)
			continue;
		struct request *request = &requests[request_count++];
		*request = (struct request){(enum ed_point)i, 1, UINT64_MAX, points[i].value};
		const char *next = text + name;
		if (*next == '@') {
			char *end;
			request->from = request->to = strtoull(next + 1, &end, 10);
			if (*end == '+') {
				request->to = UINT64_MAX;
				end++;
			}
			next = end;
		}
		/* =1 at the last points means their default value, not 1. */
		if (*next == '=' && !(i >= ED_FAIL_OCCUPANCY && !strncmp(next, "=1", 2) && (size_t)(next + 2 - text) == length))
			request->value = read_value(next + 1);
		return;
	}
	ed_say("fail: no point of that name: %.*s", (int)length, text);
}

/* Read the requests of the test setting fail=, which are separated by commas. Once. */
static void read_requests(void)
{
	const char *text = ed_settings()->fail;

	while (*text && request_count < sizeof(requests) / sizeof(requests[0])) {
		size_t length = strcspn(text, ",");
		read_request(text, length);
		text += length + (text[length] == ',');
	}
}

/*
 * Count a passage of a point at which tests may ask for a failure. Returns the value with which it must fail, 0 if it
 * must not.
 */
uint64_t ed_failure(enum ed_point point)
{
	pthread_once(&once, read_requests);
	if (!request_count)
		return 0;
	uint64_t passage = __atomic_add_fetch(&passages[point], 1, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < request_count; i++)
		if (requests[i].point == point && passage >= requests[i].from && passage <= requests[i].to)
			return requests[i].value;
	return 0;
}
