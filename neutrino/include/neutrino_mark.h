/* Marks of ranges in device code, for probes: tracepoints `range:NAME`.
 *
 *     #include <neutrino_mark.h>        // nvcc -I "$(neutrino --include-dir)" ...
 *
 *     NEUTRINO_BEGIN(softmax);
 *     ...
 *     NEUTRINO_END(softmax);
 *
 * A mark is a name in the assembly that nothing uses: no instruction and no register. (A comment would do, but what nvcc
 * embeds has none.) The compiler moves no memory access over it ("memory"), and may move computations. NAME is made of
 * letters, digits and `_`.
 */

#ifndef NEUTRINO_MARK_H
#define NEUTRINO_MARK_H

#ifdef __CUDA_ARCH__
#define NEUTRINO_MARK_(mark) asm volatile("{ .reg .b32 neutrino_" mark "; }" ::: "memory")
#else
/* The host's side of a function for both. */
#define NEUTRINO_MARK_(mark) ((void)0)
#endif

#define NEUTRINO_BEGIN(name) NEUTRINO_MARK_("begin_" #name)
#define NEUTRINO_END(name) NEUTRINO_MARK_("end_" #name)

#endif
