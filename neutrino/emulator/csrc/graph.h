/* Graphs: nodes in a partial order, and plans made of them that streams run. */
#ifndef ED_GRAPH_H
#define ED_GRAPH_H

#include "context.h"
#include "operation.h"

struct ed_plan;

void ed_plan_hold(struct ed_plan *plan);
void ed_plan_release(struct ed_plan *plan);

/* Run every node, in an order that the edges allow. */
CUresult ed_plan_run(struct ed_plan *plan, struct ed_context *context);

#endif
