/* Replays: launches of executable graphs. */
#ifndef NEUTRINO_GRAPH_REPLAY_H
#define NEUTRINO_GRAPH_REPLAY_H

#include <stdbool.h>

#include "base/driver.h"

/* Launch an executable graph; returns the driver's result for the program. On the launch path. */
CUresult nt_graph_replay_launch(CUgraphExec exec, CUstream stream, bool per_thread);

#endif
