/* Writes a slot: a pointer in memory through which a loaded object calls a function of another one. */
#ifndef NEUTRINO_SLOT_WRITE_H
#define NEUTRINO_SLOT_WRITE_H

#include <stdbool.h>

#include "front/object.h"

/*
 * Write a pointer into a slot of an object, whose page is made writable for that if it is not. By one store of 8 bytes,
 * since other threads may be calling through the slot. False if the slot cannot be written. The caller holds the dynamic
 * loader's lock.
 */
bool nt_slot_write(const struct nt_object *object, void **slot, void *value);

#endif
