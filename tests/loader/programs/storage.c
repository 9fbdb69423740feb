/* A library with thread-local storage that is larger than what malloc keeps by thread. */
__thread void *own[500];
