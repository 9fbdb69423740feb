/*
 * Part of a program that is not position-independent and takes the addresses of the dynamic loader's functions: for the
 * whole process they are in the program's own procedure linkage table then.
 */
#include <dlfcn.h>

const void *const addresses[] = {dlsym, dlvsym, dlopen};
