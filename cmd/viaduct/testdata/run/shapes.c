// Programs of every shape that a supervisor meets: WHAT and its arguments. The
// exit code is 0 if all was right; what was wrong is said on standard error.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(c, ...) do { if (!(c)) { int e = errno; fprintf(stderr, "line %d: ", __LINE__); fprintf(stderr, __VA_ARGS__); fprintf(stderr, " (%s)\n", strerror(e)); _exit(9); } } while (0)

static struct sockaddr_in at(int port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	return a;
}

static int all(int fd, char *b, int n, int out) {
	for (int done = 0, r; done < n; done += r) {
		r = out ? write(fd, b + done, n - done) : read(fd, b + done, n - done);
		if (r < 0 && errno == EINTR) { r = 0; continue; }
		if (r <= 0) return r ? -1 : done;
	}
	return n;
}

// echo sends 64 bytes of a connection's own to an echo server.
static void echo(int fd) {
	char b[64], g[64];
	for (int i = 0; i < sizeof b; i++) b[i] = rand() ^ getpid() ^ i;
	CHECK(all(fd, b, sizeof b, 1) == sizeof b, "write");
	int n = all(fd, g, sizeof g, 0);
	CHECK(n == sizeof g, "read gave %d", n);
	CHECK(!memcmp(b, g, sizeof b), "wrong bytes");
}

// name checks the peer's address.
static void name(int fd, int port) {
	struct sockaddr_in p = {0};
	socklen_t n = sizeof p;
	CHECK(!getpeername(fd, (void *)&p, &n), "getpeername");
	CHECK(ntohs(p.sin_port) == port, "peer is port %d", ntohs(p.sin_port));
}

static int dial(int port) {
	struct sockaddr_in a = at(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0, "socket");
	CHECK(!connect(fd, (void *)&a, sizeof a), "connect");
	name(fd, port);
	return fd;
}

static void try(int port) {
	int fd = dial(port);
	echo(fd);
	close(fd);
}

static int listener(int port, int share) {
	struct sockaddr_in a = at(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (share) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
	CHECK(!bind(fd, (void *)&a, sizeof a), "bind");
	CHECK(!listen(fd, 128), "listen");
	return fd;
}

// serve1 takes one connection: 8 bytes come back, and behind them the peer's port
// as accept and getpeername tell it, and a mark.
static int serve1(int l, int mark) {
	struct sockaddr_in p, q;
	socklen_t pn = sizeof p, qn = sizeof q;
	int c = accept(l, (void *)&p, &pn);
	if (c < 0) return -1;
	char b[16] = {0};
	if (all(c, b, 8, 0) == 8) {
		CHECK(!getpeername(c, (void *)&q, &qn), "getpeername");
		memcpy(b + 8, &p.sin_port, 2);
		memcpy(b + 10, &q.sin_port, 2);
		memcpy(b + 12, &mark, 4);
		all(c, b, 16, 1);
	}
	close(c);
	return 0;
}

// told waits for a byte of standard input.
static void told(void) {
	char c;
	CHECK(read(0, &c, 1) == 1, "no word to go on");
}

// detach leaves main behind, as daemon(3) does. It is told when to begin, and when main has ended.
static void detach(void) {
	told();
	pid_t p = fork();
	CHECK(p >= 0, "fork");
	if (p) _exit(0);
	pid_t leader = getpid();
	CHECK(setsid() == leader, "setsid");
	p = fork();
	CHECK(p >= 0, "fork");
	if (p) _exit(0);
	while (getppid() == leader) usleep(1000);
	told();
}

static void *own_table(void *arg) {
	int port = *(int *)arg, number = 50;
	CHECK(!unshare(CLONE_FILES), "unshare");
	for (int i = 0; i < 20; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(dup2(fd, number) == number, "dup2");
		close(fd);
		struct sockaddr_in a = at(port);
		CHECK(!connect(number, (void *)&a, sizeof a), "connect");
		name(number, port);
		echo(number);
		close(number);
	}
	return 0;
}

static volatile int stop;

// A thread of the same table as main's, which uses the same number meanwhile.
static void *main_table(void *arg) {
	int port = *(int *)arg, number = 50;
	while (!stop) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(dup2(fd, number) == number, "dup2");
		close(fd);
		struct sockaddr_in a = at(port);
		CHECK(!connect(number, (void *)&a, sizeof a), "connect");
		name(number, port);
		echo(number);
		close(number);
	}
	return 0;
}

static void fill(int limit, int *fds, int *n) {
	struct rlimit r = {limit, limit};
	CHECK(!setrlimit(RLIMIT_NOFILE, &r), "setrlimit");
	for (*n = 0; (fds[*n] = open("/dev/null", O_RDONLY)) >= 0; ++*n) ;
	CHECK(errno == EMFILE, "open");
}

