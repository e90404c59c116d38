/* What all programs of this folder share: a table of cases, each of which prints one line, "ok" or
 * "FAIL", with what is expected and by whom. A case that finds a fault goes on, so that what it has
 * made is taken down. */
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

/* expect notes a fault of the case unless got is want. */
void expect(long got, long want, const char *what);

/* expect_errno does so unless a call that returned status has failed with that error. Calls of
 * rdma_cm return -1 and set errno, those of verbs return the error itself, and libsiw's posts its
 * negative. */
void expect_errno(int status, int want, const char *what);

/* need ends the program if something that every case builds on is not there. */
void need(bool there, const char *what);

/* skip says why a case can't be tried on this machine. */
void skip(const char *why);

#define TESTS(tests) run_tests(tests, sizeof(tests) / sizeof((tests)[0]))

#endif
