/* The test frame of all programs in this folder: a table of cases. Each case prints one line, "ok",
 * "FAIL" or "SKIP", with the expected behaviour and the faults found. A case that finds a fault
 * continues, so that its objects are destroyed. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdbool.h>

struct test {
	const char *name;
	const char *expectation;
	void (*run)(void);
};

/* run_tests runs the cases and returns the exit status of the program: 1 if a case failed, else 0.
 * SIGALRM ends the program when a case takes more than 20 seconds. */
int run_tests(const struct test *tests, int n);

/* expect records a fault of the current case unless got equals want. */
void expect(long got, long want, const char *what);

/* expect_errno records a fault unless a call that returned status failed with the error want; a want
 * of 0 expects success. Calls of rdma_cm return -1 and set errno, calls of verbs return the error
 * itself, and the post calls of libsiw return the negative error. */
void expect_errno(int status, int want, const char *what);

/* need prints FAIL with errno's text and ends the program unless there is true. */
void need(bool there, const char *what);

/* skip marks the current case SKIP and says why this machine cannot run it. The case must return. */
void skip(const char *why);

#define TESTS(tests) run_tests(tests, sizeof(tests) / sizeof((tests)[0]))

#endif
