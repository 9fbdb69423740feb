/*
 * What each launch needs is close together, as the driver's own work has taken the caches since the last one. NT_HOT:
 * variables that launches read and that seldom change. NT_HOT_PATH: functions of launches that are not probed.
 */
#ifndef NEUTRINO_HOT_H
#define NEUTRINO_HOT_H

#define NT_HOT __attribute__((section("nt_hot")))
#define NT_HOT_PATH __attribute__((hot))
/* For declarations of what is defined in another file: reached without a look into the table of global addresses. */
#define NT_HIDDEN __attribute__((visibility("hidden")))
#define NT_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#endif
