/*
 * The Go half is started when the first NIC is opened instead of when the library is loaded,
 * because a program may fork, as daemons do, before it uses VIs.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "front.h"

extern char **environ;

_Atomic int started, orphaned;

/*
 * A starter is the function that the Go runtime would register with the dynamic linker. capi/build.sh
 * moves its address from .init_array into the section vipl_go_start.
 */
typedef void (*starter)(int, char **, char **);
extern starter const __start_vipl_go_start[] __attribute__((visibility("hidden")));
extern starter const __stop_vipl_go_start[] __attribute__((visibility("hidden")));

static void forked(void) { atomic_store(&orphaned, 1); }

/*
 * The runtime reads its arguments and environment from one block, like that of a new process:
 * argv, environment and auxiliary vector, each ended by 0. If the auxiliary vector is empty, the
 * runtime asks the kernel. Our block differs from the program's in one setting: stacks of goroutines do not
 * shrink, see headroom in stack.go.
 */
static char **runtime_block(void) {
	static const char setting[] = "gcshrinkstackoff=1";
	static char name[] = "vipl";
	size_t n = 0, k = 0, i;
	char **block, *debug = NULL;

	while (environ && environ[n])
		n++;
	block = calloc(n + 7, sizeof *block);
	if (!block)
		return NULL;
	block[k++] = name;
	block[k++] = NULL;
	for (i = 0; i < n; i++) {
		if (strncmp(environ[i], "GODEBUG=", 8) == 0)
			debug = environ[i];
		else
			block[k++] = environ[i];
	}
	/* The runtime searches for ends of strings in steps of 32 bytes. */
	block[k] = calloc(1, (debug ? strlen(debug) : 8) + sizeof setting + 64);
	if (!block[k]) {
		free(block);
		return NULL;
	}
	strcpy(block[k], debug ? debug : "GODEBUG=");
	if (debug && debug[8])
		strcat(block[k], ",");
	strcat(block[k], setting);
	return block; /* the runtime keeps it */
}

static void start_once(void) {
	sigset_t all, old;
	char **block = runtime_block();
	starter const *s;

	if (!block || pthread_atfork(NULL, NULL, forked) != 0)
		return;
	/* Threads of the runtime inherit this mask, so that signals reach only
	 * threads of the program. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (s = __start_vipl_go_start; s < __stop_vipl_go_start; s++)
		(*s)(1, block, block + 2);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	atomic_store(&started, 1);
}

int start(void) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, start_once);
	return atomic_load(&started) ? 0 : -1;
}
