#include "image/prepare.h"

#include "base/quiet.h"
#include "image/backend.h"
#include "image/choice.h"
#include "memory/greens.h"
#include "memory/pool.h"

static int any_probed;

/*
 * Why a function is not prepared for probed launches: NOT_READY if that comes later; PROBED if it is to be prepared
 * now.
 */
enum neutrino_reason nt_prepare_reason(const struct nt_function *function)
{
	enum neutrino_reason reason = nt_kernel_reason(function->kernel);

	if (!nt_choice_has_context(function->context) || nt_choice_is_over(function->kernel))
		return NEUTRINO_REASON_NOT_SELECTED;
	if (reason != NEUTRINO_REASON_PROBED && reason != NEUTRINO_REASON_NOT_READY)
		return reason;
	if (nt_greens_has(function->context))
		return NEUTRINO_REASON_LAUNCH_FORM;
	return reason;
}

/*
 * Load a function's twin (its copy with probes) and what its launches need; returns PROBED, or why its original runs. A
 * module's function is prepared in its own context, which is made current meanwhile. quiet_ms: how long the context may
 * take to become idle, else NOT_READY; 0 in the program's thread, which does not wait for that. Without the lock.
 */
enum neutrino_reason nt_prepare_function(struct nt_function *function, unsigned quiet_ms)
{
	CUcontext current = NULL, own = function->context, popped; /* own: NULL for a CUkernel */
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	enum neutrino_reason reason = nt_prepare_reason(function);

	if (reason != NEUTRINO_REASON_PROBED)
		return reason;
	if (quiet_ms && function->is_kernel)
		own = __atomic_load_n(&function->wanted_in, __ATOMIC_ACQUIRE);
	if (nt_greens_has(own) || !nt_choice_has_context(own))
		own = NULL;
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	nt_driver.cuCtxGetCurrent(&current);
	/* A CUkernel is prepared for other contexts all the same. */
	if (nt_greens_has(current) || !nt_choice_has_context(current))
		current = NULL;
	bool pushed = own && own != current && nt_driver.cuCtxPushCurrent_v2(own) == CUDA_SUCCESS;
	bool is_own = !own || own == current || pushed;
	CUcontext context = pushed ? own : current;
	/* Made before: a launch would wait for that, too. */
	if (quiet_ms && is_own)
		nt_pool_prepare(context);
	bool waits = quiet_ms && context;
	if (!is_own)
		reason = NEUTRINO_REASON_LOAD;
	else if (waits && !nt_quiet_begin(context, quiet_ms))
		reason = NEUTRINO_REASON_NOT_READY;
	else
		reason = function->kernel->backend->prepare(function, context);
	if (waits && reason != NEUTRINO_REASON_NOT_READY)
		nt_quiet_end();
	if (reason == NEUTRINO_REASON_PROBED) {
		__atomic_store_n(&any_probed, 1, __ATOMIC_RELEASE);
		nt_backend_expect(function->kernel, nt_pool_prepare(context));
	}
	if (pushed)
		nt_driver.cuCtxPopCurrent_v2(&popped);
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	return reason;
}

/* Whether any function was ever prepared for probed launches; if not, contexts need not be prepared. Lock-free. */
bool nt_prepare_any(void)
{
	return __atomic_load_n(&any_probed, __ATOMIC_ACQUIRE);
}
