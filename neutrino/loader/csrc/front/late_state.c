#include "front/late.h"

/*
 * Exported as neutrino_hook, so that other copies of this library see that one records. The hook exports the same name, so
 * it must not be used here: it could be the other's.
 */
int nt_late_active;
extern int neutrino_hook __attribute__((alias("nt_late_active"), visibility("default")));

bool nt_late_came;

bool nt_late_is_active(void)
{
	return nt_late_active;
}

bool nt_late_came_after(void)
{
	return nt_late_came;
}
