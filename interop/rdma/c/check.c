#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char faults[4096], skipped[256], summary[8192];

static void note(const char *format, ...)
{
	size_t n = strlen(faults);
	va_list args;

	va_start(args, format);
	vsnprintf(faults + n, sizeof(faults) - n, format, args);
	va_end(args);
}

static const char *name_of(int error)
{
	return error == 0 ? "success" : strerror(error);
}

void expect(long got, long want, const char *what)
{
	if (got != want)
		note("\n       %s: %ld, expected %ld", what, got, want);
}

void expect_errno(int status, int want, const char *what)
{
	int got = status == -1 ? errno : abs(status);

	if (got != want)
		note("\n       %s: %s, expected %s", what, name_of(got), name_of(want));
}

void need(bool there, const char *what)
{
	if (there)
		return;
	printf("FAIL %s: %s\n", what, strerror(errno));
	exit(1);
}

void skip(const char *why)
{
	snprintf(skipped, sizeof(skipped), "%s", why);
}

int run_tests(const struct test *tests, int n)
{
	int failed = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < n; i++) {
		faults[0] = skipped[0] = 0;
		printf("     %s ...\n", tests[i].name); /* the last one, if the program hangs */
		alarm(60);
		tests[i].run();
		alarm(0);
		printf("%s %s: %s%s%s\n", faults[0] ? "FAIL" : skipped[0] ? "SKIP" : "ok  ", tests[i].name,
		       tests[i].expectation, faults, skipped);
		failed += faults[0] != 0;
		if (faults[0])
			snprintf(summary + strlen(summary), sizeof(summary) - strlen(summary), "%s: %s%s\n", tests[i].name,
				 tests[i].expectation, faults);
	}
	printf("\n%s", summary);
	printf("%d cases, %d failed\n", n, failed);
	return failed ? 1 : 0;
}
