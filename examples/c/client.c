/* A client of server.c: client NIC HOST MESSAGES sends so many of 1000 bytes, and one of none. */
#include "vi.h"

int main(int argc, char **argv) {
	VIP_NIC_HANDLE nic;
	VIP_VI_HANDLE v;
	VIP_DESCRIPTOR *d;
	struct memory m;
	int i, n;

	if (argc != 4 || (n = atoi(argv[3])) <= 0) {
		fprintf(stderr, "usage: client NIC HOST MESSAGES\n");
		return 2;
	}
	check(VipOpenNic(argv[1], &nic));
	memory(&m, nic, 2, 1000, VIP_FALSE);
	v = new_vi(nic, NULL);
	call(nic, v, argv[2], "server");
	for (i = 0; i <= n; i++) {
		if (i < n)
			check(VipPostRecv(v, message(&m, 0, m.data, 0), m.handle));
		check(VipPostSend(v, message(&m, 1, m.data, i < n ? 1000 : 0), m.handle));
		check(VipSendWait(v, 10000, &d));
		if (i < n)
			check(VipRecvWait(v, 10000, &d));
	}
	leave(v);
	check(VipCloseNic(nic));
	return 0;
}