// held opens connections without waiting, 50 at a time. One of ten is closed while it
// connects, and one soon after; it returns how many of the others were used.
static int held(int port, int count, int family) {
	struct sockaddr_in a4 = at(port);
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT}, p;
	struct sockaddr *a = family == 6 ? (void *)&a6 : (void *)&a4;
	socklen_t len = family == 6 ? sizeof a6 : sizeof a4, n;
	enum { wave = 50 };
	int used = 0;
	for (int done = 0; done < count; done += wave) {
		int fd[wave];
		for (int i = 0; i < wave; i++) {
			fd[i] = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
			CHECK(connect(fd[i], a, len) < 0 && errno == EINPROGRESS, "connect %d", done + i);
			n = sizeof p;
			// By now it may be connected, if the machine is slow.
			CHECK(getpeername(fd[i], (void *)&p, &n) < 0 ? errno == ENOTCONN : p.sin6_port == a6.sin6_port, "peer of %d", done + i);
			struct pollfd o = {fd[i], POLLOUT};
			if (i % 10 == 3 || (i % 10 == 7 && poll(&o, 1, 1) == 0)) {
				close(fd[i]);
				fd[i] = -1;
			}
		}
		for (int i = 0; i < wave; i++) {
			struct pollfd o = {fd[i], POLLOUT};
			int failed = -1;
			if (fd[i] < 0) continue;
			CHECK(poll(&o, 1, 60000) == 1, "open %d does not end", done + i);
			n = sizeof failed;
			CHECK(!getsockopt(fd[i], SOL_SOCKET, SO_ERROR, &failed, &n) && !failed, "open %d: error %d", done + i, failed);
			fcntl(fd[i], F_SETFL, 0);
			n = sizeof p;
			CHECK(!getpeername(fd[i], (void *)&p, &n) && n == len && p.sin6_port == a6.sin6_port, "peer of %d", done + i);
			echo(fd[i]);
			close(fd[i]);
			used++;
		}
	}
	return used;
}

static void tick(int s) { (void)s; }

static void storm(int us, int restart) {
	struct sigaction sa = {.sa_handler = tick, .sa_flags = restart ? SA_RESTART : 0};
	sigaction(SIGALRM, &sa, 0);
	struct itimerval it = {{0, us}, {0, us}};
	setitimer(ITIMER_REAL, &it, 0);
}

// patient_connect connects as a program does that takes signals into account.
static int patient_connect(int fd, struct sockaddr_in *a) {
	if (!connect(fd, (void *)a, sizeof *a)) return 0;
	if (errno != EINTR) return -1;
	struct pollfd p = {fd, POLLOUT};
	while (poll(&p, 1, -1) < 0) if (errno != EINTR) return -1;
	int e = -1;
	socklen_t n = sizeof e;
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n);
	errno = e;
	return e ? -1 : 0;
}

