#ifndef NEUTRINO_PATH_H
#define NEUTRINO_PATH_H

/* The trace has started, in this directory: from now on nt_path_of_trace says so (trace.h). Called once. */
void nt_path_set(const char *path);

#endif
