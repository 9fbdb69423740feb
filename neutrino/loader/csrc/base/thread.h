#ifndef NEUTRINO_THREAD_H
#define NEUTRINO_THREAD_H

#include <stdint.h>

/* The system's id of the calling thread, asked for once. */
uint32_t nt_thread_id(void);

#endif
