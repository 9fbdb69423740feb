/* Descriptor tables of our own threads, in which the program neither sees nor closes anything. */
#ifndef NEUTRINO_OWN_TABLE_H
#define NEUTRINO_OWN_TABLE_H

#include <stdbool.h>

/* Give the calling thread a descriptor table of its own, without any of the program's descriptors. False if that fails. */
bool nt_own_table_unshare(void);

/* A descriptor for nt_own_table_count_filters, -1 if there is none. */
int nt_own_table_open_filters(void);
/* Seccomp filters of the thread that has opened it; -1 if that is not known. */
int nt_own_table_count_filters(int fd);

#endif
