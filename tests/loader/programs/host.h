/* One scenario after another is run by host.c; this is what they work with. */
#ifndef HOST_H
#define HOST_H

#include "watched.h"

extern CUcontext context; /* the primary one */
extern CUmodule module;
extern CUfunction function; /* count_p2 of the module */
extern CUstream stream;
extern CUdeviceptr counter, flag;
extern int64_t clock_ahead_s; /* by how much this process's CLOCK_MONOTONIC, the hook's too, is ahead */

/* Counters begin with numbers of their own, so that no two tickets of the process are the same. */
CUdeviceptr make_counter(void);
CUresult count(CUfunction counting, unsigned blocks, unsigned threads, CUstream on);
void say_counter(void);
/* How many, as the test asks. */
int wished(void);

/* Let the hook's own thread work, which does so every few milliseconds. */
void rest(void);

void no_descriptors(void);
void confine(void);
void sandboxed(void);
void other_stderr(void);
void emptied(void);
void emptied_last(void);
void closes_all(void);
void little_space(void);
void plain(void);
void loaded(void);
void mixture(void);
void many(void);
void large(void);
void immense(void);
void cut(void);
void growing(void);
void widening(void);
void growing_in_a_row(void);
void growing_in_little(void);
void spreading(void);
void crowded(void);
void spread(void);
void parameters(void);
void variables(void);
void shared_memory(void);
void forms(void);
void reload(void);
void names(void);
void parts(void);
void parts_at_once(void);
void short_streams(void);
void many_streams(void);
void full_streams(void);
void heirs(void);
void own_streams(void);
void passing_streams(void);
void standing_streams(void);
void passing_threads(void);
void idle(void);
void out_of_memory(void);
void growth(void);
void reloads(void);
void spin(void);
void endless(void);
void primary(void);
void destroy(void);
void reset_unseen(void);
void unannounced(void);
void no_memory(void);
void fault(void);
void misaligned(void);
void trap(void);
void fault_elsewhere(void);
void fork_and_exit(void);
void bare_fork(void);
void fork_and_call(void);
void fork_amid(void);
void kill_self(void);
void threads(void);
void churn(void);
void contexts_and_libraries(void);
void exit_amid(void);
void capture(void);
void forbidden(void);
void fork_and_join(void);
void capture_first(void);
void nodes(void);
void capture_amid(void);
void graph_replays(void);
void graph_crowd(void);
void graph_small_crowd(void);
void graph_streams(void);
void graph_changes(void);
void graph_threads(void);
void sets_change(void);
void sets_in_graphs(void);
void sets_in_set_graphs(void);
void sets_numbers(void);
void graph_contexts(void);
void graph_many(void);
void graph_reset(void);
void graph_sizes(void);
void graph_short_streams(void);
void graph_captured_end(void);
void graph_disabled(void);
void graph_handed(void);
void lasting(void);

#endif
