#include "base/thread.h"

#include <sys/syscall.h>
#include <unistd.h>

uint32_t nt_thread_id(void)
{
	static __thread __attribute__((tls_model("initial-exec"))) uint32_t id;

	if (!id)
		id = (uint32_t)syscall(SYS_gettid);
	return id;
}
