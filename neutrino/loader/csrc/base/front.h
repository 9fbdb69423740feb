/*
 * What the auditing module (audit.c), the hook and the late hook agree on, so that the hook gets in front of the driver, and
 * no process has two. neutrino/loader/install.py knows it, too.
 */
#ifndef NEUTRINO_FRONT_H
#define NEUTRINO_FRONT_H

/*
 * Placeholders for the paths of the hook and of the driver, which install.py replaces in the built files, so that one
 * build serves every machine. build.py defines them. What is initialized with one is volatile: otherwise the compiler
 * could compute with the placeholder's own bytes.
 */
#if !defined(NT_FRONT_HOOK) || !defined(NT_FRONT_DRIVER)
#error "build.py defines the placeholders"
#endif

/*
 * The start of a path that the module leaves alone. The hook names the driver by its absolute path with "/." before it.
 * The dynamic loader compares paths as text, so a program's own request for the driver's path is another one.
 */
#define NT_FRONT_BYPASS "/./"

/*
 * The module removes this from the start of a name. A library that looks itself up under its own path, with this before
 * it, finds itself only if the module is in the process and has a hook to give.
 */
#define NT_FRONT_QUESTION "neutrino-front:"

#endif
