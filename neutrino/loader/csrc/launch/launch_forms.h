/* The calls by which a program launches kernels. */
#ifndef NEUTRINO_LAUNCH_FORMS_H
#define NEUTRINO_LAUNCH_FORMS_H

#include "launch/launch.h"

/*
 * A launch by cuLaunchKernel or cuLaunchKernel_ptsz; launch lacks only how it is submitted. found: of nt_launch_find; it does
 * not pass.
 */
CUresult nt_launch_forms_plain(CUfunction handle, struct nt_launch *launch, struct nt_found found);

/* The same by cuLaunchKernelEx, or with per_thread by cuLaunchKernelEx_ptsz. found: of no use without config. */
CUresult nt_launch_forms_config(const CUlaunchConfig *config, CUfunction handle, void **parameters, void **extra,
				bool per_thread, struct nt_found found);

/* A launch by cuLaunchCooperativeKernel or cuLaunchCooperativeKernel_ptsz; launch lacks only how it is submitted. */
CUresult nt_launch_forms_cooperative(CUfunction handle, struct nt_launch *launch);

/* Before a launch by a call whose kernels run as they are, which is counted; nt_quiet_launch_ends is called after it. */
void nt_launch_forms_other(CUfunction handle);
/* The same of a call that launches several kernels at once. */
void nt_launch_forms_unknown(void);

#endif
