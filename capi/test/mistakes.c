/*
 * This program makes deliberate mistakes. A memory checker must report each of them, although it
 * cannot follow the half of the library that is written in Go. "mistakes NIC CASE" runs one case,
 * and "mistakes NIC" lists the cases. The case "none" makes no mistake and must not be reported.
 */
#include "tap.h"

static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE a, b;
static struct mem m;
static void (*volatile give_back)(void *) = free; /* volatile, so that the compiler does not see the mistake */

/* heap returns memory that was not written to. */
static void *heap(size_t n) {
	void *p = NULL;

	if (posix_memalign(&p, 4096, n) != 0)
		exit(1);
	return p;
}

static void open_pair(void) {
	VIP_VI_ATTRIBUTES at = vi_attrs(VIP_SERVICE_RELIABLE_DELIVERY, NULL);

	need(VipOpenNic(tap_nic, &nic));
	mem_open(&m, nic, NULL, 1);
	need(VipCreateVi(nic, &at, NULL, NULL, &a));
	need(VipCreateVi(nic, &at, NULL, NULL, &b));
	connect_pair(nic, a, nic, b);
}

/* pass sends the n bytes at p, which are registered with handle h. */
static void pass(void *p, VIP_MEM_HANDLE h, int n) {
	VIP_DESCRIPTOR *d = simple(&m, 1, 0, n);

	need(VipPostRecv(b, simple(&m, 0, 0, ROOM), m.h));
	d->DS[0].Local.Data.Address = p;
	d->DS[0].Local.Handle = h;
	need(VipPostSend(a, d, m.h));
	need(VipSendWait(a, PATIENCE, &d));
	need(VipRecvWait(b, PATIENCE, &d));
}

static void none(void) {
	open_pair();
	pass(data(&m), m.h, 64);
	pass(data(&m), m.h, 40000);
}

/* A handle is uninitialised. The C half reads it. */
static void handle(void) {
	VIP_NIC_HANDLE *h = heap(sizeof *h);
	VIP_NIC_ATTRIBUTES na;

	need(VipOpenNic(tap_nic, &nic));
	(void)VipQueryNic(*h, &na);
}

/* Attributes are uninitialised. The Go half reads them. */
static void attributes(void) {
	VIP_VI_ATTRIBUTES *at = heap(sizeof *at);

	need(VipOpenNic(tap_nic, &nic));
	at->Ptag = NULL;
	(void)VipCreateVi(nic, at, NULL, NULL, &a);
}

/* Uninitialised bytes are sent. The Go half passes them to a system call. */
static void payload(void) {
	VIP_MEM_HANDLE h;
	char *p = heap(40000);

	open_pair();
	need(VipRegisterMem(nic, p, 40000, NULL, &h));
	pass(p, h, 40000);
}

/* An uninitialised descriptor is posted. The Go half reads it. */
static void descriptor(void) {
	VIP_DESCRIPTOR *d = heap(4096);
	VIP_MEM_HANDLE h;

	open_pair();
	need(VipRegisterMem(nic, d, 4096, NULL, &h));
	(void)VipPostRecv(b, d, h);
}

/* A descriptor is posted after its memory was freed. The Go half reads it. */
static void freed(void) {
	VIP_DESCRIPTOR *d = heap(4096);
	VIP_MEM_HANDLE h;

	open_pair();
	memset(d, 0, 4096);
	need(VipRegisterMem(nic, d, 4096, NULL, &h));
	give_back(d);
	(void)VipPostRecv(b, d, h);
}

/* The result of a call is written to freed memory by the C half. */
static void result(void) {
	VIP_PROTECTION_HANDLE *tag = heap(sizeof *tag);

	need(VipOpenNic(tap_nic, &nic));
	give_back(tag);
	(void)VipCreatePtag(nic, tag);
}

/*
 * The result of a call is larger than its memory. The Go half writes beyond the end of that
 * memory.
 */
static void overrun(void) {
	char *p = malloc(sizeof(VIP_NIC_ATTRIBUTES) - 8);

	need(VipOpenNic(tap_nic, &nic));
	(void)VipQueryNic(nic, (VIP_NIC_ATTRIBUTES *)(void *)p);
}

static const struct tap_case cases[] = {
	{"none", none}, {"handle", handle}, {"attributes", attributes}, {"payload", payload},
	{"descriptor", descriptor}, {"freed", freed}, {"result", result}, {"overrun", overrun},
};

int main(int argc, char **argv) { return tap_case(argc, argv, cases, sizeof cases / sizeof *cases); }
