/*
 * Plain TCP between two processes over loopback: what a careful C programmer
 * gets without RDMA. One run measures one operation and prints one JSON line.
 *
 *   tcp stream SIZE BATCH FOOTPRINT SECONDS CC   messages of SIZE bytes, BATCH per system call
 *   tcp spin   SIZE 1     FOOTPRINT SECONDS CC   ping-pong, both sides spin on recv
 *   tcp wait   SIZE 1     FOOTPRINT SECONDS CC   ping-pong, both sides block in recv
 *
 * FOOTPRINT is the size in bytes of the buffer through which the messages cycle.
 * CC is the congestion control algorithm, "-" for the system's default. The
 * parent sends, a child receives; a stream's rate is measured by the receiver.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct report {
	uint64_t bytes, nanos, cpu;
};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t cpu(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000ull +
	       (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000ull;
}

static void tune(int fd, const char *cc)
{
	int one = 1;
	if (strcmp(cc, "-") && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, strlen(cc)))
		die(cc);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void *memory(size_t n)
{
	void *p;
	if (posix_memalign(&p, 4096, n))
		die("memory");
	memset(p, 1, n);
	return p;
}

static void receive_all(int fd, char *p, size_t n, int flags)
{
	while (n) {
		ssize_t k = recv(fd, p, n, flags);
		if (k > 0) {
			p += k;
			n -= k;
		} else if (k == 0 || (errno != EAGAIN && errno != EINTR)) {
			die("recv");
		}
	}
}

static void send_all(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t k = send(fd, p, n, 0);
		if (k > 0) {
			p += k;
			n -= k;
		} else if (errno != EAGAIN && errno != EINTR) {
			die("send");
		}
	}
}

static void serve_stream(int fd, size_t footprint)
{
	size_t room = footprint < 256 << 10 ? 256 << 10 : footprint, at = 0;
	char *buf = memory(room);
	struct report r = {0};
	uint64_t start = 0, end = 0, used = cpu();
	for (;;) {
		ssize_t k = recv(fd, buf + at, room - at, 0);
		if (k == 0)
			break;
		if (k < 0)
			die("recv");
		end = now();
		if (!start)
			start = end; /* the clock starts after the first recv, whose bytes are not counted */
		else
			r.bytes += k;
		at = (at + k) % room;
	}
	r.nanos = end - start;
	r.cpu = cpu() - used;
	send_all(fd, (char *)&r, sizeof r);
}

static void serve_echo(int fd, size_t size, int flags)
{
	char *buf = memory(size);
	for (;;) {
		size_t at = 0;
		while (at < size) {
			ssize_t k = recv(fd, buf + at, size - at, flags);
			if (k == 0)
				return;
			if (k < 0 && errno != EAGAIN && errno != EINTR)
				die("recv");
			if (k > 0)
				at += k;
		}
		send_all(fd, buf, size);
	}
}

static void run_stream(int fd, size_t size, int batch, size_t footprint, uint64_t limit)
{
	size_t slots = footprint / size ? footprint / size : 1, at = 0;
	char *buf = memory(slots * size);
	struct iovec v[512], w[512];
	uint64_t start = now(), used = cpu(), sent = 0;
	struct report r;
	while (now() - start < limit) {
		for (int k = 0; k < 8; k++) { /* read the clock once per eight batches */
			if (batch == 1) {
				send_all(fd, buf + at * size, size);
				at = (at + 1) % slots;
				continue;
			}
			for (int j = 0; j < batch; j++) {
				v[j].iov_base = buf + at * size;
				v[j].iov_len = size;
				at = (at + 1) % slots;
			}
			memcpy(w, v, sizeof v[0] * batch);
			struct msghdr m = {.msg_iov = w, .msg_iovlen = batch};
			size_t left = size * batch;
			while (left) {
				ssize_t n = sendmsg(fd, &m, 0);
				if (n < 0)
					die("sendmsg");
				left -= n;
				while (m.msg_iovlen && (size_t)n >= m.msg_iov->iov_len) {
					n -= m.msg_iov->iov_len;
					m.msg_iov++;
					m.msg_iovlen--;
				}
				if (m.msg_iovlen) {
					m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + n;
					m.msg_iov->iov_len -= n;
				}
			}
		}
		sent += 8ull * batch;
	}
	used = cpu() - used;
	shutdown(fd, SHUT_WR);
	receive_all(fd, (char *)&r, sizeof r, 0);
	printf("{\"bytes\":%llu,\"seconds\":%.9f,\"messages\":%.1f,\"tx_cpu\":%.6f,\"rx_cpu\":%.6f}\n",
	       (unsigned long long)r.bytes, r.nanos / 1e9, (double)r.bytes / size, used / 1e9, r.cpu / 1e9);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(uint64_t *)a, y = *(uint64_t *)b;
	return (x > y) - (x < y);
}

/* The quantiles of the latency that are reported, the same as in picture.go. */
static const double quantiles[] = {0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999};

static void run_ping(int fd, size_t size, int flags, uint64_t limit)
{
	static uint64_t rtt[1 << 20];
	char *buf = memory(size);
	uint64_t n = 0, start = now(), last = start, t;
	do {
		send_all(fd, buf, size);
		receive_all(fd, buf, size, flags);
		t = now();
		rtt[n++] = t - last;
		last = t;
	} while (t - start < limit && n < 1 << 20);
	qsort(rtt, n, sizeof rtt[0], compare);
	printf("{\"messages\":%llu,\"seconds\":%.9f,\"latency_us\":%.4f,\"quantiles_us\":[", (unsigned long long)n,
	       (last - start) / 1e9, rtt[n / 2] / 2e3); /* the median */
	for (size_t i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++)
		printf("%s%.4f", i ? "," : "", rtt[(uint64_t)((double)n * quantiles[i])] / 2e3);
	printf("]}\n");
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: tcp stream|spin|wait SIZE BATCH FOOTPRINT SECONDS CC\n");
		return 2;
	}
	const char *op = argv[1], *cc = argv[6];
	size_t size = strtoull(argv[2], 0, 10), footprint = strtoull(argv[4], 0, 10);
	int batch = atoi(argv[3]), flags = !strcmp(op, "spin") ? MSG_DONTWAIT : 0;
	uint64_t limit = atof(argv[5]) * 1e9;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	if (batch < 1 || batch > 512 || size < 1)
		return 2;
	tune(l, cc);
	if (bind(l, (void *)&a, sizeof a) || listen(l, 1) || getsockname(l, (void *)&a, &n))
		die("listen");
	pid_t child = fork();
	if (child == 0) {
		int fd = accept(l, 0, 0);
		if (fd < 0)
			die("accept");
		tune(fd, cc);
		if (!strcmp(op, "stream"))
			serve_stream(fd, footprint);
		else
			serve_echo(fd, size, flags);
		exit(0);
	}
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	tune(fd, cc);
	if (connect(fd, (void *)&a, sizeof a))
		die("connect");
	if (!strcmp(op, "stream"))
		run_stream(fd, size, batch, footprint, limit);
	else
		run_ping(fd, size, flags, limit);
	close(fd);
	waitpid(child, 0, 0);
	return 0;
}
