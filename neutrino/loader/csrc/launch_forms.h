/* The calls by which a program launches kernels. */
#ifndef NEUTRINO_LAUNCH_FORMS_H
#define NEUTRINO_LAUNCH_FORMS_H

#include "launch.h"

/* A launch by cuLaunchKernel or cuLaunchKernel_ptsz; launch lacks only how it is submitted. */
CUresult nt_launch_plain(CUfunction handle, struct nt_launch *launch);

/* A launch by cuLaunchKernelEx, or with per_thread by cuLaunchKernelEx_ptsz. */
CUresult nt_launch_config(const CUlaunchConfig *config, CUfunction handle, void **parameters, void **extra,
			  bool per_thread);

/* A launch by a call whose kernels run as they are: counted. */
void nt_launch_of_other_form(CUfunction handle);

/*
 * A kernel node, or any node, was added to a graph: counted. parameters: CUDA_KERNEL_NODE_PARAMS, with is_v2 its second
 * version; CUgraphNodeParams.
 */
void nt_launch_in_graph(const void *kernel_parameters, bool is_v2);
void nt_launch_in_any_node(const void *parameters);

#endif
