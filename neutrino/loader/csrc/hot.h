/* Variables that each launch reads and that seldom change: in a section of their own, so that they share cache lines. */
#ifndef NEUTRINO_HOT_H
#define NEUTRINO_HOT_H

#define NT_HOT __attribute__((section("nt_hot")))

#endif
