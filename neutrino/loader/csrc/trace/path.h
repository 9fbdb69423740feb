#ifndef NEUTRINO_PATH_H
#define NEUTRINO_PATH_H

/* The trace has started, in this directory: from now on nt_trace_path says so (trace.h). Called once. */
void nt_trace_path_set(const char *path);

#endif
