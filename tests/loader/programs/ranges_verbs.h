/* What driven.c does by NVTX: whether the verb is one of these, which is then done. */
#ifndef RANGES_VERBS_H
#define RANGES_VERBS_H

#include <stdbool.h>

bool range_verb(const char *verb, const char *argument);

#endif
