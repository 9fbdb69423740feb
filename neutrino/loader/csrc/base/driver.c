#include "base/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/front.h"
#include "base/hot.h"
#include "base/lock.h"

struct nt_driver nt_driver;

/* Guards nt_driver while it is filled. Never held across a call of the dynamic loader, which has a lock of its own. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
NT_HOT bool nt_driver_loaded;
static bool failed;

#ifdef NEUTRINO_LATE
#define DRIVER NT_DRIVER_SONAME
#else
/* The driver that this library depends on, as its DT_NEEDED names it. */
static const volatile char path[] = NT_FRONT_DRIVER;
#define DRIVER ((const char *)path)
#endif

/*
 * Look up all functions of the real driver in the process, and publish them in nt_driver; returns whether they are
 * known then. own: this library's own cuInit; if the look-up finds that, it has found this library and not the driver.
 * From any thread.
 */
static bool find_driver(nt_driver_start *own)
{
	struct nt_driver found = {0};
	int cancelling;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
	/* RTLD_NOLOAD: the late hook waits until the program has loaded the driver; the hook is loaded after it. */
	void *handle = dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD);

	if (handle) {
#define NT_LOOK_UP(name, parameters, ...) *(void **)&found.name = dlsym(handle, #name);
		NT_DRIVER_CALLED(NT_LOOK_UP)
		NT_DRIVER_INTERCEPTED(NT_LOOK_UP)
#undef NT_LOOK_UP
	}
	/* If the functions found are our own, this is the hook itself: a call would call itself forever. */
	bool is_valid = found.NT_DRIVER_START && found.NT_DRIVER_START != own;
	nt_lock_take(&mutex);
	if (is_valid && !nt_driver_loaded) {
		nt_driver = found;
		__atomic_store_n(&nt_driver_loaded, true, __ATOMIC_RELEASE);
	}
#ifndef NEUTRINO_LATE
	/* Looked for once; but the late hook tries again, since the program may load the driver later. */
	if (!is_valid)
		__atomic_store_n(&failed, true, __ATOMIC_RELEASE);
#endif
	nt_lock_release(&mutex);
	pthread_setcancelstate(cancelling, NULL);
	return nt_driver_known();
}

/*
 * Look up the real driver's functions unless an earlier attempt has failed for good; false if there is no driver. own:
 * this library's own cuInit, which must not be taken for the driver's.
 */
bool nt_driver_load_now(nt_driver_start *own)
{
	return !__atomic_load_n(&failed, __ATOMIC_ACQUIRE) && find_driver(own);
}

/*
 * Write the architecture of the current context's device, else of device 0, as Neutrino's targets name it, and say which
 * device that is; false if the driver fails. The rest of the hook only compares and hands on such names: what they look
 * like is between a driver and its target.
 */
bool nt_driver_arch(char ret[NT_DRIVER_ARCH], CUdevice *device)
{
	int major, minor;

	if (nt_driver.cuCtxGetDevice(device) != CUDA_SUCCESS && nt_driver.cuDeviceGet(device, 0) != CUDA_SUCCESS)
		return false;
	if (nt_driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, *device) !=
		    CUDA_SUCCESS ||
	    nt_driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, *device) !=
		    CUDA_SUCCESS)
		return false;
	snprintf(ret, NT_DRIVER_ARCH, "sm_%d%d", major, minor);
	return true;
}
