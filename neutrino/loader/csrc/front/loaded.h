/* Images that the program has just loaded, from memory or from a file. */
#ifndef NEUTRINO_LOADED_H
#define NEUTRINO_LOADED_H

#include "base/driver.h"

/*
 * After the driver's call: register the module or library that was loaded, or note why it was refused. handle: where the
 * driver wrote it. result: the driver's. caller: return address of the program's call.
 */
void nt_loaded_data(void *const *handle, bool is_library, const void *image, const void *caller, CUresult result);
void nt_loaded_file(void *const *handle, bool is_library, const char *path, const void *caller, CUresult result);

#endif
