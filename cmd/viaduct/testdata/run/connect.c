// Prints what connect and its companions say, in a table that is compared
// between runs: PORT of an echo server, PORT where nothing listens, PORT that
// never answers, FAMILY 4 or 6.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static union { struct sockaddr sa; struct sockaddr_in in; struct sockaddr_in6 in6; } at[3];
static socklen_t alen;
static const char *name[] = {"echo", "refused", "never"};
static int family;

static const char *err(int r) { return r < 0 ? strerrorname_np(errno) : "ok"; }

static int sock(int flags) { return socket(family, SOCK_STREAM | flags, 0); }

static int soerror(int fd) {
	int e = -1;
	socklen_t n = sizeof e;
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n);
	return e;
}

// peer says whether getpeername shows the address that was connected to.
static const char *peer(int fd, int to) {
	char b[64] = {0};
	socklen_t n = sizeof b;
	int r = getpeername(fd, (void *)b, &n);
	if (r < 0) return err(r);
	if (n != alen) return "wrong length";
	return memcmp(b, &at[to], alen) ? "WRONG" : "right";
}

static const char *local(int fd) {
	struct sockaddr_in6 b = {0};
	socklen_t n = sizeof b;
	int r = getsockname(fd, (void *)&b, &n);
	if (r < 0) return err(r);
	if (b.sin6_family != family || n != alen) return "wrong family";
	return b.sin6_port ? "has a port" : "no port";
}

// echo sends and wants the same back, and the end after its own.
static const char *echo(int fd) {
	char b[4096], g[4096];
	int got = 0, r;
	for (int i = 0; i < sizeof b; i++) b[i] = rand();
	struct pollfd p = {fd, POLLIN};
	if ((r = send(fd, b, sizeof b, MSG_NOSIGNAL)) != sizeof b) return err(r);
	while (got < sizeof b) {
		if (poll(&p, 1, 60000) != 1) return "timeout";
		r = recv(fd, g + got, sizeof g - got, 0);
		if (r <= 0) return r ? err(r) : "early end";
		got += r;
	}
	if (memcmp(b, g, sizeof b)) return "wrong bytes";
	if (shutdown(fd, SHUT_WR)) return "shutdown";
	if (poll(&p, 1, 60000) != 1) return "timeout";
	if (recv(fd, g, 1, 0) != 0) return "no end";
	return "right";
}

static void blocking(void) {
	for (int to = 0; to < 2; to++) {
		int fd = sock(0), r = connect(fd, &at[to].sa, alen);
		printf("blocking %s: %s", name[to], err(r));
		printf(", peer %s", peer(fd, to));
		if (to == 0) {
			printf(", local %s", local(fd));
			r = connect(fd, &at[to].sa, alen);
			printf(", again %s", err(r));
			printf(", %s", echo(fd));
		}
		printf("\n");
		close(fd);
	}
	int fd = sock(0), one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof one);
	int r = connect(fd, &at[0].sa, alen);
	printf("fast open: %s", err(r));
	printf(", %s\n", echo(fd));
	close(fd);
	fd = sock(0);
	r = sendto(fd, "x", 1, MSG_FASTOPEN, &at[0].sa, alen);
	if (r < 0 && errno == EOPNOTSUPP) r = connect(fd, &at[0].sa, alen), r = r < 0 ? r : send(fd, "x", 1, 0);
	char c;
	printf("fast open by sendto: %s", err(r));
	r = recv(fd, &c, 1, 0);
	printf(", %d\n", r);
	close(fd);
}

enum how { POLL, EPOLL, EPOLL_BEFORE, SELECT };
static const char *hows[] = {"poll", "epoll", "epoll before", "select"};

// await waits until the socket is writable and returns what the kernel said.
static int await(enum how how, int ep, int fd, int ms) {
	struct pollfd p = {fd, POLLOUT};
	struct epoll_event e = {EPOLLOUT}, got;
	struct timeval tv = {ms / 1000, ms % 1000 * 1000};
	fd_set w;
	switch (how) {
	case POLL: return poll(&p, 1, ms) == 1 ? p.revents : 0;
	case EPOLL: epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
	case EPOLL_BEFORE: return epoll_wait(ep, &got, 1, ms) == 1 ? got.events : 0;
	case SELECT: FD_ZERO(&w); FD_SET(fd, &w); return select(fd + 1, 0, &w, 0, &tv);
	}
	return -1;
}