// foreign makes calls by the interfaces of other processors: that of i386 passes unseen,
// that of x32 does not exist.
static void foreign(int fd) {
#ifdef __x86_64__
	CHECK(syscall(SYS_connect | 0x40000000, fd, 0, 0) < 0 && errno == ENOSYS, "connect of x32");
	if (!fork()) { // a system without the interface kills what uses it
		int r;
		__asm__ volatile("int $0x80" : "=a"(r) : "a"(362 /* connect */), "b"(-1), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
		_exit(r == -EBADF ? 0 : 1); // the kernel's own answer
	}
	int st;
	wait(&st);
	if (WIFSIGNALED(st)) printf("no i386\n");
	else CHECK(!st, "connect of i386");
#endif
}

int main(int argc, char **argv) {
	const char *what = argv[1];
	int a2 = argc > 2 ? atoi(argv[2]) : 0, a3 = argc > 3 ? atoi(argv[3]) : 0;
	setvbuf(stdout, 0, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(what, "connect")) { // PORT TIMES
		for (int i = 0; i < a3; i++) try(a2);
	} else if (!strcmp(what, "daemon")) { // PORT FILE: a client
		detach();
		try(a2);
		FILE *f = fopen(argv[3], "w");
		fprintf(f, "%d\n", (int)getpid());
		fclose(f);
	} else if (!strcmp(what, "daemon-server")) { // PORT: one connection
		detach();
		int l = listener(a2, 0);
		CHECK(!serve1(l, 7), "accept");
	} else if (!strcmp(what, "accept-told")) { // PORT: one connection for each byte that is read
		int l = listener(a2, 0);
		for (char c; read(0, &c, 1) == 1;) CHECK(!serve1(l, 3), "accept");
	} else if (!strcmp(what, "accept-edge")) { // PORT: told to, it accepts until nothing is left, and serves what it got
		int l = listener(a2, 0), e = epoll_create1(0), c[1024];
		struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
		fcntl(l, F_SETFL, O_NONBLOCK);
		CHECK(!epoll_ctl(e, EPOLL_CTL_ADD, l, &ev), "epoll_ctl");
		for (char x; read(0, &x, 1) == 1;) {
			CHECK(epoll_wait(e, &ev, 1, 60000) == 1, "no arrival");
			int n = 0;
			while ((c[n] = accept(l, 0, 0)) >= 0) n++;
			CHECK(errno == EAGAIN, "accept");
			printf("%d\n", n);
			for (int i = 0; i < n; i++) {
				char b[32];
				if (all(c[i], b, sizeof b, 0) == sizeof b) all(c[i], b, sizeof b, 1);
				close(c[i]);
			}
		}
	} else if (!strcmp(what, "flap")) { // PORT COUNT: a listener that is closed and opened again and again
		for (int i = 0; i < a3; i++) {
			int l = listener(a2, 0);
			struct pollfd p = {l, POLLIN};
			CHECK(poll(&p, 1, 60000) == 1, "listener %d gets no connection", i);
			serve1(l, i);
			close(l);
		}
	} else if (!strcmp(what, "held")) { // PORT COUNT FAMILY: told to, it opens connections without waiting
		int family = atoi(argv[4]);
		printf("%d\n", held(a2, 50, family)); // as much as is kept for later is there then
		for (char c; read(0, &c, 1) == 1;) printf("%d\n", held(a2, a3, family));
	} else if (!strcmp(what, "wait-connect")) { // PORT
		struct sockaddr_in a = at(a2);
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		printf("waiting\n");
		CHECK(!connect(fd, (void *)&a, sizeof a), "connect");
	} else if (!strcmp(what, "wait-accept")) { // PORT
		int l = listener(a2, 0);
		printf("waiting\n");
		CHECK(accept(l, 0, 0) >= 0, "accept");
	} else if (!strcmp(what, "option-told")) { // PORT: sets an option for each byte that is read
		int fd = dial(a2), one = 1;
		printf("connected\n");
		for (char c; read(0, &c, 1) == 1;)
			printf("%s\n", setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) ? strerrorname_np(errno) : "ok");
	} else if (!strcmp(what, "prefork")) { // PORT SHARED
		int l = a3 ? listener(a2, 0) : -1;
		pid_t p[4];
		signal(SIGCHLD, SIG_IGN);
		for (int i = 0; i < 4; i++)
			if (!(p[i] = fork())) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				if (!a3) l = listener(a2, 1);
				for (;;) CHECK(!serve1(l, i), "accept");
			}
		printf("%d\n", (int)p[0]);
		for (;;) pause();
	} else if (!strcmp(what, "reopen")) { // PORT
		for (int i = 0; i < 3; i++) {
			int l = listener(a2, 0);
			printf("listening\n");
			CHECK(!serve1(l, i), "accept");
			close(l);
			printf("closed\n");
			told();
		}
	} else if (!strcmp(what, "own-table")) { // PORT PORT2
		pthread_t t[2];
		pthread_create(&t[0], 0, own_table, &a2);
		pthread_create(&t[1], 0, main_table, &a3);
		pthread_join(t[0], 0);
		stop = 1;
		pthread_join(t[1], 0);
	} else if (!strcmp(what, "undumpable")) { // PORT LISTENPORT
		int l = listener(a3, 0);
		CHECK(!prctl(PR_SET_DUMPABLE, 0), "prctl");
		try(a2);
		printf("connected\n");
		for (;;) CHECK(!serve1(l, 3), "accept");
	} else if (!strcmp(what, "setuid")) { // PORT LISTENPORT
		int l = listener(a3, 0);
		CHECK(!setgroups(0, 0) && !setgid(65534) && !setuid(65534), "setuid");
		try(a2);
		printf("connected\n");
		CHECK(!serve1(l, 3), "accept");
	} else if (!strcmp(what, "emfile")) { // PORT LISTENPORT
		int l = listener(a3, 0), fds[1024], n, s = socket(AF_INET, SOCK_STREAM, 0);
		fill(64, fds, &n);
		// A connect needs no number.
		struct sockaddr_in a = at(a2);
		CHECK(!connect(s, (void *)&a, sizeof a), "connect with a full table");
		echo(s);
		printf("connected\n");
		struct pollfd p = {l, POLLIN};
		CHECK(poll(&p, 1, 30000) == 1, "no arrival");
		for (int i = 0; i < 3; i++) {
			CHECK(accept(l, 0, 0) < 0 && errno == EMFILE, "accept with a full table");
			usleep(20000);
		}
		close(fds[--n]);
		CHECK(!serve1(l, 3), "accept");
	} else if (!strcmp(what, "many")) { // PORT COUNT: open together; then one more
		int *fd = calloc(a3, sizeof *fd);
		for (int i = 0; i < a3; i++) fd[i] = dial(a2);
		for (int i = 0; i < a3; i++) name(fd[i], a2);
		for (int i = 0; i < a3; i++) echo(fd[i]);
		for (int i = 0; i < a3; i++) close(fd[i]);
		printf("closed\n");
		told();
		try(a2);
	} else if (!strcmp(what, "serve-many")) { // PORT: echoes everything
		int l = listener(a2, 0), n = 0;
		struct pollfd p[1024] = {{l, POLLIN}};
		for (n = 1;;) {
			poll(p, n, -1);
			for (int i = n - 1; i > 0; i--) {
				char b[4096];
				if (!p[i].revents) continue;
				int r = read(p[i].fd, b, sizeof b);
				if (r > 0 && all(p[i].fd, b, r, 1) == r) continue;
				close(p[i].fd);
				p[i] = p[--n];
			}
			if (p[0].revents) {
				int c = accept(l, 0, 0);
				CHECK(c >= 0 || errno == ECONNABORTED || errno == EMFILE, "accept");
				if (c >= 0) p[n++] = (struct pollfd){c, POLLIN};
				else usleep(10000);
			}
		}
	} else if (!strcmp(what, "storm")) { // PORT COUNT US RESTART
		storm(atoi(argv[4]), atoi(argv[5]));
		for (int i = 0; i < a3; i++) {
			struct sockaddr_in a = at(a2), p;
			socklen_t n = sizeof p;
			int fd = socket(AF_INET, SOCK_STREAM, 0), r;
			do {
				CHECK(!patient_connect(fd, &a), "connect %d", i);
				while ((r = getpeername(fd, (void *)&p, &n)) && errno == EINTR) ;
			} while (r && errno == ENOTCONN); // documented: interrupted before it began
			CHECK(!r && p.sin_port == a.sin_port, "peer of %d is port %d", i, ntohs(p.sin_port));
			echo(fd);
			close(fd);
		}
	} else if (!strcmp(what, "filter")) { // PORT: calls that are refused, so that programs fall back
		struct sockaddr_in a = at(a2);
		char x = 'x', room[200] = {0};
		struct iovec v = {&x, 1};
		struct mmsghdr m = {.msg_hdr = {.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &v, .msg_iovlen = 1}};
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(syscall(SYS_io_uring_setup, 4, room) < 0 && errno == ENOSYS, "io_uring_setup");
		CHECK(sendto(fd, &x, 1, MSG_FASTOPEN, (void *)&a, sizeof a) < 0 && errno == EOPNOTSUPP, "sendto");
		CHECK(sendmsg(fd, &m.msg_hdr, MSG_FASTOPEN) < 0 && errno == EOPNOTSUPP, "sendmsg");
		CHECK(sendmmsg(fd, &m, 1, MSG_FASTOPEN) < 0 && errno == EOPNOTSUPP, "sendmmsg");
		CHECK(sendto(fd, &x, 1, MSG_NOSIGNAL, (void *)&a, sizeof a) < 0 && errno == EPIPE, "sendto without Fast Open");
		foreign(fd);
	} else if (!strcmp(what, "retry")) { // REFUSED ECHO: a second connect of a socket that was refused late
		struct sockaddr_in a = at(a2), b = at(a3);
		for (int seen = 0; seen < 2; seen++) {
			int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), r = connect(fd, (void *)&a, sizeof a);
			printf("connect: %s", r ? strerrorname_np(errno) : "ok");
			if (r && errno == ECONNREFUSED) { printf("\n"); close(fd); continue; }
			struct pollfd p = {fd, POLLOUT};
			r = poll(&p, 1, 30000);
			printf(", events %x", p.revents);
			if (seen) {
				int e = 0;
				socklen_t n = sizeof e;
				getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n);
				printf(", SO_ERROR %s", strerrorname_np(e));
			}
			r = connect(fd, (void *)&b, sizeof b);
			printf(", again %s", r ? strerrorname_np(errno) : "ok");
			fcntl(fd, F_SETFL, 0);
			r = connect(fd, (void *)&b, sizeof b);
			printf(", and again %s\n", r ? strerrorname_np(errno) : "ok");
			if (!r) echo(fd);
			close(fd);
		}
	} else {
		fprintf(stderr, "unknown: %s\n", what);
		return 2;
	}
	return 0;
}
