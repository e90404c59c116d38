// answers PORT CLOSED SILENT SILENT6: prints what the kernel, or what stands for it, answers to socket
// calls with addresses of every family and length and with sockets in every state. Something listens at
// PORT of 127.0.0.1 and ::1, nothing at CLOSED. A connect to SILENT of 127.0.0.1 or to SILENT6 of ::1
// stays without an answer.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int port, closed, silent, silent6;

typedef union {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	char room[128];
} addr;

static const char *name_of(int e) { return e ? strerrorname_np(e) : "ok"; }

static addr of(const char *ip, int p) {
	addr a;
	memset(&a, 0, sizeof a);
	if (strchr(ip, ':')) {
		a.in6.sin6_family = AF_INET6;
		a.in6.sin6_port = htons(p);
		inet_pton(AF_INET6, ip, &a.in6.sin6_addr);
	} else {
		a.in.sin_family = AF_INET;
		a.in.sin_port = htons(p);
		inet_pton(AF_INET, ip, &a.in.sin_addr);
	}
	return a;
}

static socklen_t length(addr *a) { return a->sa.sa_family == AF_INET6 ? sizeof a->in6 : sizeof a->in; }

// print_name prints a name without the port, which is another one each time unless it is PORT.
static void print_name(const char *what, int r, addr *a, socklen_t n) {
	char ip[64] = "";
	int p = -1;
	if (r == 0 && a->sa.sa_family == AF_INET) {
		inet_ntop(AF_INET, &a->in.sin_addr, ip, sizeof ip);
		p = ntohs(a->in.sin_port);
	} else if (r == 0) {
		inet_ntop(AF_INET6, &a->in6.sin6_addr, ip, sizeof ip);
		p = ntohs(a->in6.sin6_port);
	}
	printf(" %s %s %s%s %d", what, name_of(r ? errno : 0), ip, p == port ? ":PORT" : p > 0 ? ":some" : "", r ? 0 : (int)n);
}

static void print_names(int s) {
	addr a;
	socklen_t n = sizeof a;
	memset(&a, 0, sizeof a);
	int r = getsockname(s, &a.sa, &n);
	print_name("here", r, &a, n);
	n = sizeof a;
	r = getpeername(s, &a.sa, &n);
	print_name("there", r, &a, n);
}

// call connects and prints the answer, with what came of it if it takes its time.
static int call(int s, void *a, socklen_t n) {
	int e = connect(s, a, n) ? errno : 0;
	if (e == EINPROGRESS || e == EALREADY) {
		struct pollfd p = {s, POLLOUT, 0};
		poll(&p, 1, 60000);
		socklen_t el = sizeof e;
		getsockopt(s, SOL_SOCKET, SO_ERROR, &e, &el);
	}
	printf(" %s", name_of(e));
	return e;
}

static const char *kinds[] = {"inet", "inet6", "inet6only"};

static int make(int kind) {
	int s = socket(kind ? AF_INET6 : AF_INET, SOCK_STREAM, 0), on = kind == 2;
	if (kind) setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
	return s;
}

static const char *states[] = {"fresh", "nonblocking", "bound to any", "bound to loopback", "bound to mapped", "connected", "shut down", "listening", "refused before",
	"disconnected", "connecting"};
enum { fresh, nonblocking, bound_any, bound_loopback, bound_mapped, connected, shut, listening, refused, disconnected, connecting, nstates };

// bring brings a socket into a state; it is 0 if there is no such socket.
static int bring(int s, int kind, int state) {
	addr a = of(kind ? "::1" : "127.0.0.1", port), b;
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	switch (state) {
	case nonblocking:
		return fcntl(s, F_SETFL, O_NONBLOCK) == 0;
	case bound_any:
		b = of(kind ? "::" : "0.0.0.0", 0);
		return bind(s, &b.sa, length(&b)) == 0;
	case bound_loopback:
	case listening:
		b = of(kind ? "::1" : "127.0.0.1", 0);
		return bind(s, &b.sa, length(&b)) == 0 && (state != listening || listen(s, 5) == 0);
	case bound_mapped:
		b = of("::ffff:127.0.0.1", 0);
		return kind == 1 && bind(s, &b.sa, length(&b)) == 0;
	case connected:
	case shut:
	case disconnected:
		if (connect(s, &a.sa, length(&a))) return 0;
		if (state == shut) shutdown(s, SHUT_RDWR);
		if (state == disconnected) return connect(s, &none, sizeof none) == 0;
		return 1;
	case refused:
		b = of(kind ? "::1" : "127.0.0.1", closed);
		return connect(s, &b.sa, length(&b)) != 0;
	case connecting:
		fcntl(s, F_SETFL, O_NONBLOCK);
		b = kind ? of("::1", silent6) : of("127.0.0.1", silent);
		connect(s, &b.sa, length(&b));
		return errno == EINPROGRESS;
	}
	return 1;
}

