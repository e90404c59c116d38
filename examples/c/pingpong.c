/*
 * Ping-pong with Sends: pingpong NIC server COUNT, pingpong NIC HOST COUNT.
 * Each side has a receive posted before the other can send to it.
 */
#include "vi.h"

#define SIZE 64

int main(int argc, char **argv) {
	struct memory m;
	VIP_NIC_HANDLE nic;
	VIP_VI_HANDLE v;
	VIP_DESCRIPTOR *d;
	int i, n, server;
	double start;

	if (argc != 4 || (n = atoi(argv[3])) <= 0) {
		fprintf(stderr, "usage: pingpong NIC server|HOST COUNT\n");
		return 2;
	}
	server = strcmp(argv[2], "server") == 0;
	check(VipOpenNic(argv[1], &nic));
	memory(&m, nic, 2, 2 * SIZE, VIP_FALSE);
	v = new_vi(nic, NULL);
	check(VipPostRecv(v, message(&m, 0, m.data, SIZE), m.handle));
	if (server)
		accept_one(nic, v, "pingpong");
	else
		call(nic, v, argv[2], "pingpong");
	start = seconds();
	for (i = 0; i < n; i++) {
		if (!server) {
			snprintf(m.data + SIZE, SIZE, "ping %d", i);
			check(VipPostSend(v, message(&m, 1, m.data + SIZE, SIZE), m.handle));
			check(VipSendWait(v, 10000, &d));
		}
		check(VipRecvWait(v, 10000, &d));
		if (strncmp(m.data, server ? "ping " : "pong ", 5) != 0 || atoi(m.data + 5) != i) {
			fprintf(stderr, "round %d: %s\n", i, m.data);
			return 1;
		}
		if (i + 1 < n)
			check(VipPostRecv(v, message(&m, 0, m.data, SIZE), m.handle));
		if (server) {
			snprintf(m.data + SIZE, SIZE, "pong %d", i);
			check(VipPostSend(v, message(&m, 1, m.data + SIZE, SIZE), m.handle));
			check(VipSendWait(v, 10000, &d));
		}
	}
	printf("%d rounds, %.1f us each\n", n, (seconds() - start) * 1e6 / n);
	leave(v);
	check(VipCloseNic(nic));
	return 0;
}
