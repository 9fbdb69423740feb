/*
 * PTX that passed through a process of an earlier run, from the cache: what a program compiled then and has kept in a file
 * (CuPy, Numba) holds no PTX when it is loaded. neutrino/maker/passed.py writes it.
 */
#ifndef NEUTRINO_PASSED_FILE_H
#define NEUTRINO_PASSED_FILE_H

#include "image/image_bytes.h"

/* Keep the PTX of an image without PTX that the program loads, if the cache has it (nt_passed_keep). */
void nt_passed_file_keep(const struct nt_image_bytes *bytes);

#endif
