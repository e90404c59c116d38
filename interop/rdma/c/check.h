/* The test frame of all programs in this folder: a table of cases. Each case prints one line, "ok"
 * or "FAIL", with the expected behaviour and its source. A case that finds a fault continues, so
 * that its objects are destroyed. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdbool.h>

struct test {
	const char *name;
	const char *expectation;
	void (*run)(void);
};

/* run_tests runs the cases and returns the status of the program. A case may take 20 seconds. */
int run_tests(const struct test *tests, int n);

/* expect records a fault of the case unless got equals want. */
void expect(long got, long want, const char *what);

/* expect_errno records a fault unless a call that returned status has failed with that error. Calls
 * of rdma_cm return -1 and set errno, those of verbs return the error itself, and libsiw's posts
 * return its negative. */
void expect_errno(int status, int want, const char *what);

/* need ends the program if a precondition of every case fails. */
void need(bool there, const char *what);

/* skip reports why this machine cannot run a case. */
void skip(const char *why);

#define TESTS(tests) run_tests(tests, sizeof(tests) / sizeof((tests)[0]))

#endif
