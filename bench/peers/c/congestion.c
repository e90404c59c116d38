/*
 * Preloaded under a peer: gives every TCP socket the congestion control
 * algorithm named by BENCH_CONGESTION, so that all programs compared use the
 * same one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol)
{
	static int (*next)(int, int, int);
	if (!next)
		next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	int fd = next(domain, type, protocol);
	const char *cc = getenv("BENCH_CONGESTION");
	if (fd >= 0 && cc && *cc && (domain == AF_INET || domain == AF_INET6)) {
		int saved = errno;
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, strlen(cc));
		errno = saved;
	}
	return fd;
}
