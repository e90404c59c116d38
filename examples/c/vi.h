/* What the three examples share: names for errors, memory with descriptors, addresses. */
#ifndef EXAMPLE_VI_H
#define EXAMPLE_VI_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vipl.h>

/* check ends the program if a call fails. */
#define check(call)                                                                        \
	do {                                                                               \
		VIP_RETURN r_ = (call);                                                    \
		if (r_ != VIP_SUCCESS) {                                                   \
			fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, r_); \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

/* Registered memory: some descriptors of 64 bytes, and data behind them. */
struct memory {
	VIP_DESCRIPTOR *d;
	char *data;
	VIP_MEM_HANDLE handle;
};

static inline void memory(struct memory *m, VIP_NIC_HANDLE nic, int descriptors, size_t bytes, int remote_writes) {
	VIP_MEM_ATTRIBUTES a = {NULL, remote_writes, VIP_FALSE};
	void *p;

	if (posix_memalign(&p, 4096, descriptors * sizeof *m->d + bytes) != 0)
		exit(1);
	memset(p, 0, descriptors * sizeof *m->d + bytes);
	check(VipRegisterMem(nic, p, descriptors * sizeof *m->d + bytes, &a, &m->handle));
	m->d = p;
	m->data = (char *)(m->d + descriptors);
}

/* message fills a descriptor with n bytes at p. */
static inline VIP_DESCRIPTOR *message(struct memory *m, int i, void *p, int n) {
	VIP_DESCRIPTOR *d = &m->d[i];

	memset(d, 0, sizeof *d);
	d->CS.SegCount = 1;
	d->CS.Length = n;
	d->DS[0].Local.Data.Address = p;
	d->DS[0].Local.Handle = m->handle;
	d->DS[0].Local.Length = n;
	return d;
}

/* An address with room for any. */
union address {
	VIP_NET_ADDRESS a;
	char room[64];
};

/* address is that of a host by name, or of the NIC itself, with a discriminator. */
static inline VIP_NET_ADDRESS *address(union address *a, VIP_NIC_HANDLE nic, const char *host, const char *discriminator) {
	VIP_NIC_ATTRIBUTES na;

	check(VipQueryNic(nic, &na));
	memset(a, 0, sizeof *a);
	a->a.HostAddressLen = na.NicAddressLen;
	memcpy(a->a.HostAddress, na.LocalNicAddress, na.NicAddressLen);
	if (host) {
		check(VipNSInit(nic, NULL));
		check(VipNSGetHostByName(nic, (char *)host, &a->a, 0));
	}
	a->a.DiscriminatorLen = strlen(discriminator);
	memcpy((char *)a->a.HostAddress + a->a.HostAddressLen, discriminator, strlen(discriminator));
	return &a->a;
}

static inline VIP_VI_HANDLE new_vi(VIP_NIC_HANDLE nic, VIP_CQ_HANDLE recv_cq) {
	VIP_VI_ATTRIBUTES a = {VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL, NULL, VIP_TRUE, VIP_FALSE};
	VIP_VI_HANDLE v;

	check(VipCreateVi(nic, &a, NULL, recv_cq, &v));
	return v;
}

static inline double seconds(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* call connects a VI with a server, which may not wait yet. */
static inline void call(VIP_NIC_HANDLE nic, VIP_VI_HANDLE v, const char *host, const char *discriminator) {
	union address local, remote;
	VIP_VI_ATTRIBUTES a;
	VIP_RETURN r;
	double end = seconds() + 10;

	do
		r = VipConnectRequest(v, address(&local, nic, NULL, "client"), address(&remote, nic, host, discriminator), 10000, &a);
	while (r == VIP_NO_MATCH && seconds() < end);
	check(r);
}

/* accept_one waits for a client and connects it with a VI. */
static inline void accept_one(VIP_NIC_HANDLE nic, VIP_VI_HANDLE v, const char *discriminator) {
	union address local, remote;
	VIP_VI_ATTRIBUTES a;
	VIP_CONN_HANDLE c;

	check(VipConnectWait(nic, address(&local, nic, NULL, discriminator), VIP_INFINITE, &remote.a, &a, &c));
	check(VipConnectAccept(c, v));
}

/* leave ends a connection: what is posted comes back, then the VI can go. */
static inline void leave(VIP_VI_HANDLE v) {
	VIP_DESCRIPTOR *d;

	check(VipDisconnect(v));
	do {
		d = NULL;
		VipRecvDone(v, &d);
	} while (d);
	do {
		d = NULL;
		VipSendDone(v, &d);
	} while (d);
	check(VipDestroyVi(v));
}

#endif
