/*
 * Which paths no other user can change: ``neutrino/trusted_paths.py`` says why. The variables that name folders may be those
 * of another user's run, as after sudo -E.
 */
#ifndef NEUTRINO_TRUSTED_H
#define NEUTRINO_TRUSTED_H

#include <stdbool.h>

/*
 * Whether no other user can change what an absolute path leads to: each folder from / on, each link, and what links lead to,
 * belongs to root, to this process's user or to the owner of /, and nobody else can write to it, but for folders with the
 * sticky bit. What is not there does not count. groups: false if write permission of the group is no fault; start.py has
 * judged it.
 */
bool nt_trusted_path(const char *path, bool groups);

#endif
