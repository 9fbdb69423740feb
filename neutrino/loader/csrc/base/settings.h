/*
 * The hook's settings: the environment as it was at the program's first call of the driver. It is read once, because a
 * program may change its environment in one thread while another one, inside a call of the hook, would read it.
 */
#ifndef NEUTRINO_SETTINGS_H
#define NEUTRINO_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

/* Variables by which launchers of several processes number them. */
#define NT_RANKS "RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"
#define NT_RANK_COUNT 5

/* Texts are NULL where the variable is not set, or empty. */
struct nt_settings {
	const char *key;	/* NEUTRINO_KEY, the part of cache keys that all images of the run share */
	const char *cache;	/* NEUTRINO_CACHE, a folder */
	const char *socket;	/* NEUTRINO_SOCKET, of the listener */
	const char *driver;	/* NEUTRINO_DRIVER, the real driver's path */
	const char *tracedir;	/* NEUTRINO_TRACEDIR, the folder in which the trace is made */
	const char *probe_file; /* NEUTRINO_PROBE_FILE */
	const char *reader;	/* NEUTRINO_READER */
	const char *run;	/* NEUTRINO_RUN, names the run of neutrino that this process is of */
	const char *probes;	/* NEUTRINO_PROBES, their names */
	const char *version;	/* NEUTRINO_VERSION, of the command */
	const char *ranks[NT_RANK_COUNT]; /* in the order of NT_RANKS */
	uint64_t pool;		 /* NEUTRINO_POOL, bytes; 0: the default */
	uint64_t timeout;	 /* NEUTRINO_TIMEOUT, seconds; 0: the default */
	uint64_t max_trace_size; /* NEUTRINO_MAX_TRACE_SIZE, bytes; 0: no limit */
	uint64_t launches_begin; /* NEUTRINO_LAUNCHES, begin:end; 0: from the first one */
	uint64_t launches_end;	 /* after the last one; UINT64_MAX: no end */
	uint64_t every;		 /* NEUTRINO_EVERY; 0: the default, 1 */
	uint64_t devices;	 /* NEUTRINO_ONLY_DEVICES, a bit for each ordinal; 0: all */
	uint64_t benchmark;	 /* NEUTRINO_BENCHMARK, the seed of the draws; 0: no benchmark */
	bool is_switched;	 /* NEUTRINO_SWITCHED: nothing is chosen until the program says so */
	const char *choice;	 /* NEUTRINO_CHOICE: what chooses launches, in words; NULL: not known */
	const char *kernels;	 /* NEUTRINO_KERNELS: what is said if -k has chosen no kernel; NULL: something else has */
	const char *ranges;	 /* NEUTRINO_RANGES, patterns of those whose launches are chosen; NULL: all */
	bool is_range_for_process; /* NEUTRINO_RANGE_SCOPE is process */
	const char *own_injection; /* NEUTRINO_NVTX, what NVTX_INJECTION64_PATH was set to */
	const char *injection;	 /* NVTX_INJECTION64_PATH */
	uint64_t duration_ms;	 /* NEUTRINO_DURATION, in milliseconds; 0: without end */
	uint64_t hot;		 /* NEUTRINO_HOT: the launch of a kernel at which its twin is requested; 0: when it is obtained */
	bool measures_only;	 /* NEUTRINO_MEMUSAGE: originals run, and the memory of twins is measured */
	bool waits_for_none;	 /* NEUTRINO_NO_WAIT: the program waits for no twin */
	bool takes_code;	 /* NEUTRINO_MACHINE_CODE is 1: images without text may have twins, too */
	bool code_by_kernel;	 /* it is kernels or only: kernels without PTX may have twins, each in an entry of its own */
	const char *code_archs;	 /* NEUTRINO_CODE_ARCHS: on devices of these architectures alone; NULL: on all */
	bool is_code_only;	 /* it is only: no twins are made of PTX */
	bool asks_again;	 /* NEUTRINO_ASKS: other probes may follow, so what they are put into is kept */
	bool is_ahead;		 /* NEUTRINO_AHEAD: use the twins of patched files */
	bool is_quiet;		 /* NEUTRINO_QUIET: do not say where the trace is */
	bool hides_arguments;	 /* NEUTRINO_NO_ARGV: the trace holds no arguments of the program */
	bool is_other_rank;	 /* NEUTRINO_ONLY_RANKS: this process has none of these ranks */
};

/* The settings, read at the first call. From any thread. */
const struct nt_settings *nt_settings(void);

/* Whether kernels without PTX may have twins on a device of that architecture, such as "sm_90". From any thread. */
bool nt_settings_by_kernel(const char *arch);

#endif
