/*
 * A server for many clients with one completion queue: server NIC CLIENTS. It
 * adds up the bytes that each client sends until that sends none, and ends when
 * all have. client.c is the other side.
 */
#include "vi.h"

#define RECVS 4
#define SIZE 1024

struct client {
	VIP_VI_HANDLE v;
	struct memory m;
	unsigned long bytes;
};

int main(int argc, char **argv) {
	VIP_NIC_HANDLE nic;
	VIP_CQ_HANDLE cq;
	VIP_VI_HANDLE v;
	VIP_BOOLEAN recv;
	VIP_DESCRIPTOR *d;
	struct client *c, *all;
	int i, k, n, left;

	if (argc != 3 || (n = atoi(argv[2])) <= 0) {
		fprintf(stderr, "usage: server NIC CLIENTS\n");
		return 2;
	}
	check(VipOpenNic(argv[1], &nic));
	check(VipCreateCQ(nic, n * RECVS, &cq));
	all = calloc(n, sizeof *all);
	for (i = 0; i < n; i++) {
		c = &all[i];
		c->v = new_vi(nic, cq);
		VipSetUserData(c->v, c);
		memory(&c->m, nic, RECVS + 1, RECVS * SIZE, VIP_FALSE);
		for (k = 0; k < RECVS; k++)
			check(VipPostRecv(c->v, message(&c->m, k, c->m.data + k * SIZE, SIZE), c->m.handle));
		accept_one(nic, c->v, "server");
	}
	for (left = n; left > 0;) {
		check(VipCQWait(cq, 20000, &v, &recv));
		c = VipGetUserData(v);
		if (VipRecvDone(v, &d) == VIP_DESCRIPTOR_ERROR && d && d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR)
			continue; /* the receives of a client that has left */
		if (d->CS.Length == 0) {
			printf("a client sent %lu bytes\n", c->bytes);
			left--;
			continue;
		}
		c->bytes += d->CS.Length;
		k = d - c->m.d;
		check(VipPostRecv(v, message(&c->m, k, c->m.data + k * SIZE, SIZE), c->m.handle));
		/* The client sends one message for each answer, so that a receive is there for it. */
		check(VipPostSend(v, message(&c->m, RECVS, c->m.data, 0), c->m.handle));
		check(VipSendWait(v, 10000, &d));
	}
	for (i = 0; i < n; i++)
		leave(all[i].v);
	check(VipDestroyCQ(cq));
	check(VipCloseNic(nic));
	free(all);
	return 0;
}
