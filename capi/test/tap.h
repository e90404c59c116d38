/*
 * This header has the functions that all conformance programs need: output in the TAP format,
 * and setting up two connected VIs. The first argument of a program is the name of the NIC. The
 * default is /dev/via_lo.
 */
#ifndef TAP_H
#define TAP_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "vipl.h"

static int tap_n, tap_failed;
static const char *tap_nic = "/dev/via_lo";

#define ok(cond, ...) tap_ok(!!(cond), #cond, __LINE__, __VA_ARGS__)

#define tap_ok(cond, text, line, ...)                                               \
	do {                                                                        \
		int cond_ = (cond);                                                 \
		tap_n++;                                                            \
		printf("%sok %d - ", cond_ ? "" : "not ", tap_n);                   \
		printf(__VA_ARGS__);                                                \
		printf("\n");                                                       \
		if (!cond_) {                                                       \
			tap_failed++;                                               \
			printf("# %s:%d: %s\n", __FILE__, line, text);              \
		}                                                                   \
		fflush(stdout);                                                     \
	} while (0)

/* code compares a return code with the expected one, and prints it if they differ. */
#define code(call, want, ...)                                                       \
	do {                                                                        \
		int got_ = (call), want_ = (want);                                  \
		tap_ok(got_ == want_, #call, __LINE__, __VA_ARGS__);                \
		if (got_ != want_)                                                  \
			printf("# returned %d, expected %d\n", got_, want_);        \
	} while (0)

/* need ends the program if r is an error, because the steps that follow depend on this one. */
#define need(call)                                                                  \
	do {                                                                        \
		int need_ = (call);                                                 \
		if (need_ != VIP_SUCCESS) {                                         \
			printf("Bail out! %s:%d: %s returned %d\n", __FILE__, __LINE__, #call, need_); \
			exit(1);                                                    \
		}                                                                   \
	} while (0)

static int tap_end(void) {
	printf("1..%d\n", tap_n);
	return tap_failed != 0;
}

/*
 * Each case of a program runs in a process of its own. The second argument is the name of the
 * case. Without it, the program lists its cases.
 */
struct tap_case {
	const char *name;
	void (*run)(void);
};

static inline int tap_case(int argc, char **argv, const struct tap_case *cases, size_t n) {
	size_t i;

	if (argc > 1)
		tap_nic = argv[1];
	for (i = 0; i < n; i++) {
		if (argc < 3) {
			printf("%s\n", cases[i].name);
		} else if (strcmp(argv[2], cases[i].name) == 0) {
			cases[i].run();
			return tap_end();
		}
	}
	return argc < 3 ? 0 : 2;
}

static long long tap_ms(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static inline void tap_nap(int ms) {
	struct timespec t = {0, ms * 1000000L};

	nanosleep(&t, NULL);
}

#define PATIENCE 60000 /* time limit in ms; on an idle machine these steps take less than 1 ms */

/* eventually waits for a condition. Once it was true, it is not evaluated again. */
#define eventually(cond)                                                            \
	__extension__({                                                             \
		long long end_ = tap_ms() + PATIENCE;                               \
		int came_;                                                          \
		while (!(came_ = !!(cond)) && tap_ms() < end_)                      \
			tap_nap(1);                                                 \
		came_;                                                              \
	})

/* ---- Memory with descriptors -------------------------------------------- */

#define DESCS 64
#define ROOM (64 * 1024)

struct mem {
	VIP_NIC_HANDLE nic;
	char *base; /* DESCS descriptors of 256 bytes each, followed by ROOM bytes of data */
	size_t size;
	VIP_MEM_HANDLE h;
};

static inline VIP_DESCRIPTOR *desc(struct mem *m, int i) { return (VIP_DESCRIPTOR *)(m->base + 256 * i); }

static inline char *data(struct mem *m) { return m->base + 256 * DESCS; }

static inline void mem_open(struct mem *m, VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE tag, int rdma) {
	VIP_MEM_ATTRIBUTES a = {tag, rdma, rdma};

	m->nic = nic;
	m->size = 256 * DESCS + ROOM;
	if (posix_memalign((void **)&m->base, 4096, m->size) != 0)
		exit(1);
	memset(m->base, 0, m->size);
	need(VipRegisterMem(nic, m->base, m->size, &a, &m->h));
}

static inline void mem_close(struct mem *m) {
	need(VipDeregisterMem(m->nic, m->base, m->h));
	free(m->base);
}

/* simple fills descriptor i with one segment: n bytes at offset off of the data. */
static inline VIP_DESCRIPTOR *simple(struct mem *m, int i, int off, int n) {
	VIP_DESCRIPTOR *d = desc(m, i);

	memset(d, 0, 64);
	d->CS.SegCount = 1;
	d->CS.Length = n;
	d->DS[0].Local.Data.Address = data(m) + off;
	d->DS[0].Local.Handle = m->h;
	d->DS[0].Local.Length = n;
	return d;
}

/*
 * rdma fills descriptor i with an RDMA operation on n bytes, between offset off of the data and
 * remote memory.
 */
static inline VIP_DESCRIPTOR *rdma(struct mem *m, int i, int op, int off, int n, void *remote, VIP_MEM_HANDLE h) {
	VIP_DESCRIPTOR *d = desc(m, i);

	memset(d, 0, 64);
	d->CS.SegCount = 2;
	d->CS.Control = op;
	d->CS.Length = n;
	d->DS[0].Remote.Data.Address = remote;
	d->DS[0].Remote.Handle = h;
	d->DS[1].Local.Data.Address = data(m) + off;
	d->DS[1].Local.Handle = m->h;
	d->DS[1].Local.Length = n;
	return d;
}

/* ---- Connections -------------------------------------------------------- */

/* This has room for the address of a NIC with a discriminator. */
struct addr {
	VIP_NET_ADDRESS a;
	char more[64];
};

static inline VIP_NET_ADDRESS *address(struct addr *a, VIP_NIC_HANDLE nic, const char *disc) {
	VIP_NIC_ATTRIBUTES na;

	need(VipQueryNic(nic, &na));
	memset(a, 0, sizeof *a);
	a->a.HostAddressLen = na.NicAddressLen;
	a->a.DiscriminatorLen = strlen(disc);
	memcpy(a->a.HostAddress, na.LocalNicAddress, na.NicAddressLen);
	memcpy((char *)a->a.HostAddress + na.NicAddressLen, disc, strlen(disc));
	return &a->a;
}

static inline VIP_VI_ATTRIBUTES vi_attrs(int level, VIP_PROTECTION_HANDLE tag) {
	VIP_VI_ATTRIBUTES a;

	memset(&a, 0, sizeof a);
	a.ReliabilityLevel = level;
	a.Ptag = tag;
	a.EnableRdmaWrite = VIP_TRUE;
	a.EnableRdmaRead = level != VIP_SERVICE_UNRELIABLE;
	return a;
}

struct server {
	pthread_t t;
	VIP_NIC_HANDLE nic;
	VIP_VI_HANDLE vi;
	const char *disc;
	VIP_RETURN r;
};

static void *server_run(void *p) {
	struct server *s = p;
	struct addr local, remote;
	VIP_VI_ATTRIBUTES a;
	VIP_CONN_HANDLE c;

	s->r = VipConnectWait(s->nic, address(&local, s->nic, s->disc), PATIENCE, &remote.a, &a, &c);
	if (s->r == VIP_SUCCESS)
		s->r = VipConnectAccept(c, s->vi);
	return NULL;
}

/*
 * connect_pair connects client, a VI of one NIC, with server, a VI of the same or another NIC.
 */
static inline void connect_pair(VIP_NIC_HANDLE cnic, VIP_VI_HANDLE client, VIP_NIC_HANDLE snic, VIP_VI_HANDLE server) {
	static int n;
	char disc[16];
	struct server s = {0, snic, server, disc, 0};
	struct addr local, remote;
	VIP_VI_ATTRIBUTES a;
	VIP_RETURN r;
	long long end = tap_ms() + PATIENCE;

	snprintf(disc, sizeof disc, "pair%d.%d", (int)getpid() % 10000, __sync_add_and_fetch(&n, 1));
	pthread_create(&s.t, NULL, server_run, &s);
	while ((r = VipConnectRequest(client, address(&local, cnic, "caller"), address(&remote, snic, disc), PATIENCE, &a)) == VIP_NO_MATCH && tap_ms() < end)
		tap_nap(10);
	need(r);
	pthread_join(s.t, NULL);
	need(s.r);
}

/* empty takes all descriptors from both queues of a VI and returns their number. */
static inline int empty(VIP_VI_HANDLE vi) {
	VIP_DESCRIPTOR *d;
	int n = 0;

	for (;;) {
		d = NULL;
		VipRecvDone(vi, &d);
		if (!d)
			break;
		n++;
	}
	for (;;) {
		d = NULL;
		VipSendDone(vi, &d);
		if (!d)
			break;
		n++;
	}
	return n;
}

#endif
