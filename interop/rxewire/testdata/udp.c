/*
 * udp serve|call ADDRESS PORT poll|wait: a ping-pong of 8 bytes by UDP. The server binds the address and returns each
 * datagram to its sender; the client sends 20,000 datagrams, one at a time, and prints half of the median round trip in
 * microseconds. A reader either polls the socket or blocks in the kernel.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { rounds = 20000, early = 1000, length = 8 };

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static void receive(int s, void *b, int flags, struct sockaddr_in *from)
{
	socklen_t n = sizeof *from;
	while (recvfrom(s, b, length, flags, (struct sockaddr *)from, &n) < 0)
		check(errno == EAGAIN || errno == EINTR, "recvfrom");
}

int main(int argc, char **argv)
{
	check(argc == 5, "usage: udp serve|call ADDRESS PORT poll|wait");
	int s = socket(AF_INET, SOCK_DGRAM, 0), flags = strcmp(argv[4], "poll") ? 0 : MSG_DONTWAIT;
	check(s >= 0, "socket");
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))}, from;
	check(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1, "the address");
	char b[length] = {0};
	if (!strcmp(argv[1], "serve")) {
		check(bind(s, (struct sockaddr *)&at, sizeof at) == 0, "bind");
		printf("ready\n");
		fflush(stdout);
		for (;;) {
			receive(s, b, flags, &from);
			check(sendto(s, b, length, 0, (struct sockaddr *)&from, sizeof from) == length, "sendto");
		}
	}
	static int64_t took[rounds];
	for (int i = -early; i < rounds; i++) {
		int64_t begin = now();
		check(sendto(s, b, length, 0, (struct sockaddr *)&at, sizeof at) == length, "sendto");
		receive(s, b, flags, &from);
		if (i >= 0)
			took[i] = now() - begin;
	}
	qsort(took, rounds, sizeof *took, ascending);
	printf("%.2f\n", took[rounds / 2] / 2000.0);
	return 0;
}
