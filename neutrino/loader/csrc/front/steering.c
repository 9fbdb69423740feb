#include "front/steering.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mode.h"
#include "base/neutrino_layout.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "graph/graph_exec.h"
#include "image/choice.h"
#include "launch/launch.h"
#include "memory/pool.h"
#include "trace/files.h"
#include "trace/trace.h"

#define FILE_NAME "control"
#define PAUSE_MS 500
#define FLUSH_PAUSE_MS 5
#define NONE_MS 1000 /* without the file */

/* What is done for a request that is not answered yet. */
enum work {
	WORK_NONE,
	WORK_DRAIN, /* pools are flushed */
	WORK_WRITE, /* what there is now is written */
};

static struct {
	int fd; /* -1: there is no file */
	uint64_t last; /* request that was taken */
	uint64_t next_ns;
	enum work work;
} steering = {.fd = -1};

/*
 * Make the file by which neutrino-ctl asks this process, in the new trace directory. Without it the process cannot be
 * asked. In the writer's thread.
 */
static void start(void)
{
	struct neutrino_control control = {
		.magic = NEUTRINO_CONTROL_MAGIC,
		.version = NEUTRINO_CONTROL_VERSION,
		.pid = (uint32_t)getpid(),
	};

	if (!nt_files_keep_open())
		return;
	steering.fd = nt_files_open(FILE_NAME, O_RDWR | O_CREAT | O_EXCL);
	if (steering.fd >= 0 && !nt_quiet_write_all_at(steering.fd, &control, sizeof(control), 0)) {
		nt_raw_close(steering.fd);
		nt_files_unlink(FILE_NAME);
		steering.fd = -1;
	}
}

/* Milliseconds until the file should be looked at again for a request of neutrino-ctl. */
static unsigned next_look(void)
{
	if (steering.fd < 0)
		return NONE_MS;
	return steering.work == WORK_NONE ? PAUSE_MS : FLUSH_PAUSE_MS;
}

/*
 * Write the answer to the request that was taken last into the file. is_understood: false if its command is not known.
 */
static void write_answer(bool is_understood)
{
	struct neutrino_control control = {
		.is_understood = is_understood,
		.off = nt_choice_off() | (nt_launch_is_ended() ? NEUTRINO_OFF_ENDING : 0),
		.pool_bytes = nt_pool_size_all(),
	};
	const size_t rest = offsetof(struct neutrino_control, is_understood);

	steering.work = WORK_NONE;
	/* The request is answered once its number is there. */
	if (nt_quiet_write_all_at(steering.fd, (const char *)&control + rest, sizeof(control) - rest, rest))
		nt_quiet_write_all_at(steering.fd, &steering.last, sizeof(steering.last), offsetof(struct neutrino_control, answer));
}

/* Switch recording on or off, as neutrino-ctl asks, and note it in the trace if that changes anything. */
static void switch_recording(bool is_on)
{
	bool was_on = !(nt_choice_off() & NEUTRINO_OFF_STEERED);

	nt_choice_steer(is_on);
	if (is_on != was_on)
		nt_lines_note("neutrino-ctl: recording is %s", is_on ? "on again" : "off");
}

/* Begin to do a request of neutrino-ctl; one that is under way is given up for it. */
static void take_request(uint64_t request)
{
	steering.last = request;
	steering.work = WORK_WRITE;
	switch (request & 0xff) {
	case NEUTRINO_COMMAND_STATUS:
		break;
	case NEUTRINO_COMMAND_ON:
	case NEUTRINO_COMMAND_OFF:
		switch_recording((request & 0xff) == NEUTRINO_COMMAND_ON);
		break;
	case NEUTRINO_COMMAND_FLUSH:
		nt_pool_flush_gently();
		steering.work = WORK_DRAIN;
		break;
	default:
		write_answer(false);
	}
}

/*
 * Look for a request of neutrino-ctl, as far as it is time for that, and go on with it. Returns whether everything that
 * there is must be written now, after which it is answered.
 */
static bool look(void)
{
	uint64_t now = nt_clock_now_ns(), request;

	/* The choice of launches is made after the trace has begun. */
	if (steering.fd < 0 || nt_mode_of_process() < NT_TRACING)
		return false;
	if (now >= steering.next_ns) {
		/* A request has one word, so that half of one is never seen. */
		if (nt_raw_pread(steering.fd, &request, sizeof(request), offsetof(struct neutrino_control, request)) ==
			    sizeof(request) &&
		    request != steering.last)
			take_request(request);
		steering.next_ns = now + UINT64_C(1000000) * next_look();
	}
	if (steering.work == WORK_DRAIN && nt_pool_are_all_flushed())
		steering.work = WORK_WRITE;
	if (steering.work != WORK_WRITE)
		return false;
	/* The drain thread counts replays when it is awake. */
	nt_graph_exec_count_all();
	return true;
}

/*
 * Everything that look() has asked for is written: answer the request. is_last: the trace is complete, and has no such
 * file any more.
 */
static void written(bool is_last)
{
	if (steering.fd < 0)
		return;
	if (steering.work == WORK_WRITE)
		write_answer(true);
	/* A trace that is complete has no such file. */
	if (is_last && !nt_files_is_filtered())
		nt_files_unlink(FILE_NAME);
}

const struct nt_writer_guest nt_steering = {.start = start, .next_look = next_look, .look = look, .written = written};
