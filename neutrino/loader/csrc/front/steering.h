/*
 * What neutrino-ctl asks of this process: the file control in the trace directory, in which the writer finds a request, and
 * puts the answer. It is read and never mapped, so that nothing that is done to it can harm the process. The writer keeps it
 * open: neutrino-ctl finds it among that thread's descriptors. A writer without a descriptor table of its own has none.
 */
#ifndef NEUTRINO_STEERING_H
#define NEUTRINO_STEERING_H

#include "trace/writer.h"

/* For nt_writer_invite. */
extern const struct nt_writer_guest nt_steering;

#endif
