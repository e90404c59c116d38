/*
 * This is the smallest useful program: it opens a NIC, connects two VIs and sends thirteen
 * bytes.
 */
#include "tap.h"

int main(int argc, char **argv) {
	VIP_NIC_HANDLE nic;
	VIP_VI_HANDLE a, b;
	VIP_VI_ATTRIBUTES attrs;
	VIP_DESCRIPTOR *d;
	struct mem m;

	if (argc > 1)
		tap_nic = argv[1];
	code(VipOpenNic(tap_nic, &nic), VIP_SUCCESS, "open %s", tap_nic);
	attrs = vi_attrs(VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	code(VipCreateVi(nic, &attrs, NULL, NULL, &a), VIP_SUCCESS, "create a VI");
	code(VipCreateVi(nic, &attrs, NULL, NULL, &b), VIP_SUCCESS, "create another");
	mem_open(&m, nic, NULL, 0);
	code(VipPostRecv(b, simple(&m, 0, 0, 100), m.h), VIP_SUCCESS, "post a receive");
	connect_pair(nic, a, nic, b);
	memcpy(data(&m) + 200, "hello, memory", 13);
	code(VipPostSend(a, simple(&m, 1, 200, 13), m.h), VIP_SUCCESS, "post a send");
	code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "the send is done");
	ok(d == desc(&m, 1), "it is the descriptor that was posted");
	code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "the receive is done");
	ok(d == desc(&m, 0) && d->CS.Length == 13 && memcmp(data(&m), "hello, memory", 13) == 0, "it has the thirteen bytes");
	ok(d->CS.Status == (VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE), "its status says so");
	code(VipDisconnect(a), VIP_SUCCESS, "disconnect");
	code(VipDisconnect(b), VIP_SUCCESS, "disconnect the other");
	code(VipDestroyVi(a), VIP_SUCCESS, "destroy");
	code(VipDestroyVi(b), VIP_SUCCESS, "destroy the other");
	mem_close(&m);
	code(VipCloseNic(nic), VIP_SUCCESS, "close");
	return tap_end();
}
