#include "front/late.h"

/*
 * Exported as neutrino_hook, so that other copies of this library see that one records. The hook exports the same name, so
 * it must not be used here: it could be the other's.
 */
int nt_late_active;
extern int neutrino_hook __attribute__((alias("nt_late_active"), visibility("default")));

bool nt_late_came;

/*
 * Whether this copy of the library records in this process. Decided before the program runs any code of the patched
 * library (neutrino-patch has added probes to it).
 */
bool nt_late_is_active(void)
{
	return nt_late_active;
}

/* Whether the driver was in the process before this library was: then part of it may have been looked up without us. */
bool nt_late_came_after(void)
{
	return nt_late_came;
}