static void connects(void) {
	static const char *ips[] = {"127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "255.255.255.255", "ff02::1", "fe80::1"};
	static const int lengths[] = {-1, 0, 1, 2, 8, 15, 16, 23, 24, 27, 28, 128, 129};
	for (int kind = 0; kind < 3; kind++) {
		for (int state = 0; state < nstates; state++) {
			for (unsigned i = 0; i < sizeof ips / sizeof *ips; i++) {
				if (state == connecting && i > 2) continue;
				int s = make(kind);
				addr a = of(ips[i], port);
				if (bring(s, kind, state)) {
					printf("connect %s, %s, to %s:", kinds[kind], states[state], ips[i]);
					if (state == connecting) printf(" %s", name_of(connect(s, &a.sa, length(&a)) ? errno : 0));
					else if (call(s, &a, length(&a)) == 0) print_names(s);
					printf("\n");
				}
				close(s);
			}
		}
		for (unsigned i = 0; i < 2; i++) {
			for (unsigned k = 0; k < sizeof lengths / sizeof *lengths; k++) {
				int s = make(kind);
				addr a = of(ips[i], port);
				printf("connect %s, to %s, length %d:", kinds[kind], ips[i], lengths[k]);
				call(s, &a, lengths[k]);
				printf("\n");
				close(s);
			}
		}
		for (int family = 0; family < 12; family++) {
			int s = make(kind);
			addr a = of("127.0.0.1", port);
			a.sa.sa_family = family;
			printf("connect %s, family %d, length 16:", kinds[kind], family);
			call(s, &a, 16);
			a.sa.sa_family = family;
			printf(", length 28:");
			close(s);
			s = make(kind);
			call(s, &a, 28);
			printf("\n");
			close(s);
		}
		int s = make(kind);
		printf("connect %s, to nowhere:", kinds[kind]);
		call(s, (void *)8, 28);
		close(s);
		call(s, (void *)8, 28);
		printf("\n");
	}
	addr a = of("127.0.0.1", port);
	printf("connect a file:");
	call(open("/dev/null", O_RDWR), &a, 16);
	printf("\n");
}

// names prints the names of a connected socket for every length of the room for them.
static void names(void) {
	for (int kind = 0; kind < 2; kind++) {
		int s = make(kind);
		bring(s, kind, connected);
		for (int room = -1; room < 32; room++) {
			for (int peer = 0; peer < 2; peer++) {
				addr a;
				memset(&a, 0x55, sizeof a);
				socklen_t n = room;
				int r = peer ? getpeername(s, &a.sa, &n) : getsockname(s, &a.sa, &n);
				int last = sizeof a;
				while (last > 0 && a.room[last - 1] == 0x55) last--;
				printf("name %s, room %d: %s %d %d\n", kinds[kind], room, name_of(r ? errno : 0), (int)n, r ? 0 : last > room ? last : room > (int)n ? (int)n : room);
			}
		}
		socklen_t n = 28;
		printf("name %s, nowhere: %s", kinds[kind], getpeername(s, (void *)8, &n) ? name_of(errno) : "ok");
		addr a;
		printf(" %s\n", getpeername(s, &a.sa, (void *)8) ? name_of(errno) : "ok");
		close(s);
	}
}

// accepts prints what accept answers when its arguments are odd, with and without a connection.
static void accepts(void) {
	for (int kind = 0; kind < 2; kind++) {
		for (int waits = 0; waits < 2; waits++) {
			for (int odd = 0; odd < 8; odd++) {
				int l = make(kind);
				if (!bring(l, kind, listening)) continue;
				fcntl(l, F_SETFL, O_NONBLOCK);
				addr a;
				socklen_t n = sizeof a;
				getsockname(l, &a.sa, &n);
				int c = make(kind);
				if (waits) {
					connect(c, &a.sa, n);
					struct pollfd p = {l, POLLIN, 0};
					poll(&p, 1, 60000);
				}
				int r = -1;
				memset(&a, 0, sizeof a);
				n = sizeof a;
				switch (odd) {
				case 0: r = accept(l, &a.sa, &n); break;
				case 1: r = accept(l, (void *)8, &n); break;
				case 2: r = accept(l, &a.sa, (void *)8); break;
				case 3: n = -1; r = accept(l, &a.sa, &n); break;
				case 4: n = 0; r = accept(l, &a.sa, &n); break;
				case 5: n = 5; r = accept(l, &a.sa, &n); break;
				case 6: r = accept4(l, &a.sa, &n, 0x10); break;
				case 7: r = accept(l, NULL, (void *)8); break;
				}
				printf("accept %s, %s, case %d: %s %d family %d\n", kinds[kind], waits ? "one waits" : "none waits", odd, name_of(r < 0 ? errno : 0), r < 0 ? 0 : (int)n, a.sa.sa_family);
				n = sizeof a;
				r = accept(l, &a.sa, &n);
				printf("  and again: %s\n", name_of(r < 0 ? errno : 0));
				close(l);
				close(c);
			}
		}
		for (int state = 0; state < nstates; state++) {
			int s = make(kind);
			if (bring(s, kind, state)) {
				if (state != listening) printf("accept %s, %s: %s", kinds[kind], states[state], accept(s, NULL, NULL) < 0 ? name_of(errno) : "ok");
				printf(" listen %s\n", listen(s, -1) ? name_of(errno) : "ok");
			}
			close(s);
		}
	}
}

int main(int argc, char **argv) {
	port = atoi(argv[1]);
	closed = atoi(argv[2]);
	silent = atoi(argv[3]);
	silent6 = atoi(argv[4]);
	connects();
	names();
	accepts();
	return 0;
}