static void nonblocking(void) {
	for (enum how how = POLL; how <= SELECT; how++)
		for (int to = 0; to < 3; to++) {
			int fd = sock(SOCK_NONBLOCK), ep = epoll_create1(EPOLL_CLOEXEC);
			if (how == EPOLL_BEFORE) {
				// Edges: of an unconnected socket there is one at once.
				struct epoll_event e = {EPOLLOUT | EPOLLET}, got;
				epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
				epoll_wait(ep, &got, 1, 0);
			}
			int r = connect(fd, &at[to].sa, alen);
			printf("%s %s: %s", hows[how], name[to], err(r));
			int ev = await(how, ep, fd, to == 2 ? 60 : 60000);
			printf(", events %x", ev);
			if (to == 2) {
				printf(", peer %s", peer(fd, to));
				printf(", local %s", local(fd));
				r = connect(fd, &at[to].sa, alen);
				printf(", again %s", err(r));
			}
			printf(", SO_ERROR %d", soerror(fd));
			if (to == 0) {
				printf(", peer %s", peer(fd, to));
				r = connect(fd, &at[to].sa, alen);
				printf(", again %s", err(r));
				r = connect(fd, &at[to].sa, alen);
				printf(", and again %s", err(r));
				fcntl(fd, F_SETFL, 0);
				printf(", %s", echo(fd));
			}
			printf(", flags %x\n", fcntl(fd, F_GETFL) & O_NONBLOCK);
			close(fd);
			close(ep);
		}
}

static volatile int ticks;
static void tick(int s) { ticks++; }

// interrupt sends the main thread a signal once its socket connects.
static void *interrupt(void *arg) {
	int fd = *(int *)arg;
	struct tcp_info i;
	do {
		socklen_t n = sizeof i;
		usleep(1000);
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &n)) return 0;
	} while (i.tcpi_state != TCP_SYN_SENT);
	kill(getpid(), SIGALRM);
	return 0;
}

static void limits(void) {
	int fd = sock(0);
	struct timeval tv = {0, 80000};
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
	int r = connect(fd, &at[2].sa, alen);
	printf("SO_SNDTIMEO never: %s", err(r));
	r = connect(fd, &at[2].sa, alen);
	printf(", again %s\n", err(r));
	close(fd);
	fd = sock(0);
	tv.tv_sec = 60;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
	r = connect(fd, &at[0].sa, alen);
	printf("SO_SNDTIMEO echo: %s", err(r));
	printf(", %s\n", echo(fd));
	close(fd);
	for (int restart = 0; restart < 2; restart++)
		for (int to = 0; to < 3; to += 2) {
			struct sigaction sa = {.sa_handler = tick, .sa_flags = restart ? SA_RESTART : 0};
			sigaction(SIGALRM, &sa, 0);
			// The one that never answers is interrupted. With a time-out, the kernel does not restart it.
			fd = sock(0);
			tv = (struct timeval){120, 0};
			if (to == 2 && restart) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
			struct itimerval it = {{0, 7000}, {0, 7000}}, none = {0};
			pthread_t t;
			ticks = 0;
			if (restart) setitimer(ITIMER_REAL, &it, 0);
			// A signal that comes before the supervisor has begun the call ends it without a connect
			// in progress. Where a signal ends the call, it is therefore sent when the socket connects.
			else if (to == 2) {
				sigset_t alarm, old;
				sigemptyset(&alarm);
				sigaddset(&alarm, SIGALRM);
				pthread_sigmask(SIG_BLOCK, &alarm, &old); // in the new thread
				pthread_create(&t, 0, interrupt, &fd);
				pthread_sigmask(SIG_SETMASK, &old, 0);
			}
			r = connect(fd, &at[to].sa, alen);
			int e = errno;
			setitimer(ITIMER_REAL, &none, 0);
			if (!restart && to == 2) pthread_join(t, 0);
			errno = e;
			printf("signals restart=%d %s: %s", restart, name[to], err(r));
			if (to == 2) {
				fcntl(fd, F_SETFL, O_NONBLOCK);
				r = connect(fd, &at[to].sa, alen);
				printf(", again %s, ticks %s", err(r), ticks ? "came" : "did not come");
			} else
				printf(", %s", echo(fd));
			printf("\n");
			close(fd);
		}
}

