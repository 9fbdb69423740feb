/* A library whose dynamic section is all that matters. */
typedef int neutrino_empty;
