/* CUgraphNodeParams: the parameters of a node of any type. */
#ifndef ED_GRAPH_NODE_H
#define ED_GRAPH_NODE_H

#include "abi.h"

/* Those of the types that the stand-in has, in one form each. */
struct ed_node_parameters {
	int type; /* CU_GRAPH_NODE_TYPE_… */
	CUDA_KERNEL_NODE_PARAMS kernel;
	CUDA_MEMCPY3D copy;
	CUDA_MEMSET_NODE_PARAMS fill;
	CUcontext context; /* of a copy or a fill */
	CUDA_HOST_NODE_PARAMS host;
	CUgraph child;
	CUevent event;
};

void ed_node_parameters_read(const void *from, struct ed_node_parameters *ret);

#endif
