/* What the stub asks of the hook that it is. */
#ifndef NEUTRINO_HOOK_H
#define NEUTRINO_HOOK_H

/* At the end of the process: where the driver was used before the hook was there, say what was not recorded. */
void nt_hook_missed(void);

#endif
