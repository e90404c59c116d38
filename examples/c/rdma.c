/*
 * RDMA Writes, seen by polling memory: rdma NIC server COUNT, rdma NIC HOST COUNT.
 * Both tell each other by a Send where their memory is. Then each writes its count
 * to the other's memory and polls its own for the answer. No receive is taken.
 */
#include "vi.h"

#define WORDS 256 /* the last is the flag: it is there when all others are */

struct place {
	VIP_UINT64 address;
	VIP_MEM_HANDLE handle;
};

/* arrived waits for a round's words; it is false if the last is there before another. */
static int arrived(volatile unsigned *in, unsigned round) {
	int k;

	while (in[WORDS - 1] != round)
		;
	for (k = 0; k < WORDS; k++)
		if (in[k] != round) {
			fprintf(stderr, "round %u: word %d is %u\n", round, k, in[k]);
			return 0;
		}
	return 1;
}

int main(int argc, char **argv) {
	struct memory m;
	struct place *mine, *theirs;
	volatile unsigned *in;
	unsigned *out;
	VIP_NIC_HANDLE nic;
	VIP_VI_HANDLE v;
	VIP_DESCRIPTOR *d;
	unsigned i, k, n;
	int server;
	double start;

	if (argc != 4 || (n = atoi(argv[3])) == 0) {
		fprintf(stderr, "usage: rdma NIC server|HOST COUNT\n");
		return 2;
	}
	server = strcmp(argv[2], "server") == 0;
	check(VipOpenNic(argv[1], &nic));
	memory(&m, nic, 2, 2 * WORDS * sizeof *in + 2 * sizeof *mine, VIP_TRUE);
	in = (volatile unsigned *)m.data;
	out = (unsigned *)m.data + WORDS;
	mine = (struct place *)(out + WORDS);
	theirs = mine + 1;
	v = new_vi(nic, NULL);
	check(VipPostRecv(v, message(&m, 0, theirs, sizeof *theirs), m.handle));
	if (server)
		accept_one(nic, v, "rdma");
	else
		call(nic, v, argv[2], "rdma");
	mine->address = (VIP_UINT64)(size_t)in;
	mine->handle = m.handle;
	check(VipPostSend(v, message(&m, 1, mine, sizeof *mine), m.handle));
	check(VipSendWait(v, 10000, &d));
	check(VipRecvWait(v, 10000, &d));
	start = seconds();
	for (i = 1; i <= n; i++) {
		if (server && !arrived(in, i))
			return 1;
		for (k = 0; k < WORDS; k++)
			out[k] = i;
		d = message(&m, 1, out, WORDS * sizeof *out);
		d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
		d->CS.SegCount = 2;
		d->DS[1] = d->DS[0];
		d->DS[0].Remote.Data.AddressBits = theirs->address;
		d->DS[0].Remote.Handle = theirs->handle;
		d->DS[0].Remote.Reserved = 0;
		check(VipPostSend(v, d, m.handle));
		if (!server && !arrived(in, i))
			return 1;
		check(VipSendWait(v, 10000, &d));
	}
	printf("%u rounds, %.1f us each\n", n, (seconds() - start) * 1e6 / n);
	leave(v);
	check(VipCloseNic(nic));
	return 0;
}
