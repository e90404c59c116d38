package main

import (
	"strings"
	"testing"
)

// signalsC makes calls on RDMA files while a timer, whose handler lacks SA_RESTART, interrupts the
// calls. Like under the kernel's driver, a command must not fail with EINTR. Only calls that wait
// for an event are interrupted. All commands may be repeated without effect.
const signalsC = `
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int ticks;
static void tick(int s) { (void)s; ticks++; }

static uint32_t answer[128];
static long made;

static int command(int fd, uint32_t command, uint16_t in, uint16_t out, const void *body, int n) {
	char b[64];
	memcpy(b, &command, 4);
	memcpy(b + 4, &in, 2);
	memcpy(b + 6, &out, 2);
	memcpy(b + 8, body, n);
	made++;
	return write(fd, b, 8 + n) == 8 + n ? 0 : errno;
}

static int uverbs(int fd, uint32_t c, int words, const void *body, int n) { return command(fd, c, 2 + n / 4, words, body, n); }
static int cm(int fd, uint32_t c, int out, const void *body, int n) { return command(fd, c, n, out, body, n); }

int main(void) {
	enum { query_device = 1, create_comp_channel = 17, create_id = 0, get_event = 12, set_option = 14 };
	struct sigaction sa = {.sa_handler = tick};
	sigaction(SIGALRM, &sa, 0);
	sigaction(SIGURG, &sa, 0); // as qperf does
	int dev = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC), events = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	uint64_t to = (uintptr_t)answer, id[3] = {7, to, 0x106 | 2 << 16}, option[3] = {to, 0, 0 | 1ull << 32};
	if (dev < 0 || events < 0 || uverbs(dev, create_comp_channel, 1, &to, 8)) { perror("open"); return 1; }
	int channel = answer[0], e;
	if ((e = cm(events, create_id, 4, id, 24))) { fprintf(stderr, "create_id: %s\n", strerror(e)); return 1; }
	option[1] = answer[0];
	struct itimerval it = {{0, 500}, {0, 500}};
	setitimer(ITIMER_REAL, &it, 0);
	while (ticks < 500) {
		if ((e = uverbs(dev, query_device, 44, &to, 8))) { fprintf(stderr, "query_device %ld: %s\n", made, strerror(e)); return 1; }
		if ((e = cm(events, set_option, 0, option, 24))) { fprintf(stderr, "set_option %ld: %s\n", made, strerror(e)); return 1; }
	}
	if ((e = cm(events, get_event, 368, &to, 8)) != EINTR) { fprintf(stderr, "get_event: %s\n", strerror(e)); return 1; }
	char b[8];
	if (read(channel, b, 8) >= 0 || errno != EINTR) { perror("read"); return 1; }
	printf("%d signals\n", ticks);
	return 0;
}
`

// A signal does not interrupt a command, whatever the flags of its handler. It interrupts a wait
// for an event.
func TestRDMAUninterrupted(t *testing.T) {
	t.Parallel()
	program := buildC(t, signalsC)
	for _, device := range []string{"siw0", "rxe0"} {
		for _, argv := range [][]string{{program}, {"sh", "-c", program + "; exit $?"}} { // a child of the supervisor, and a grandchild
			r := goodLong(t, append([]string{"run", "--rdma", "--device", device, "--"}, argv...)...)
			if !strings.HasSuffix(r.stdout, " signals\n") {
				t.Errorf("%s: %q", device, r.stdout)
			}
		}
	}
}