static void wrong(void) {
	char room[128];
	memcpy(room, &at[0], sizeof at[0]);
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "/nonexistent/socket"};
	struct { const char *what; int fd; void *addr; int len; } cases[] = {
		{"no descriptor", 9999, &at[0], alen}, {"no socket", 0, &at[0], alen}, {"bad pointer", sock(0), (void *)8, alen},
		{"short", sock(0), &at[0], 5}, {"no length", sock(0), &at[0], 0}, {"negative length", sock(0), &at[0], -1},
		{"long", sock(0), room, sizeof room}, {"too long", sock(0), room, 4000}, {"unspec", sock(0), &none, sizeof none},
		{"unix path", socket(AF_UNIX, SOCK_STREAM, 0), &un, sizeof un}, {"wrong family", sock(0), &un, sizeof un},
		{"udp", socket(family, SOCK_DGRAM, 0), &at[0], alen},
	};
	for (int i = 0; i < sizeof cases / sizeof *cases; i++) {
		int r = connect(cases[i].fd, cases[i].addr, cases[i].len);
		printf("%s: %s\n", cases[i].what, err(r));
	}
	int l = sock(0), c = sock(0);
	listen(l, 1);
	int r = connect(l, &at[0].sa, alen);
	printf("a listener connects: %s", err(r));
	close(l);
	r = connect(c, &at[0].sa, alen);
	r = listen(c, 1);
	printf(", a connection listens: %s", err(r));
	r = accept(c, 0, 0);
	printf(", and accepts: %s\n", err(r));
	close(c);
}

static void *late(void *arg) {
	int r = connect(*(int *)arg, &at[0].sa, alen);
	return (void *)(size_t)(r < 0 ? errno : 0);
}

// shared: other descriptors, processes and threads of the same socket.
static void shared(void) {
	int fd = sock(0), copy = dup(fd), r = connect(copy, &at[0].sa, alen);
	printf("dup: %s", err(r));
	printf(", peer %s", peer(fd, 0));
	printf(", %s\n", echo(fd));
	close(fd);
	close(copy);
	fd = sock(0);
	r = connect(fd, &at[0].sa, alen);
	pid_t p = fork();
	if (!p) _exit(strcmp(peer(fd, 0), "right") || strcmp(echo(fd), "right"));
	int ws;
	waitpid(p, &ws, 0);
	printf("child uses: %d, peer %s\n", ws, peer(fd, 0));
	close(fd);
	struct sockaddr_in b4 = {.sin_family = AF_INET, .sin_addr = {htonl(0x7f000005)}};
	struct sockaddr_in6 b6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	fd = sock(0);
	r = bind(fd, family == AF_INET ? (void *)&b4 : (void *)&b6, alen);
	int before = 0;
	socklen_t n = sizeof b6;
	getsockname(fd, (void *)&b6, &n);
	before = b6.sin6_port;
	r = connect(fd, &at[0].sa, alen);
	printf("bound: %s", err(r));
	struct sockaddr_in after;
	n = sizeof b6;
	getsockname(fd, (void *)&b6, &n);
	memcpy(&after, &b6, sizeof after);
	printf(", port %s, address %s, %s\n", b6.sin6_port == before ? "kept" : "changed",
		family == AF_INET6 || after.sin_addr.s_addr == htonl(0x7f000005) ? "kept" : "changed", echo(fd));
	close(fd);
	fd = sock(0);
	pthread_t t[2];
	void *e[2];
	for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, late, &fd);
	for (int i = 0; i < 2; i++) pthread_join(t[i], &e[i]);
	// One connects; the other comes second, or waits for the same connection.
	int bad = e[0] && e[1];
	for (int i = 0; i < 2; i++) bad |= e[i] && e[i] != (void *)EISCONN && e[i] != (void *)EALREADY;
	printf("two threads: %s, %s\n", bad ? "WRONG" : "right", echo(fd));
	close(fd);
	int minus[3];
	for (int i = 0; i < 3; i++) {
		minus[i] = sock(0);
		r = connect(minus[i], &at[0].sa, alen);
		printf("%s ", err(r));
	}
	for (int i = 0; i < 3; i++) {
		printf("%s ", echo(minus[i]));
		close(minus[i]);
	}
	printf("\n");
}

int main(int argc, char **argv) {
	setvbuf(stdout, 0, _IOLBF, 0);
	family = atoi(argv[4]) == 6 ? AF_INET6 : AF_INET;
	for (int i = 0; i < 3; i++) {
		at[i].sa.sa_family = family;
		at[i].in.sin_port = htons(atoi(argv[1 + i]));
		alen = family == AF_INET ? sizeof at[i].in : sizeof at[i].in6;
		if (family == AF_INET) at[i].in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		else at[i].in6.sin6_addr = in6addr_loopback;
	}
	blocking();
	nonblocking();
	limits();
	wrong();
	shared();
	return 0;
}
