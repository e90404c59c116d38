/*
 * This program tests every entry point of VIPL and the return codes of the checklist, with the
 * NIC that the first argument names. Each test family is a function. If there is a second
 * argument, only the family of that name runs.
 *
 * The checklist [VIA 8.3], and the families that test each item:
 *
 *   NULL and stale handles              handles; "callback" and "other-nic" of luck.c
 *   limits, reached and released        limits (tags, NICs), errors (descriptors); limits.c; "vis" of luck.c
 *   states and what each allows         states, connections, peers
 *   Done and Wait                       transfers, waits
 *   Done beside a Wait                  waits; "torn-down" of luck.c
 *   receives posted before, flushing    connections, states, rdma
 *   attributes that do not match        connections
 *   peers                               peers; neighbours.c
 *   NO_MATCH, REJECT, TIMEOUT           connections
 *   levels and errors [VIA 4.6]         wrong (at the initiator), matrix (at the target)
 *   segments and lengths                transfers, edges
 *   immediate data                      edges, transfers, rdma
 *   fence                               rdma
 *   tags and enables                    protection, attributes, errors
 *   edges of regions                    edges, rdma
 *   deregistration beside work          protection; "unmapped" of luck.c
 *   completion queues                   queues
 *   Notify                              notify; "notify" of luck.c
 *   asynchronous errors                 errors, matrix; "callback", "descriptor-unmapped" of luck.c
 *   names                               names
 *   wrong and overwritten descriptors   errors, edges
 *   more posts than a queue takes       errors
 */
#include "tap.h"

#define ANY ((void *)0x1234567)

static VIP_NIC_HANDLE nic;
static const int levels[] = {VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION};

static VIP_VI_HANDLE make(int level, VIP_CQ_HANDLE scq, VIP_CQ_HANDLE rcq) {
	VIP_VI_ATTRIBUTES a = vi_attrs(level, NULL);
	VIP_VI_HANDLE v;

	need(VipCreateVi(nic, &a, scq, rcq, &v));
	return v;
}

static void unmake(VIP_VI_HANDLE v) {
	VipDisconnect(v);
	empty(v);
	need(VipDestroyVi(v));
}

static VIP_VI_STATE state(VIP_VI_HANDLE v) {
	VIP_VI_STATE s = (VIP_VI_STATE)99;

	VipQueryVi(v, &s, NULL, NULL, NULL);
	return s;
}

static void nothing(VIP_PVOID c, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d) { (void)c, (void)n, (void)v, (void)d; }
static void cq_nothing(VIP_PVOID c, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_BOOLEAN r) { (void)c, (void)n, (void)v, (void)r; }

/* bad_handles calls every function with NULL and with a value that is not a handle. */
static void bad_handles(void) {
	VIP_VI_HANDLE v = make(2, NULL, NULL), gone, out;
	VIP_NIC_ATTRIBUTES na;
	VIP_VI_ATTRIBUTES va = vi_attrs(2, NULL);
	VIP_MEM_ATTRIBUTES ma = {NULL, 0, 0};
	VIP_MEM_HANDLE mh;
	VIP_CQ_HANDLE cq;
	VIP_CONN_HANDLE conn;
	VIP_DESCRIPTOR *d, *was = (VIP_DESCRIPTOR *)&mh;
	VIP_BOOLEAN b;
	VIP_ULONG len = 10;
	VIP_NIC_HANDLE n2;
	VIP_PROTECTION_HANDLE tag;
	VIP_AUTODISCOVERY_LIST list = {0, NULL, 0};
	struct addr l, r;
	struct mem m;
	char name[64];
	void *bad[4];
	int i;

	need(VipOpenNic(tap_nic, &n2));
	need(VipCreateCQ(nic, 4, &cq));
	mem_open(&m, nic, NULL, 0);
	address(&l, nic, "l");
	address(&r, nic, "r");
	gone = make(2, NULL, NULL);
	need(VipDestroyVi(gone));
	bad[0] = NULL;
	bad[1] = ANY;
	bad[2] = gone;
	bad[3] = n2; /* a handle of another kind, for all functions that do not expect that of a NIC */
	for (i = 0; i < 4; i++) {
		void *h = bad[i];
		void *hn = i == 3 ? v : h; /* for functions that expect a NIC */
#define BAD(call) code(call, VIP_INVALID_PARAMETER, "%s with handle %d", #call, i)
		BAD(VipCloseNic(hn));
		BAD(VipQueryNic(hn, &na));
		BAD(VipCreatePtag(hn, &tag));
		BAD(VipDestroyPtag(hn, ANY));
		BAD(VipDestroyPtag(nic, h));
		BAD(VipRegisterMem(hn, m.base, 10, &ma, &mh));
		BAD(VipDeregisterMem(hn, m.base, m.h));
		BAD(VipSetMemAttributes(hn, m.base, m.h, &ma));
		BAD(VipQueryMem(hn, m.base, m.h, &ma));
		BAD(VipCreateVi(hn, &va, NULL, NULL, &out));
		if (h) {
			BAD(VipCreateVi(nic, &va, h, NULL, &out));
			BAD(VipCreateVi(nic, &va, NULL, h, &out));
		}
		BAD(VipDestroyVi(h));
		BAD(VipSetViAttributes(h, &va));
		BAD(VipQueryVi(h, NULL, NULL, NULL, NULL));
		BAD(VipConnectWait(hn, &l.a, 0, &r.a, &va, &conn));
		BAD(VipConnectAccept(h, v));
		BAD(VipConnectReject(h));
		BAD(VipConnectRequest(h, &l.a, &r.a, 0, &va));
		BAD(VipDisconnect(h));
		BAD(VipConnectPeerRequest(h, &l.a, &r.a, 0));
		BAD(VipConnectPeerDone(h, &va));
		BAD(VipConnectPeerWait(h, &va));
		BAD(VipPostSend(h, desc(&m, 0), m.h));
		BAD(VipPostRecv(h, desc(&m, 0), m.h));
		d = was;
		BAD(VipSendDone(h, &d));
		BAD(VipRecvDone(h, &d));
		BAD(VipSendWait(h, 0, &d));
		BAD(VipRecvWait(h, VIP_INFINITE, &d));
		ok(d == was, "the output is untouched");
		BAD(VipSendNotify(h, NULL, nothing));
		BAD(VipRecvNotify(h, NULL, nothing));
		BAD(VipCreateCQ(hn, 1, &out));
		BAD(VipDestroyCQ(h));
		BAD(VipResizeCQ(h, 5));
		BAD(VipCQDone(h, &out, &b));
		BAD(VipCQWait(h, VIP_INFINITE, &out, &b));
		BAD(VipCQNotify(h, NULL, cq_nothing));
		BAD(VipErrorCallback(hn, NULL, NULL));
		BAD(VipQuerySystemManagementInfo(hn, VIP_SMI_AUTODISCOVERY, &list));
		BAD(VipNSInit(hn, NULL));
		BAD(VipNSGetHostByName(hn, name, &r.a, 0));
		BAD(VipNSGetHostByAddr(hn, &r.a, name, &len));
		BAD(VipNSShutdown(hn));
		BAD(VipPostDeferredSends(h, 0, &b));
		BAD(VipAddTagCQ(h, NULL, 0, 0));
		BAD(VipRemoveTagCQ(h, NULL, 0));
		ok(VipGetUserData(h) == NULL, "no user data of handle %d", i);
		VipSetUserData(h, ANY);
	}
	i = -1; /* from here on, pointers are NULL */
	BAD(VipOpenNic(NULL, &n2));
	BAD(VipOpenNic(tap_nic, NULL));
	BAD(VipOpenNic("no such NIC", &n2));
	BAD(VipOpenNic("", &n2));
	BAD(VipQueryNic(nic, NULL));
	BAD(VipCreatePtag(nic, NULL));
	BAD(VipRegisterMem(nic, NULL, 10, &ma, &mh));
	BAD(VipRegisterMem(nic, m.base, 0, &ma, &mh));
	BAD(VipRegisterMem(nic, m.base, ~0UL, &ma, &mh));
	BAD(VipRegisterMem(nic, m.base, 10, &ma, NULL));
	BAD(VipDeregisterMem(nic, m.base + 1, m.h));
	BAD(VipDeregisterMem(nic, m.base, 0));
	BAD(VipDeregisterMem(nic, m.base, m.h ^ 1));
	BAD(VipQueryMem(nic, m.base, m.h, NULL));
	BAD(VipQueryMem(nic, m.base + 1, m.h, &ma));
	BAD(VipSetMemAttributes(nic, m.base, m.h, NULL));
	BAD(VipCreateVi(nic, NULL, NULL, NULL, &out));
	BAD(VipCreateVi(nic, &va, NULL, NULL, NULL));
	BAD(VipSetViAttributes(v, NULL));
	BAD(VipConnectWait(nic, NULL, 0, &r.a, &va, &conn));
	BAD(VipConnectWait(nic, &l.a, 0, NULL, &va, &conn));
	BAD(VipConnectWait(nic, &l.a, 0, &r.a, &va, NULL));
	BAD(VipConnectRequest(v, NULL, &r.a, 0, &va));
	BAD(VipConnectRequest(v, &l.a, NULL, 0, &va));
	BAD(VipConnectPeerRequest(v, NULL, &r.a, 0));
	BAD(VipConnectPeerRequest(v, &l.a, NULL, 0));
	BAD(VipPostSend(v, NULL, m.h));
	BAD(VipPostRecv(v, NULL, m.h));
	BAD(VipSendDone(v, NULL));
	BAD(VipRecvDone(v, NULL));
	BAD(VipSendWait(v, 0, NULL));
	BAD(VipRecvWait(v, 0, NULL));
	BAD(VipSendNotify(v, NULL, NULL));
	BAD(VipRecvNotify(v, NULL, NULL));
	BAD(VipCreateCQ(nic, 1, NULL));
	BAD(VipCreateCQ(nic, 0, &out));
	BAD(VipCreateCQ(nic, ~0UL, &out));
	BAD(VipResizeCQ(cq, 0));
	BAD(VipCQDone(cq, NULL, &b));
	BAD(VipCQDone(cq, &out, NULL));
	BAD(VipCQWait(cq, 0, NULL, &b));
	BAD(VipCQNotify(cq, NULL, NULL));
	BAD(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, NULL));
	BAD(VipQuerySystemManagementInfo(nic, 7, &list));
	BAD(VipNSGetHostByName(nic, NULL, &r.a, 0));
	BAD(VipNSGetHostByName(nic, name, NULL, 0));
	BAD(VipNSGetHostByAddr(nic, NULL, name, &len));
	BAD(VipNSGetHostByAddr(nic, &r.a, NULL, &len));
	BAD(VipNSGetHostByAddr(nic, &r.a, name, NULL));
	need(VipQueryNic(nic, &na));
	l.a.DiscriminatorLen = na.MaxDiscriminatorLen + 1;
	BAD(VipConnectWait(nic, &l.a, 0, &r.a, &va, &conn));
	BAD(VipConnectRequest(v, &l.a, &r.a, 0, &va));

	/* The objects belong to another NIC handle. */
	need(VipCreatePtag(n2, &tag));
	va.Ptag = tag;
	code(VipCreateVi(nic, &va, NULL, NULL, &out), VIP_INVALID_PTAG, "a VI with the tag of another NIC");
	ma.Ptag = tag;
	code(VipRegisterMem(nic, m.base, 10, &ma, &mh), VIP_INVALID_PTAG, "memory with the tag of another NIC");
	BAD(VipDestroyPtag(nic, tag));
	BAD(VipDeregisterMem(n2, m.base, m.h));
	va.Ptag = NULL;
	BAD(VipCreateVi(n2, &va, cq, NULL, &out));
	need(VipDestroyPtag(n2, tag));
	BAD(VipDestroyPtag(n2, tag));
	va.Ptag = tag;
	code(VipCreateVi(n2, &va, NULL, NULL, &out), VIP_INVALID_PTAG, "a VI with a tag that is gone");
	code(VipAddTagCQ(cq, NULL, 0, 0), VIP_ERROR_NOT_SUPPORTED, "VipAddTagCQ");
	code(VipRemoveTagCQ(cq, NULL, 0), VIP_ERROR_NOT_SUPPORTED, "VipRemoveTagCQ");

	/* A NIC can be closed only once. */
	mem_close(&m);
	need(VipDestroyVi(v));
	BAD(VipDestroyVi(v));
	need(VipDestroyCQ(cq));
	BAD(VipDestroyCQ(cq));
	need(VipCloseNic(n2));
	BAD(VipCloseNic(n2));
}

static void attributes(void) {
	VIP_NIC_ATTRIBUTES na;
	VIP_VI_ATTRIBUTES a = vi_attrs(2, NULL), got;
	VIP_MEM_ATTRIBUTES ma = {NULL, VIP_TRUE, VIP_FALSE}, mgot;
	VIP_PROTECTION_HANDLE tag;
	VIP_VI_HANDLE v;
	VIP_BOOLEAN se, re, deferred = 7;
	struct mem m;

	need(VipQueryNic(nic, &na));
	ok(strcmp(na.Name, tap_nic) == 0, "the NIC has the name it was opened by");
	ok(na.ThreadSafe == VIP_TRUE, "it is thread safe");
	ok(na.NicAddressLen == 4 || na.NicAddressLen == 6 || na.NicAddressLen == 16 || na.NicAddressLen == 18, "length of its address");
	ok(na.LocalNicAddress != NULL, "its address");
	ok(na.MaxDiscriminatorLen >= 16, "length of discriminators, %d", na.MaxDiscriminatorLen);
	ok(na.MaxTransferSize >= 32768 && na.MaxTransferSize <= 65536, "transfer size, %lu", na.MaxTransferSize);
	ok(na.NativeMTU > 0 && na.NativeMTU <= na.MaxTransferSize, "MTU");
	ok(na.MaxDescriptorsPerQueue >= 1024 && na.MaxSegmentsPerDesc >= 252 && na.MaxVI >= 1024, "limits");
	ok(na.MaxCQ > 0 && na.MaxCQEntries >= 1024 && na.MaxPtags > 0 && na.MaxRegisterRegions > 0, "more limits");
	ok(na.ReliabilityLevelSupport == 7 && na.RDMAReadSupport == 6, "levels");

	need(VipCreatePtag(nic, &tag));
	a.Ptag = tag;
	a.MaxTransferSize = 5000;
	a.QoS = ANY;
	code(VipCreateVi(nic, &a, NULL, NULL, &v), VIP_SUCCESS, "a VI with a tag");
	code(VipQueryVi(v, NULL, &got, &se, &re), VIP_SUCCESS, "query it");
	ok(got.ReliabilityLevel == 2 && got.MaxTransferSize == 5000 && got.Ptag == tag && got.QoS == ANY &&
		got.EnableRdmaWrite == VIP_TRUE && got.EnableRdmaRead == VIP_TRUE, "its attributes");
	ok(se && re && state(v) == VIP_STATE_IDLE, "idle, with empty queues");
	code(VipDestroyPtag(nic, tag), VIP_ERROR_RESOURCE, "the tag is in use");
	a.ReliabilityLevel = 1;
	code(VipSetViAttributes(v, &a), VIP_INVALID_RDMAREAD, "RDMA Read of an unreliable VI");
	a.EnableRdmaRead = VIP_FALSE;
	a.Ptag = NULL;
	a.MaxTransferSize = 0;
	code(VipSetViAttributes(v, &a), VIP_SUCCESS, "other attributes");
	VipQueryVi(v, NULL, &got, NULL, NULL);
	ok(got.ReliabilityLevel == 1 && got.MaxTransferSize == na.MaxTransferSize && got.Ptag == NULL, "are there");
	code(VipDestroyPtag(nic, tag), VIP_SUCCESS, "the tag is free");
	a.MaxTransferSize = na.MaxTransferSize + 1;
	code(VipSetViAttributes(v, &a), VIP_INVALID_MTU, "too long transfers");
	a.MaxTransferSize = 0;
	a.ReliabilityLevel = 3;
	code(VipSetViAttributes(v, &a), VIP_INVALID_RELIABILITY_LEVEL, "two levels");
	a.ReliabilityLevel = 0;
	code(VipSetViAttributes(v, &a), VIP_INVALID_RELIABILITY_LEVEL, "no level");
	a.ReliabilityLevel = 2 | VIP_SERVICE_DFC;
	code(VipSetViAttributes(v, &a), VIP_SUCCESS, "descriptor flow control");
	VipQueryVi(v, NULL, &got, NULL, NULL);
	ok(got.ReliabilityLevel == (2 | VIP_SERVICE_DFC), "is told");
	code(VipPostDeferredSends(v, VIP_FALSE, &deferred), VIP_SUCCESS, "nothing is deferred");
	ok(deferred == VIP_FALSE, "at all");
	ok(VipGetUserData(v) == NULL, "no user data");
	VipSetUserData(v, ANY);
	ok(VipGetUserData(v) == ANY, "user data");
	need(VipDestroyVi(v));
	a.Ptag = ANY;
	code(VipCreateVi(nic, &a, NULL, NULL, &v), VIP_INVALID_PTAG, "a tag that is none");

	mem_open(&m, nic, NULL, 0);
	code(VipSetMemAttributes(nic, m.base, m.h, &ma), VIP_SUCCESS, "attributes of memory");
	code(VipQueryMem(nic, m.base, m.h, &mgot), VIP_SUCCESS, "are asked");
	ok(mgot.Ptag == NULL && mgot.EnableRdmaWrite == VIP_TRUE && mgot.EnableRdmaRead == VIP_FALSE, "and are those");
	ma.Ptag = ANY;
	code(VipSetMemAttributes(nic, m.base, m.h, &ma), VIP_INVALID_PTAG, "memory with a tag that is none");
	{
		VIP_MEM_HANDLE h1, h2;
		code(VipRegisterMem(nic, m.base, 100, NULL, &h1), VIP_SUCCESS, "memory without attributes");
		code(VipRegisterMem(nic, m.base, 100, NULL, &h2), VIP_SUCCESS, "the same again");
		ok(h1 != h2 && h1 && h2, "has another handle");
		need(VipDeregisterMem(nic, m.base, h1));
		code(VipQueryMem(nic, m.base, h2, &mgot), VIP_SUCCESS, "one outlives the other");
		need(VipDeregisterMem(nic, m.base, h2));
		code(VipRegisterMem(nic, (void *)4096, 100, NULL, &h1), VIP_INVALID_PARAMETER, "memory that is not there");
	}
	mem_close(&m);
}

static VIP_RETURN request(VIP_VI_HANDLE v, const char *disc, VIP_ULONG timeout, VIP_VI_ATTRIBUTES *a) {
	struct addr l, r;

	return VipConnectRequest(v, address(&l, nic, "me"), address(&r, nic, disc), timeout, a);
}

struct asker {
	pthread_t t;
	VIP_VI_HANDLE v;
	const char *disc;
	VIP_ULONG timeout;
	VIP_RETURN r;
	VIP_VI_ATTRIBUTES a;
};

static void *ask(void *p) {
	struct asker *k = p;
	long long end = tap_ms() + PATIENCE;

	while ((k->r = request(k->v, k->disc, k->timeout, &k->a)) == VIP_NO_MATCH && tap_ms() < end)
		tap_nap(10);
	return NULL;
}

/* connections tests every result of a connection between client and server. */
static void connections(void) {
	VIP_VI_HANDLE a = make(2, NULL, NULL), b = make(2, NULL, NULL), other = make(4, NULL, NULL);
	VIP_VI_ATTRIBUTES va, small = vi_attrs(2, NULL);
	VIP_CONN_HANDLE c;
	struct addr l, r;
	struct mem m;
	struct asker k;
	VIP_NIC_ATTRIBUTES na;
	VIP_DESCRIPTOR *d;
	long long t;

	need(VipQueryNic(nic, &na));
	mem_open(&m, nic, NULL, 0);
	t = tap_ms();
	code(VipConnectWait(nic, address(&l, nic, "w"), 50, &r.a, &va, &c), VIP_TIMEOUT, "a wait times out");
	ok(tap_ms() - t >= 49 && tap_ms() - t < PATIENCE, "in time");
	code(VipConnectWait(nic, &l.a, 0, &r.a, &va, &c), VIP_TIMEOUT, "at once with a timeout of 0");
	need(VipPostRecv(a, simple(&m, 0, 0, 10), m.h));
	t = tap_ms();
	code(request(a, "absent", PATIENCE, &va), VIP_NO_MATCH, "a discriminator without a wait");
	ok(tap_ms() - t < PATIENCE * 3 / 4, "is told promptly");
	ok(state(a) == VIP_STATE_IDLE, "the VI is idle");
	code(VipRecvDone(a, &d), VIP_NOT_DONE, "its receive is still posted");

	memset(&k, 0, sizeof k);
	k.v = a, k.disc = "reject", k.timeout = PATIENCE;
	pthread_create(&k.t, NULL, ask, &k);
	address(&l, nic, "reject");
	memset(l.a.HostAddress, 0xEE, na.NicAddressLen); /* Some programs set only the length. */
	code(VipConnectWait(nic, &l.a, PATIENCE, &r.a, &va, &c), VIP_SUCCESS, "a wait with garbage for its host part");
	ok(r.a.HostAddressLen == na.NicAddressLen && r.a.DiscriminatorLen == 2 &&
		memcmp(r.a.HostAddress + r.a.HostAddressLen, "me", 2) == 0, "the caller's address");
	ok(va.ReliabilityLevel == 2 && va.EnableRdmaWrite, "its attributes");
	code(VipConnectAccept(c, other), VIP_INVALID_RELIABILITY_LEVEL, "another level");
	code(VipConnectReject(c), VIP_SUCCESS, "reject");
	code(VipConnectReject(c), VIP_INVALID_PARAMETER, "once");
	code(VipConnectAccept(c, b), VIP_INVALID_PARAMETER, "that connection is over");
	pthread_join(k.t, NULL);
	ok(k.r == VIP_REJECT, "the caller is told, %d", k.r);
	code(VipRecvDone(a, &d), VIP_NOT_DONE, "its receive is still posted");

	small.MaxTransferSize = 4000;
	need(VipSetViAttributes(b, &small));
	k.disc = "accept";
	pthread_create(&k.t, NULL, ask, &k);
	need(VipConnectWait(nic, address(&l, nic, "accept"), PATIENCE, &r.a, NULL, &c));
	code(VipConnectAccept(c, other), VIP_INVALID_RELIABILITY_LEVEL, "a VI that does not fit");
	code(VipConnectAccept(c, b), VIP_SUCCESS, "one that does, with the same handle");
	pthread_join(k.t, NULL);
	ok(k.r == VIP_SUCCESS && k.a.MaxTransferSize == 4000, "the caller is connected, %d", k.r);
	ok(eventually(state(a) == VIP_STATE_CONNECTED && state(b) == VIP_STATE_CONNECTED), "both are");
	VipQueryVi(a, NULL, &va, NULL, NULL);
	ok(va.MaxTransferSize == 4000, "with the lesser transfer size");
	code(request(a, "x", 10, &va), VIP_INVALID_STATE, "a connected VI can't ask");
	code(VipConnectPeerRequest(a, &l.a, &r.a, 10), VIP_INVALID_STATE, "nor in the other model");
	code(VipSetViAttributes(a, &small), VIP_INVALID_STATE, "its attributes stay");
	code(VipDestroyVi(a), VIP_INVALID_STATE, "it stays");
	code(VipDisconnect(a), VIP_SUCCESS, "disconnect");
	ok(state(a) == VIP_STATE_IDLE, "idle at once");
	code(VipDestroyVi(a), VIP_ERROR_RESOURCE, "a descriptor is left");
	code(VipRecvDone(a, &d), VIP_DESCRIPTOR_ERROR, "it was flushed");
	ok(d && (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) && (d->CS.Status & VIP_STATUS_DONE) && d->CS.Length == 0, "and says so");
	code(VipRecvDone(a, &d), VIP_DESCRIPTOR_ERROR, "empty");
	ok(d == NULL, "is NULL");
	ok(eventually(state(b) == VIP_STATE_ERROR), "the other is in error");
	code(request(b, "x", 10, &va), VIP_INVALID_STATE, "and can't ask");
	code(VipDisconnect(b), VIP_SUCCESS, "until it disconnects");
	code(VipDisconnect(b), VIP_SUCCESS, "twice, as some do");

	/* A request that nobody answers, an address that no host has, and a request without time. */
	k.v = a, k.disc = "late";
	for (k.timeout = 1000;; k.timeout *= 4) { /* on a slow machine a request times out before it is found */
		VIP_RETURN found;

		t = tap_ms();
		pthread_create(&k.t, NULL, ask, &k);
		found = VipConnectWait(nic, address(&l, nic, "late"), k.timeout, &r.a, NULL, &c);
		pthread_join(k.t, NULL);
		if (found == VIP_SUCCESS)
			break;
		if (k.timeout > PATIENCE)
			need(found);
	}
	ok(k.r == VIP_TIMEOUT && tap_ms() - t >= (long long)k.timeout - 1, "a request that is not answered times out, %d", k.r);
	ok(state(a) == VIP_STATE_IDLE, "its VI is idle");
	code(VipConnectAccept(c, b), VIP_TIMEOUT, "accepting it comes too late");
	(void)VipConnectReject(c);
	if (na.NicAddressLen == 4) {
		address(&l, nic, "me");
		address(&r, nic, "there");
		memset(r.a.HostAddress, 0xFF, 4); /* no host has this address */
		code(VipConnectRequest(a, &l.a, &r.a, PATIENCE, NULL), VIP_NOT_REACHABLE, "an address that can't be reached");
	}
	t = tap_ms();
	k.r = request(a, "x", 0, &va);
	ok(k.r == VIP_TIMEOUT || k.r == VIP_NO_MATCH, "a request without time, %d", k.r);
	mem_close(&m);
	unmake(a);
	unmake(b);
	unmake(other);
}

/* peers tests connections of the peer-to-peer model. */
static void peers(void) {
	VIP_NIC_HANDLE n2;
	VIP_VI_HANDLE a = make(4, NULL, NULL), b;
	VIP_VI_ATTRIBUTES va = vi_attrs(4, NULL);
	struct addr la, lb, lc;
	char name[17];
	VIP_RETURN r;
	int i;

	need(VipOpenNic(tap_nic, &n2));
	need(VipCreateVi(n2, &va, NULL, NULL, &b));
	/* The name has the process id, so that another process that runs this test is not a peer. */
	snprintf(name, sizeof name, "peer %d", (int)getpid());
	name[4] = 'a';
	address(&la, nic, name);
	name[4] = 'b';
	address(&lb, n2, name);
	code(VipConnectPeerDone(a, &va), VIP_INVALID_STATE, "no request");
	code(VipConnectPeerWait(a, &va), VIP_INVALID_STATE, "nothing to wait for");
	for (i = 0; i < 2; i++) {
		code(VipConnectPeerRequest(i ? b : a, i ? &lb.a : &la.a, i ? &la.a : &lb.a, PATIENCE), VIP_SUCCESS, "first");
		code(VipConnectPeerDone(i ? b : a, NULL), VIP_NOT_DONE, "not done");
		ok(state(i ? b : a) == VIP_STATE_CONNECT_PENDING, "pending");
		code(VipConnectPeerRequest(i ? a : b, i ? &la.a : &lb.a, i ? &lb.a : &la.a, VIP_INFINITE), VIP_SUCCESS, "second");
		code(VipConnectPeerWait(a, &va), VIP_SUCCESS, "connected");
		ok(va.ReliabilityLevel == 4, "with the other's attributes");
		r = VIP_NOT_DONE;
		(void)eventually((r = VipConnectPeerDone(b, &va)) != VIP_NOT_DONE);
		ok(r == VIP_SUCCESS, "the other too, %d", r);
		VipDisconnect(a);
		VipDisconnect(b);
	}
	need(VipConnectPeerRequest(a, &la.a, &lb.a, 100));
	code(VipConnectPeerWait(a, &va), VIP_TIMEOUT, "a peer that never asks");
	name[4] = 'c';
	address(&lc, n2, name);
	need(VipConnectPeerRequest(a, &la.a, &lb.a, 300));
	need(VipConnectPeerRequest(b, &lc.a, &la.a, 300));
	code(VipConnectPeerWait(a, &va), VIP_TIMEOUT, "one that has another discriminator");
	code(VipConnectPeerWait(b, &va), VIP_TIMEOUT, "for both");
	ok(state(a) == VIP_STATE_IDLE, "idle again");
	need(VipConnectPeerRequest(a, &la.a, &lb.a, VIP_INFINITE));
	code(VipDisconnect(a), VIP_SUCCESS, "cancel");
	code(VipConnectPeerWait(a, &va), VIP_INVALID_STATE, "it was cancelled");
	unmake(b);

	/* Two VIs of one NIC are peers, after the client-server model has connected them. */
	b = make(4, NULL, NULL);
	connect_pair(nic, a, nic, b);
	VipDisconnect(a);
	VipDisconnect(b);
	address(&la, nic, name);
	need(VipConnectPeerRequest(a, &la.a, &la.a, 500));
	code(VipConnectPeerWait(a, &va), VIP_TIMEOUT, "a peer at the own address that never asks");
	for (i = 0; i < 3; i++) {
		name[4] = i ? 'd' : 'e'; /* the discriminator of a is higher, then lower, then equal */
		address(&la, nic, name);
		name[4] = i == 2 ? 'd' : i ? 'e' : 'd';
		address(&lb, nic, name);
		need(VipConnectPeerRequest(a, &la.a, &lb.a, PATIENCE));
		need(VipConnectPeerRequest(b, &lb.a, &la.a, PATIENCE));
		code(VipConnectPeerWait(a, &va), VIP_SUCCESS, "peers of one NIC");
		code(VipConnectPeerWait(b, &va), VIP_SUCCESS, "both of them");
		VipDisconnect(a);
		VipDisconnect(b);
	}
	unmake(a);
	unmake(b);
	need(VipCloseNic(n2));
}

/* messages sends messages of different lengths and segments at one reliability level. */
static void messages(int level) {
	VIP_VI_HANDLE a = make(level, NULL, NULL), b = make(level, NULL, NULL);
	static const int sizes[] = {0, 1, 63, 64, 65, 1000, 4096, 32767};
	VIP_DESCRIPTOR *d, *s;
	struct mem m, n;
	unsigned i, k, good;

	mem_open(&m, nic, NULL, 0);
	mem_open(&n, nic, NULL, 0);
	code(VipPostSend(a, simple(&m, 0, 0, 1), m.h), VIP_SUCCESS, "a send before there is a connection");
	code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "is flushed");
	ok(d == desc(&m, 0) && (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR), "as its status says");
	code(VipSendWait(a, VIP_INFINITE, &d), VIP_DESCRIPTOR_ERROR, "a wait at an empty queue does not begin");
	ok(d == NULL, "it has none");
	connect_pair(nic, a, nic, b);
	for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		need(VipPostRecv(b, simple(&n, 0, 0, ROOM), n.h));
		for (k = 0; k < (unsigned)sizes[i]; k++)
			data(&m)[k] = (char)(k * 7 + i);
		memset(data(&n), 0, ROOM);
		s = simple(&m, 0, 0, sizes[i]);
		if (i % 2) {
			s->CS.Control |= VIP_CONTROL_IMMEDIATE;
			s->CS.ImmediateData = 0xFFFFFFFF - i;
		}
		need(VipPostSend(a, s, m.h));
		code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "send %d bytes at level %d", sizes[i], level);
		ok(d == s && d->CS.Length == (VIP_UINT32)sizes[i] && d->CS.Status == VIP_STATUS_DONE, "its end");
		code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "and receive them");
		ok(d && d->CS.Length == (VIP_UINT32)sizes[i] && memcmp(data(&m), data(&n), sizes[i]) == 0, "unharmed");
		if (i % 2)
			ok(d && (d->CS.Status & VIP_STATUS_IMMEDIATE) && d->CS.ImmediateData == 0xFFFFFFFF - i, "with immediate data");
		else
			ok(d && d->CS.Status == (VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE), "without immediate data");
	}
	/* A message without a segment, and one with many segments. */
	s = simple(&m, 0, 0, 0);
	s->CS.SegCount = 0;
	need(VipPostRecv(b, simple(&n, 0, 0, 10), n.h));
	need(VipPostSend(a, s, m.h));
	code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "no segment");
	ok(d && d->CS.Length == 0, "no bytes");
	need(VipSendWait(a, PATIENCE, &d));
	s = desc(&m, 0);
	d = desc(&n, 0);
	memset(s, 0, 256);
	memset(d, 0, 256);
	s->CS.SegCount = d->CS.SegCount = 10;
	for (i = 0; i < 10; i++) {
		VIP_DESCRIPTOR_SEGMENT *x = &s->DS[0] + i, *y = &d->DS[0] + i;

		x->Local.Data.Address = data(&m) + 1000 * i + i;
		x->Local.Handle = m.h;
		x->Local.Length = i * 10;
		y->Local.Data.Address = data(&n) + 1000 * i;
		y->Local.Handle = n.h;
		y->Local.Length = 45;
	}
	s->CS.Length = 450;
	need(VipPostRecv(b, d, n.h));
	need(VipPostSend(a, s, m.h));
	code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "ten segments to ten others");
	for (good = 1, k = 0, i = 0; i < 10; i++) {
		unsigned j;

		for (j = 0; j < i * 10; j++, k++)
			good &= data(&m)[1000 * i + i + j] == data(&n)[k / 45 * 1000 + k % 45];
	}
	ok(good && d && d->CS.Length == 450, "every byte in its place");
	need(VipSendWait(a, PATIENCE, &d));
	/* Many messages at once, which polling must find in order. */
	for (i = 0; i < 40; i++)
		need(VipPostRecv(b, simple(&n, i, 0, 4), n.h));
	for (i = 0; i < 40; i++)
		need(VipPostSend(a, simple(&m, i, 4 * i, 4), m.h));
	for (good = 1, i = 0; i < 40; i++) {
		d = NULL;
		(void)eventually(VipRecvDone(b, &d) != VIP_NOT_DONE);
		good &= d == desc(&n, i);
		d = NULL;
		(void)eventually(VipSendDone(a, &d) != VIP_NOT_DONE);
		good &= d == desc(&m, i);
	}
	ok(good, "forty of each come back in order");
	code(VipSendDone(a, &d), VIP_DESCRIPTOR_ERROR, "and no more");
	ok(d == NULL, "than that");
	unmake(a);
	unmake(b);
	mem_close(&m);
	mem_close(&n);
}

static void transfers(void) {
	int i;

	for (i = 0; i < 3; i++)
		messages(levels[i]);
}

static void rdmas(void) {
	VIP_VI_HANDLE a = make(4, NULL, NULL), b = make(4, NULL, NULL);
	VIP_DESCRIPTOR *d;
	struct mem m, n;

	mem_open(&m, nic, NULL, 1);
	mem_open(&n, nic, NULL, 1);
	need(VipPostRecv(b, simple(&n, 5, 0, 0), n.h));
	connect_pair(nic, a, nic, b);
	strcpy(data(&m), "written");
	need(VipPostSend(a, rdma(&m, 0, VIP_CONTROL_OP_RDMAWRITE, 0, 8, data(&n) + 77, n.h), m.h));
	code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "RDMA Write");
	ok(d && d->CS.Status == (VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE), "its status");
	ok(strcmp(data(&n) + 77, "written") == 0, "the bytes are there when it is done");
	code(VipRecvDone(b, &d), VIP_NOT_DONE, "it takes no receive");
	rdma(&m, 0, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, 0, 8, data(&n) + 177, n.h)->CS.ImmediateData = 0;
	need(VipPostSend(a, desc(&m, 0), m.h));
	code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "one with immediate data");
	code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "takes one");
	ok(d && d->CS.Status == (VIP_STATUS_DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE) && d->CS.Length == 8, "that says so");
	strcpy(data(&n) + 500, "read");
	need(VipPostSend(a, rdma(&m, 0, VIP_CONTROL_OP_RDMAREAD, 900, 5, data(&n) + 500, n.h), m.h));
	code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "RDMA Read");
	ok(strcmp(data(&m) + 900, "read") == 0 && d && d->CS.Status == (VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_READ), "the bytes are there");
	need(VipPostSend(a, rdma(&m, 0, VIP_CONTROL_OP_RDMAREAD, 900, 5, data(&n) + 500, n.h), m.h));
	need(VipPostRecv(b, simple(&n, 5, 600, 100), n.h));
	simple(&m, 1, 900, 5)->CS.Control = VIP_CONTROL_QFENCE;
	need(VipPostSend(a, desc(&m, 1), m.h));
	code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "a fenced send");
	ok(strcmp(data(&n) + 600, "read") == 0, "sends what was read");
	need(VipSendWait(a, PATIENCE, &d));
	need(VipSendWait(a, PATIENCE, &d));

	/* The segment is one byte too long. */
	need(VipPostSend(a, rdma(&m, 0, VIP_CONTROL_OP_RDMAWRITE, 0, 9, n.base + n.size - 8, n.h), m.h));
	code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "one byte behind the region");
	ok(d && (d->CS.Status & VIP_STATUS_RDMA_PROT_ERROR), "is a protection error of the remote side, %#x", d ? d->CS.Status : 0);
	ok(eventually(state(a) == VIP_STATE_ERROR && state(b) == VIP_STATE_ERROR), "and breaks the connection");
	unmake(a);
	unmake(b);
	mem_close(&m);
	mem_close(&n);
}

/*
 * wrong posts descriptors with errors, and checks what S and R of the matrix show at this end.
 */
static void wrong(void) {
	static const struct {
		const char *what;
		int control, segs, len, cslen;
		VIP_UINT32 bit;
	} cases[] = {
		{"an op of 3", 3, 1, 10, 10, VIP_STATUS_FORMAT_ERROR},
		{"reserved bits", 0x10, 1, 10, 10, VIP_STATUS_FORMAT_ERROR},
		{"an RDMA without segments", 1, 0, 0, 0, VIP_STATUS_FORMAT_ERROR},
		{"immediate data of a Read", 2 | 4, 1, 0, 0, VIP_STATUS_FORMAT_ERROR},
		{"too many segments", 0, 1000, 0, 0, VIP_STATUS_FORMAT_ERROR},
		{"lengths that differ", 0, 1, 10, 11, VIP_STATUS_LENGTH_ERROR},
		{"a handle that is none", 0, -1, 10, 10, VIP_STATUS_PROTECTION_ERROR},
	};
	unsigned i, k;
	VIP_DESCRIPTOR *d;
	struct mem m;

	mem_open(&m, nic, NULL, 0);
	for (i = 0; i < sizeof cases / sizeof *cases; i++)
		for (k = 0; k < 3; k++) {
			VIP_VI_HANDLE a = make(levels[k], NULL, NULL), b = make(levels[k], NULL, NULL);

			connect_pair(nic, a, nic, b);
			d = simple(&m, 0, 0, cases[i].len);
			memset(&d->DS[1], 0, 1000 * 16);
			d->CS.Control = cases[i].control;
			d->CS.SegCount = cases[i].segs < 0 ? 1 : cases[i].segs;
			d->CS.Length = cases[i].cslen;
			if (cases[i].segs < 0)
				d->DS[0].Local.Handle ^= 0x5555;
			need(VipPostSend(a, d, m.h));
			code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "%s at level %d", cases[i].what, levels[k]);
			ok(d && (d->CS.Status & VIP_STATUS_ERROR_MASK) == cases[i].bit, "status %#x", d ? d->CS.Status : 0);
			if (levels[k] == 1)
				ok(state(a) == VIP_STATE_CONNECTED, "stays connected");
			else
				ok(eventually(state(a) == VIP_STATE_ERROR), "breaks the connection");
			unmake(a);
			unmake(b);
		}
	mem_close(&m);
}

/*
 * states tests which calls are allowed in each state of a VI, and what happens to descriptors
 * that are posted in it.
 */
static void states(void) {
	VIP_VI_HANDLE v = make(2, NULL, NULL), w = make(2, NULL, NULL);
	VIP_VI_ATTRIBUTES va = vi_attrs(2, NULL);
	VIP_DESCRIPTOR *d;
	struct addr l, r;
	struct mem m;
	int i, k, good;

	mem_open(&m, nic, NULL, 0);
	address(&l, nic, "state");
	address(&r, nic, "no such state");
	for (k = 0; k < 3; k++) {
		static const char *const names[] = {"pending", "connected", "in error"};

		if (k == 0) {
			need(VipConnectPeerRequest(v, &l.a, &r.a, VIP_INFINITE));
		} else if (k == 1) {
			connect_pair(nic, v, nic, w);
		} else {
			connect_pair(nic, v, nic, w);
			need(VipDisconnect(w));
			if (!eventually(state(v) == VIP_STATE_ERROR))
				break;
		}
		code(request(v, "x", 10, &va), VIP_INVALID_STATE, "a VI that is %s can't ask", names[k]);
		code(VipConnectPeerRequest(v, &l.a, &r.a, 10), VIP_INVALID_STATE, "nor for a peer");
		code(VipSetViAttributes(v, &va), VIP_INVALID_STATE, "its attributes stay");
		code(VipDestroyVi(v), VIP_INVALID_STATE, "it stays");
		for (i = 0; i < 3; i++)
			code(VipPostRecv(v, simple(&m, i, 0, 8), m.h), VIP_SUCCESS, "a receive is taken");
		code(VipRecvDone(v, &d), k == 2 ? VIP_DESCRIPTOR_ERROR : VIP_NOT_DONE, "and %s", k == 2 ? "flushed" : "held");
		good = k < 2 || d == desc(&m, 0);
		if (k != 1) {
			need(VipPostSend(v, simple(&m, 9, 0, 8), m.h));
			code(VipSendWait(v, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "a send is taken");
			ok(d == desc(&m, 9) && (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR), "and flushed");
		}
		code(VipDisconnect(v), VIP_SUCCESS, "disconnect");
		ok(state(v) == VIP_STATE_IDLE, "is idle then");
		for (i = k == 2; i < 3; i++)
			good &= VipRecvDone(v, &d) == VIP_DESCRIPTOR_ERROR && d == desc(&m, i) &&
				d->CS.Status == (VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR | VIP_STATUS_OP_RECEIVE);
		ok(good, "its receives were flushed, in order");
		code(VipRecvDone(v, &d), VIP_DESCRIPTOR_ERROR, "and are all");
		VipDisconnect(w);
	}
	ok(k == 3, "three states");
	unmake(v);
	unmake(w);
	mem_close(&m);
}

/*
 * The matrix lists errors that one side of a connection causes, and what each side then sees at
 * each level.
 */
static struct {
	VIP_VI_HANDLE v;
	unsigned seen; /* bits of error codes */
} watch;

static void on_watched(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e) {
	(void)context;
	if (e->ViHandle == __atomic_load_n(&watch.v, __ATOMIC_ACQUIRE))
		__sync_or_and_fetch(&watch.seen, 1u << e->ErrorCode);
}

static void matrix(void) {
	enum { NONE, SHORT, MALFORMED, FOREIGN, WRITE, WRITE_IMM, READ, IMM_NONE };
	static const struct {
		const char *what;
		VIP_UINT32 r, s; /* result of the receive, and of the send at Reliable Reception */
		int async;       /* asynchronous error at the target, or -1 */
	} rows[] = {
		{"no receive", 0, VIP_STATUS_REMOTE_DESC_ERROR, VIP_ERROR_RECVQ_EMPTY},
		{"a receive that is too small", VIP_STATUS_LENGTH_ERROR, VIP_STATUS_REMOTE_DESC_ERROR, -1},
		{"a receive with another op", VIP_STATUS_FORMAT_ERROR, VIP_STATUS_REMOTE_DESC_ERROR, -1},
		{"a receive into memory that is none", VIP_STATUS_PROTECTION_ERROR, VIP_STATUS_REMOTE_DESC_ERROR, -1},
		{"an RDMA Write to memory that is none", 0, VIP_STATUS_RDMA_PROT_ERROR, VIP_ERROR_RDMAW_PROT},
		{"one with immediate data", VIP_STATUS_RDMA_PROT_ERROR, VIP_STATUS_RDMA_PROT_ERROR, -1},
		{"an RDMA Read of memory that is none", 0, VIP_STATUS_RDMA_PROT_ERROR, VIP_ERROR_RDMAR_PROT},
		{"immediate data without a receive", 0, VIP_STATUS_REMOTE_DESC_ERROR, VIP_ERROR_RECVQ_EMPTY},
	};
	struct mem m, n;
	VIP_DESCRIPTOR *d;
	int i, k;

	mem_open(&m, nic, NULL, 1);
	mem_open(&n, nic, NULL, 1);
	need(VipErrorCallback(nic, NULL, on_watched));
	for (i = 0; i < (int)(sizeof rows / sizeof *rows); i++)
		for (k = 0; k < 3; k++) {
			VIP_VI_HANDLE a, b;

			if (i == READ && k == 0)
				continue; /* this level does not have the operation */
			a = make(levels[k], NULL, NULL), b = make(levels[k], NULL, NULL);
			__atomic_store_n(&watch.v, b, __ATOMIC_RELEASE);
			__atomic_store_n(&watch.seen, 0, __ATOMIC_RELEASE);
			if (rows[i].r) {
				d = simple(&n, 0, 0, i == SHORT ? 9 : 100);
				if (i == MALFORMED)
					d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
				if (i == FOREIGN)
					d->DS[0].Local.Handle ^= 0x5555;
				need(VipPostRecv(b, d, n.h));
			}
			connect_pair(nic, a, nic, b);
			if (i >= WRITE)
				rdma(&m, 0, i == READ ? VIP_CONTROL_OP_RDMAREAD : VIP_CONTROL_OP_RDMAWRITE, 0, 10, data(&n),
					i == IMM_NONE ? n.h : n.h ^ 0x5555);
			else
				simple(&m, 0, 0, 10);
			if (i == WRITE_IMM || i == IMM_NONE)
				desc(&m, 0)->CS.Control |= VIP_CONTROL_IMMEDIATE;
			need(VipPostSend(a, desc(&m, 0), m.h));
			if (rows[i].r) {
				code(VipRecvWait(b, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "%s at level %d", rows[i].what, levels[k]);
				ok(d == desc(&n, 0) && (d->CS.Status & VIP_STATUS_ERROR_MASK) == rows[i].r, "its status, %#x", d ? d->CS.Status : 0);
			} else {
				ok(eventually(__atomic_load_n(&watch.seen, __ATOMIC_ACQUIRE) & 1u << rows[i].async), "%s at level %d is told",
					rows[i].what, levels[k]);
			}
			if (k == 0)
				code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "its sender does not know");
			else if (k == 2 || i == READ)
				ok(VipSendWait(a, PATIENCE, &d) == VIP_DESCRIPTOR_ERROR && (d->CS.Status & VIP_STATUS_ERROR_MASK) == rows[i].s,
					"its sender does, %#x", desc(&m, 0)->CS.Status);
			if (k == 0)
				ok(state(a) == VIP_STATE_CONNECTED && state(b) == VIP_STATE_CONNECTED, "the connection stays");
			else
				ok(eventually(state(a) == VIP_STATE_ERROR && state(b) == VIP_STATE_ERROR), "the connection breaks");
			unmake(a);
			unmake(b);
			if (rows[i].async < 0)
				ok(!(__atomic_load_n(&watch.seen, __ATOMIC_ACQUIRE) & ~(1u << VIP_ERROR_CONN_LOST)), "nothing else is told");
		}
	need(VipErrorCallback(nic, NULL, NULL));
	mem_close(&m);
	mem_close(&n);
}

/*
 * edges tests lengths and segments at their limits, immediate data, and a descriptor that the
 * program overwrites after posting it.
 */
static void edges(void) {
	VIP_VI_HANDLE a = make(4, NULL, NULL), b = make(4, NULL, NULL);
	VIP_NIC_ATTRIBUTES na;
	VIP_VI_ATTRIBUTES va;
	VIP_DESCRIPTOR *d, *s;
	struct mem m, n;
	unsigned i, good;
	int k;

	need(VipQueryNic(nic, &na));
	mem_open(&m, nic, NULL, 1);
	mem_open(&n, nic, NULL, 1);
	va = vi_attrs(4, NULL);
	va.MaxTransferSize = 4000;
	need(VipSetViAttributes(a, &va));
	connect_pair(nic, a, nic, b);
	for (k = -1; k <= 0; k++) {
		need(VipPostRecv(b, simple(&n, 0, 0, ROOM), n.h));
		memset(data(&m), k + 7, 4000);
		need(VipPostSend(a, simple(&m, 0, 0, 4000 + k), m.h));
		code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "the transfer size and %d", k);
		need(VipRecvWait(b, PATIENCE, &d));
		ok((int)d->CS.Length == 4000 + k && memcmp(data(&m), data(&n), 4000 + k) == 0, "arrives");
	}
	/* The largest number of segments, each of one byte, at every alignment. */
	s = desc(&m, 0);
	memset(s, 0, 32 + 16 * na.MaxSegmentsPerDesc);
	for (i = 0; i < na.MaxSegmentsPerDesc; i++) {
		VIP_DESCRIPTOR_SEGMENT *x = &s->DS[0] + i;

		data(&m)[9 * i] = (char)(i + 1);
		x->Local.Data.Address = data(&m) + 9 * i;
		x->Local.Handle = i % 3 == 2 ? 0 : m.h; /* an empty segment needs no handle */
		x->Local.Length = i % 3 == 2 ? 0 : 1;
		s->CS.Length += x->Local.Length;
	}
	s->CS.SegCount = na.MaxSegmentsPerDesc;
	need(VipPostRecv(b, simple(&n, 0, 0, ROOM), n.h));
	need(VipPostSend(a, s, m.h));
	code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "%lu segments", na.MaxSegmentsPerDesc);
	for (good = 1, k = 0, i = 0; i < na.MaxSegmentsPerDesc; i++)
		if (i % 3 != 2)
			good &= data(&n)[k++] == (char)(i + 1);
	ok(good && d && (int)d->CS.Length == k, "each byte in its place");
	need(VipSendWait(a, PATIENCE, &d));
	/* A message of immediate data only. */
	for (good = 1, k = -2; k < 32; k++) {
		VIP_UINT32 imm = k == -2 ? 0 : k == -1 ? 0xFFFFFFFF : (VIP_UINT32)1 << k;

		need(VipPostRecv(b, simple(&n, 0, 0, 0), n.h));
		s = simple(&m, 0, 0, 0);
		s->CS.Control = VIP_CONTROL_IMMEDIATE;
		s->CS.ImmediateData = imm;
		need(VipPostSend(a, s, m.h));
		good &= VipRecvWait(b, PATIENCE, &d) == VIP_SUCCESS && d->CS.ImmediateData == imm && d->CS.Length == 0 &&
			(d->CS.Status & VIP_STATUS_IMMEDIATE);
		need(VipSendWait(a, PATIENCE, &d));
	}
	ok(good, "immediate data of each bit");
	/* Posting has read the descriptor, so that overwriting it has no effect. */
	s = simple(&n, 0, 500, 100);
	need(VipPostRecv(b, s, n.h));
	memset(&s->DS[0], 0xEE, sizeof s->DS[0]);
	s->CS.SegCount = 7;
	strcpy(data(&m), "posted");
	need(VipPostSend(a, simple(&m, 0, 0, 7), m.h));
	code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "a receive that was written over");
	ok(d == s && strcmp(data(&n) + 500, "posted") == 0, "goes where it was posted for");
	need(VipSendWait(a, PATIENCE, &d));
	/* The first and the last byte of a region, and an address that wraps around. */
	data(&m)[0] = 'f', data(&m)[1] = 'l';
	need(VipPostSend(a, rdma(&m, 40, VIP_CONTROL_OP_RDMAWRITE, 0, 1, n.base, n.h), m.h));
	need(VipPostSend(a, rdma(&m, 41, VIP_CONTROL_OP_RDMAWRITE, 1, 1, n.base + n.size - 1, n.h), m.h));
	code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "the first byte of a region");
	code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "and its last");
	ok(n.base[0] == 'f' && n.base[n.size - 1] == 'l', "are written");
	need(VipPostSend(a, rdma(&m, 0, VIP_CONTROL_OP_RDMAWRITE, 0, 16, (void *)-8L, n.h), m.h));
	code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "an address that wraps around");
	ok(d && (d->CS.Status & VIP_STATUS_RDMA_PROT_ERROR), "is a protection error");
	unmake(a), unmake(b);
	a = make(4, NULL, NULL), b = make(4, NULL, NULL);
	need(VipSetViAttributes(a, &va));
	connect_pair(nic, a, nic, b);
	need(VipPostSend(a, simple(&m, 0, 0, 4001), m.h));
	code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "a byte more than the transfer size");
	ok(d && (d->CS.Status & VIP_STATUS_LENGTH_ERROR), "is a length error");
	unmake(a), unmake(b);
	mem_close(&m);
	mem_close(&n);
}

/*
 * protection tests the protection tags and RDMA permissions of VIs and of memory, and the effect
 * of changing them.
 */
static void protection(void) {
	static const char *const what[] = {"all is allowed", "the VI's tag", "the VI's enable", "the memory's enable", "deregistered memory"};
	VIP_PROTECTION_HANDLE tag, other;
	VIP_DESCRIPTOR *d;
	struct mem m, n;
	int i, op;

	need(VipCreatePtag(nic, &tag));
	need(VipCreatePtag(nic, &other));
	mem_open(&m, nic, NULL, 0);
	for (op = VIP_CONTROL_OP_RDMAWRITE; op <= VIP_CONTROL_OP_RDMAREAD; op++)
		for (i = 0; i < 5; i++) {
			VIP_VI_HANDLE a = make(4, NULL, NULL), b;
			VIP_VI_ATTRIBUTES va = vi_attrs(4, i == 1 ? other : tag);
			VIP_MEM_ATTRIBUTES ma = {tag, VIP_TRUE, VIP_TRUE};
			int write = op == VIP_CONTROL_OP_RDMAWRITE;

			mem_open(&n, nic, tag, 0);
			if (i == 2)
				*(write ? &va.EnableRdmaWrite : &va.EnableRdmaRead) = VIP_FALSE;
			if (i == 3)
				*(write ? &ma.EnableRdmaWrite : &ma.EnableRdmaRead) = VIP_FALSE;
			need(VipSetMemAttributes(nic, n.base, n.h, &ma));
			need(VipCreateVi(nic, &va, NULL, NULL, &b));
			connect_pair(nic, a, nic, b);
			if (i == 4)
				need(VipDeregisterMem(nic, n.base, n.h));
			need(VipPostSend(a, rdma(&m, 0, op, 0, 8, data(&n), n.h), m.h));
			code(VipSendWait(a, PATIENCE, &d), i ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS, "RDMA op %d: %s", op, what[i]);
			ok(d && (d->CS.Status & VIP_STATUS_ERROR_MASK) == (i ? VIP_STATUS_RDMA_PROT_ERROR : 0), "its status");
			if (i == 0) { /* a change applies from the next operation on */
				*(write ? &ma.EnableRdmaWrite : &ma.EnableRdmaRead) = VIP_FALSE;
				need(VipSetMemAttributes(nic, n.base, n.h, &ma));
				need(VipPostSend(a, rdma(&m, 0, op, 0, 8, data(&n), n.h), m.h));
				code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "until it is forbidden");
			}
			unmake(a);
			unmake(b);
			if (i != 4)
				need(VipDeregisterMem(nic, n.base, n.h));
			free(n.base);
		}
	/* The memory of a receive is deregistered while the receive is posted. */
	{
		VIP_VI_HANDLE a = make(4, NULL, NULL), b = make(4, NULL, NULL);

		mem_open(&n, nic, NULL, 0);
		d = simple(&m, 1, 0, 8);
		d->DS[0].Local.Data.Address = data(&n);
		d->DS[0].Local.Handle = n.h;
		need(VipPostRecv(b, d, m.h));
		connect_pair(nic, a, nic, b);
		mem_close(&n);
		need(VipPostSend(a, simple(&m, 0, 0, 8), m.h));
		code(VipRecvWait(b, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "a receive into memory that was deregistered");
		ok(d && (d->CS.Status & VIP_STATUS_PROTECTION_ERROR), "is a protection error");
		unmake(a);
		unmake(b);
	}
	mem_close(&m);
	need(VipDestroyPtag(nic, tag));
	need(VipDestroyPtag(nic, other));
}

/* told records the errors that the handler of asynchronous errors was called with. */
static struct {
	pthread_mutex_t mu;
	int n, last;
	VIP_ERROR_DESCRIPTOR e;
} told = {PTHREAD_MUTEX_INITIALIZER, 0, -1, {0, 0, 0, 0, 0, 0, 0}};

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e) {
	pthread_mutex_lock(&told.mu);
	if (context == (VIP_PVOID)&told) {
		told.n++;
		told.e = *e;
		told.last = e->ErrorCode;
	}
	pthread_mutex_unlock(&told.mu);
}

static int heard(int code, VIP_VI_HANDLE v) {
	int yes;

	pthread_mutex_lock(&told.mu);
	yes = told.last == code && told.e.ViHandle == v && told.e.NicHandle == nic;
	pthread_mutex_unlock(&told.mu);
	return yes;
}

static void async_errors(void) {
	VIP_VI_HANDLE a = make(2, NULL, NULL), b = make(2, NULL, NULL), u, w;
	VIP_PROTECTION_HANDLE tag;
	VIP_VI_ATTRIBUTES va;
	VIP_DESCRIPTOR *d;
	VIP_NIC_ATTRIBUTES na;
	struct mem m, tagged;
	VIP_ULONG i;

	code(VipErrorCallback(nic, &told, on_error), VIP_SUCCESS, "a handler");
	mem_open(&m, nic, NULL, 1);
	/* [VIA-3.1-3] [VIA-8.3-21] */
	code(VipPostRecv(a, (VIP_DESCRIPTOR *)(m.base + 32), m.h), VIP_SUCCESS, "a misaligned descriptor");
	ok(eventually(heard(VIP_ERROR_POST_DESC, a)), "is told of");
	ok(told.e.ResourceCode == VIP_RESOURCE_DESCRIPTOR && told.e.DescriptorPtr == (VIP_DESCRIPTOR *)(m.base + 32), "with its address");
	ok(state(a) == VIP_STATE_ERROR, "the VI is in error");
	code(VipPostRecv(a, simple(&m, 0, 0, 1), m.h), VIP_SUCCESS, "what is posted there");
	code(VipRecvDone(a, &d), VIP_DESCRIPTOR_ERROR, "is flushed at once");
	ok(d == desc(&m, 0), "and comes back");
	need(VipDisconnect(a));
	code(VipPostSend(a, simple(&m, 0, 0, 1), m.h ^ 0x777), VIP_SUCCESS, "a descriptor in unregistered memory");
	ok(eventually(heard(VIP_ERROR_POST_DESC, a) && told.e.DescriptorPtr == desc(&m, 0)), "is told of");
	need(VipDisconnect(a));
	need(VipCreatePtag(nic, &tag));
	mem_open(&tagged, nic, tag, 0);
	va = vi_attrs(2, NULL);
	need(VipCreatePtag(nic, &va.Ptag));
	need(VipCreateVi(nic, &va, NULL, NULL, &w));
	need(VipPostSend(w, simple(&tagged, 0, 0, 1), tagged.h));
	ok(eventually(heard(VIP_ERROR_POST_DESC, w)), "and one of another tag");
	unmake(w);

	connect_pair(nic, a, nic, b);
	need(VipPostSend(a, simple(&m, 0, 0, 1), m.h));
	ok(eventually(state(b) == VIP_STATE_ERROR), "no receive breaks a reliable connection");
	unmake(a);
	unmake(b);
	a = make(2, NULL, NULL), b = make(2, NULL, NULL);
	connect_pair(nic, a, nic, b);
	need(VipDisconnect(a));
	ok(eventually(heard(VIP_ERROR_CONN_LOST, b)) && told.e.ResourceCode == VIP_RESOURCE_VI, "the loss of a connection is told");
	unmake(a);
	unmake(b);

	a = make(1, NULL, NULL), b = make(1, NULL, NULL);
	connect_pair(nic, a, nic, b);
	need(VipPostSend(a, simple(&m, 0, 0, 1), m.h));
	ok(eventually(heard(VIP_ERROR_RECVQ_EMPTY, b)), "no receive is told at an unreliable level");
	ok(state(b) == VIP_STATE_CONNECTED, "which stays connected");
	need(VipPostSend(a, rdma(&m, 1, VIP_CONTROL_OP_RDMAWRITE, 0, 8, data(&m), m.h ^ 0x1111), m.h));
	ok(eventually(heard(VIP_ERROR_RDMAW_PROT, b)), "and an RDMA Write to no memory");
	unmake(a);
	unmake(b);

	need(VipQueryNic(nic, &na));
	u = make(2, NULL, NULL);
	for (i = 0; i < na.MaxDescriptorsPerQueue; i++)
		if (VipPostRecv(u, simple(&m, 0, 0, 1), m.h) != VIP_SUCCESS)
			break;
	ok(i == na.MaxDescriptorsPerQueue && state(u) == VIP_STATE_IDLE, "a queue takes what it says, %lu", i);
	code(VipPostRecv(u, simple(&m, 0, 0, 1), m.h), VIP_SUCCESS, "and no more");
	ok(eventually(heard(VIP_ERROR_VI_OVERRUN, u)) && state(u) == VIP_STATE_ERROR, "which is told");
	unmake(u);
	need(VipErrorCallback(nic, NULL, NULL));
	mem_close(&m);
	mem_close(&tagged);
	need(VipDestroyPtag(nic, tag));
	need(VipDestroyPtag(nic, va.Ptag));
}

/* queues tests completion queues. */
static void queues(void) {
	VIP_CQ_HANDLE cq, scq;
	VIP_VI_HANDLE v[5], s[5], got;
	VIP_DESCRIPTOR *d;
	VIP_BOOLEAN recv;
	struct mem m;
	int i, k, good, per[5] = {0, 0, 0, 0, 0};
	long long t;

	need(VipCreateCQ(nic, 4, &cq));
	need(VipCreateCQ(nic, 4, &scq));
	mem_open(&m, nic, NULL, 0);
	code(VipCQDone(cq, &got, &recv), VIP_NOT_DONE, "nothing in it");
	t = tap_ms();
	code(VipCQWait(cq, 60, &got, &recv), VIP_TIMEOUT, "nothing comes");
	ok(tap_ms() - t >= 59, "in its time");
	code(VipCQWait(cq, 0, &got, &recv), VIP_TIMEOUT, "nor at once");
	for (i = 0; i < 5; i++) {
		s[i] = make(2, scq, NULL);
		v[i] = make(2, NULL, cq);
		for (k = 0; k < 3; k++)
			need(VipPostRecv(v[i], simple(&m, 3 * i + k, 0, 8), m.h));
		connect_pair(nic, s[i], nic, v[i]);
	}
	code(VipDestroyCQ(cq), VIP_ERROR_RESOURCE, "VIs are attached");
	code(VipRecvWait(v[0], 10, &d), VIP_ERROR_RESOURCE, "an attached queue is not waited for");
	code(VipRecvNotify(v[0], NULL, nothing), VIP_ERROR_RESOURCE, "nor notified of");
	code(VipResizeCQ(cq, 100), VIP_SUCCESS, "it grows");
	for (k = 0; k < 3; k++)
		for (i = 0; i < 5; i++)
			need(VipPostSend(s[i], simple(&m, 20 + 3 * i + k, 0, 8), m.h));
	for (good = 1, k = 0; k < 15; k++) {
		need(VipCQWait(cq, PATIENCE, &got, &recv));
		for (i = 0; i < 5 && v[i] != got; i++)
			;
		if (i == 5 || !recv || VipRecvDone(got, &d) != VIP_SUCCESS || d != desc(&m, 3 * i + per[i]++))
			good = 0;
	}
	ok(good, "fifteen entries of five VIs, each in its order");
	code(VipCQDone(cq, &got, &recv), VIP_NOT_DONE, "and no more");
	ok(eventually(VipCQDone(scq, &got, &recv) == VIP_SUCCESS) && recv == VIP_FALSE, "sends have a queue too");
	/* Destroying a VI removes its entries. */
	for (i = 0; i < 5; i++)
		unmake(s[i]);
	code(VipCQDone(scq, &got, &recv), VIP_NOT_DONE, "entries leave with their VI");
	for (i = 0; i < 5; i++)
		unmake(v[i]);
	code(VipCQDone(cq, &got, &recv), VIP_NOT_DONE, "all of them");
	code(VipDestroyCQ(cq), VIP_SUCCESS, "destroyed");
	code(VipDestroyCQ(scq), VIP_SUCCESS, "both");
	mem_close(&m);
}

/* notes records the calls of the notify functions. */
static struct {
	int n, inside, overlaps;
	VIP_DESCRIPTOR *d[16];
	VIP_VI_HANDLE v;
	VIP_BOOLEAN recv;
} notes;

static void note(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d) {
	if (__sync_add_and_fetch(&notes.inside, 1) != 1)
		notes.overlaps++;
	tap_nap(1);
	if (context == (VIP_PVOID)&notes && n == nic && v == notes.v)
		notes.d[notes.n] = d;
	__sync_sub_and_fetch(&notes.inside, 1);
	__sync_add_and_fetch(&notes.n, 1);
}

static void cq_note(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_BOOLEAN recv) {
	VIP_DESCRIPTOR *d = NULL;

	if (context == (VIP_PVOID)&notes && n == nic && v == notes.v && VipRecvDone(v, &d) == VIP_SUCCESS)
		notes.d[notes.n] = d;
	notes.recv = recv;
	__sync_add_and_fetch(&notes.n, 1);
}

static int noted(int n) { return eventually(__sync_add_and_fetch(&notes.n, 0) == n); }

static void notifications(void) {
	VIP_CQ_HANDLE cq;
	VIP_VI_HANDLE a = make(2, NULL, NULL), b = make(2, NULL, NULL), c;
	VIP_DESCRIPTOR *d;
	struct mem m;
	int i, good;

	memset(&notes, 0, sizeof notes);
	mem_open(&m, nic, NULL, 0);
	for (i = 0; i < 9; i++)
		need(VipPostRecv(b, simple(&m, i, 0, 8), m.h));
	connect_pair(nic, a, nic, b);
	notes.v = b;
	for (i = 0; i < 4; i++)
		code(VipRecvNotify(b, &notes, note), VIP_SUCCESS, "registration %d", i);
	for (i = 0; i < 8; i++)
		need(VipPostSend(a, simple(&m, 20 + i, 0, 8), m.h));
	ok(noted(4), "four calls");
	(void)eventually(VipRecvDone(b, &d) == VIP_SUCCESS); /* takes the earlier receives */
	ok(d == desc(&m, 4), "the fifth is polled for");
	for (i = 4; i < 7; i++)
		need(VipRecvNotify(b, &notes, note));
	ok(noted(7), "three more that had come");
	for (good = 1, i = 0; i < 7; i++)
		good &= notes.d[i] == desc(&m, i < 4 ? i : i + 1);
	ok(good && notes.overlaps == 0, "in order, one at a time");
	need(VipRecvNotify(b, &notes, note));
	need(VipDisconnect(b));
	ok(noted(8) && notes.d[7] == desc(&m, 8) && (notes.d[7]->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR), "one that is flushed");
	need(VipSendNotify(a, &notes, nothing));
	unmake(a);
	unmake(b);

	memset(&notes, 0, sizeof notes);
	need(VipCreateCQ(nic, 10, &cq));
	a = make(2, NULL, NULL), c = make(2, NULL, cq);
	notes.v = c;
	for (i = 0; i < 3; i++)
		need(VipPostRecv(c, simple(&m, i, 0, 8), m.h));
	connect_pair(nic, a, nic, c);
	need(VipCQNotify(cq, &notes, cq_note));
	for (i = 0; i < 2; i++)
		need(VipPostSend(a, simple(&m, 20 + i, 0, 8), m.h));
	ok(noted(1) && notes.d[0] == desc(&m, 0) && notes.recv == VIP_TRUE, "one entry of a completion queue");
	need(VipCQNotify(cq, &notes, cq_note));
	ok(noted(2) && notes.d[1] == desc(&m, 1), "and the next, which was there");
	need(VipCQNotify(cq, &notes, cq_note));
	unmake(a);
	/* The registered function gets the flushed receive. */
	VipDisconnect(c);
	ok(noted(3), "a flushed one too");
	unmake(c);
	need(VipCQNotify(cq, &notes, cq_note));
	need(VipDestroyCQ(cq));
	mem_close(&m);
}

/* A sleeper is a thread in a Wait call. The tests measure how long it waits and what ends it. */
struct sleeper {
	pthread_t t;
	int kind;
	void *h;
	VIP_RETURN r;
	VIP_DESCRIPTOR *d;
	volatile int in;
};

static void *sleep_in(void *p) {
	struct sleeper *s = p;
	VIP_VI_HANDLE v;
	VIP_BOOLEAN b;
	struct addr l, r;
	VIP_VI_ATTRIBUTES a;
	VIP_CONN_HANDLE c;

	s->in = 1;
	switch (s->kind) {
	case 0:
		s->r = VipRecvWait(s->h, VIP_INFINITE, &s->d);
		break;
	case 1:
		s->r = VipCQWait(s->h, 0xFFFFFFFF, &v, &b);
		break;
	case 2:
		memset(&l, 0, sizeof l);
		l.a.DiscriminatorLen = 5;
		memcpy(l.a.HostAddress, "sleep", 5);
		s->r = VipConnectWait(s->h, &l.a, VIP_INFINITE, &r.a, &a, &c);
		break;
	case 3:
		s->r = VipConnectPeerWait(s->h, &a);
		break;
	}
	return NULL;
}

static void sleeping(struct sleeper *s, int kind, void *h) {
	int i;

	memset(s, 0, sizeof *s);
	s->kind = kind;
	s->h = h;
	pthread_create(&s->t, NULL, sleep_in, s);
	(void)eventually(s->in);
	for (i = 0; i < 20; i++)
		tap_nap(1);
}

static void waits(void) {
	VIP_NIC_HANDLE n2;
	VIP_VI_HANDLE v = make(2, NULL, NULL), w;
	VIP_VI_ATTRIBUTES va = vi_attrs(2, NULL);
	VIP_CQ_HANDLE cq;
	VIP_DESCRIPTOR *d;
	struct mem m;
	struct sleeper s, t;
	struct addr l, r;
	long long at;
	int ms;

	mem_open(&m, nic, NULL, 0);
	need(VipPostRecv(v, simple(&m, 0, 0, 8), m.h));
	for (ms = 1; ms <= 100; ms *= 10) {
		at = tap_ms();
		code(VipRecvWait(v, ms, &d), VIP_TIMEOUT, "wait %d ms", ms);
		ok(tap_ms() - at >= ms && tap_ms() - at < ms + PATIENCE, "took %lld", tap_ms() - at);
	}
	code(VipRecvWait(v, 0, &d), VIP_TIMEOUT, "wait not at all");
	sleeping(&s, 0, v);
	at = tap_ms();
	code(VipRecvDone(v, &d), VIP_NOT_DONE, "Done beside a Wait");
	ok(tap_ms() - at < PATIENCE, "does not block");
	need(VipDisconnect(v));
	pthread_join(s.t, NULL);
	ok(s.r == VIP_DESCRIPTOR_ERROR && s.d == desc(&m, 0), "Disconnect of an idle VI ends a wait, %d", s.r);
	need(VipDestroyVi(v));

	need(VipOpenNic(tap_nic, &n2));
	need(VipCreateCQ(n2, 4, &cq));
	sleeping(&s, 1, cq);
	need(VipDestroyCQ(cq));
	pthread_join(s.t, NULL);
	ok(s.r == VIP_INVALID_PARAMETER, "VipDestroyCQ ends a wait, %d", s.r);
	need(VipCreateVi(n2, &va, NULL, NULL, &w));
	need(VipConnectPeerRequest(w, address(&l, n2, "aa"), address(&r, nic, "bb"), VIP_INFINITE));
	sleeping(&s, 3, w);
	need(VipDisconnect(w));
	pthread_join(s.t, NULL);
	ok(s.r == VIP_INVALID_STATE, "VipDisconnect ends a peer's wait, %d", s.r);
	sleeping(&s, 2, n2);
	need(VipCreateCQ(n2, 4, &cq));
	sleeping(&t, 1, cq);
	need(VipCloseNic(n2));
	pthread_join(s.t, NULL);
	pthread_join(t.t, NULL);
	ok(s.r == VIP_INVALID_PARAMETER, "VipCloseNic ends a wait for a connection, %d", s.r);
	ok(t.r == VIP_INVALID_PARAMETER, "and one for a completion, %d", t.r);
	mem_close(&m);
}

/* names tests the name service and autodiscovery. */
static void names(void) {
	VIP_NIC_ATTRIBUTES na;
	VIP_AUTODISCOVERY_LIST list = {1, NULL, 0};
	struct addr a;
	char name[256], own[64];
	VIP_ULONG len = sizeof name;
	const char *ip = "10.11.12.13";

	need(VipQueryNic(nic, &na));
	memset(&a, 0xAA, sizeof a);
	code(VipNSGetHostByName(nic, (char *)"localhost", &a.a, 0), VIP_ERROR_NAMESERVICE, "before VipNSInit");
	code(VipNSInit(nic, NULL), VIP_SUCCESS, "init");
	code(VipNSInit(nic, NULL), VIP_SUCCESS, "twice");
	code(VipNSGetHostByName(nic, (char *)"localhost", &a.a, 0), VIP_SUCCESS, "localhost");
	ok(a.a.HostAddressLen == na.NicAddressLen && memcmp(a.a.HostAddress, na.LocalNicAddress, na.NicAddressLen) == 0, "is here");
	ok(a.a.DiscriminatorLen == 0xAAAA && (unsigned char)a.a.HostAddress[na.NicAddressLen] == 0xAA, "and nothing else was written");
	code(VipNSGetHostByName(nic, (char *)"localhost", &a.a, 1000), VIP_ERROR_NAMESERVICE, "an index past the end");
	memset(name, 'n', 64); /* a label of more than 63 bytes, so that no resolver is asked */
	strcpy(name + 64, ".invalid");
	code(VipNSGetHostByName(nic, name, &a.a, 0), VIP_ERROR_NAMESERVICE, "no such name");
	if (gethostname(own, sizeof own) == 0 && VipNSGetHostByName(nic, own, &a.a, 0) == VIP_SUCCESS)
		ok(memcmp(a.a.HostAddress, na.LocalNicAddress, na.NicAddressLen) == 0, "the host's own name is here");
	if (na.NicAddressLen == 4) {
		code(VipNSGetHostByName(nic, (char *)ip, &a.a, 0), VIP_SUCCESS, "an address is its own name");
		ok(memcmp(a.a.HostAddress, "\x0a\x0b\x0c\x0d", 4) == 0, "of four bytes");
	}
	memcpy(a.a.HostAddress, na.LocalNicAddress, na.NicAddressLen);
	a.a.HostAddressLen = na.NicAddressLen;
	if (VipNSGetHostByAddr(nic, &a.a, name, &len) == VIP_SUCCESS) {
		ok(len == strlen(name) + 1, "the name of an address, %s", name);
		len = 1;
		code(VipNSGetHostByAddr(nic, &a.a, name, &len), VIP_ERROR_RESOURCE, "in too little room");
		ok(len == strlen(name) + 1, "which is told");
	}
	code(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, &list), VIP_SUCCESS, "the hosts that are known");
	code(VipNSShutdown(nic), VIP_SUCCESS, "shut down");
	code(VipNSGetHostByName(nic, (char *)"localhost", &a.a, 0), VIP_ERROR_NAMESERVICE, "after that");
}

/*
 * limits checks the maximum numbers of protection tags, of completion queue entries and of open
 * NICs, and that a tag can be created again after one was destroyed.
 */
static void limits(void) {
	VIP_NIC_ATTRIBUTES na;
	VIP_PROTECTION_HANDLE *tags;
	VIP_NIC_HANDLE *nics;
	VIP_CQ_HANDLE cq;
	VIP_ULONG i;
	int n, k;

	need(VipQueryNic(nic, &na));
	tags = calloc(na.MaxPtags + 1, sizeof *tags);
	for (i = 0; i <= na.MaxPtags; i++)
		if (VipCreatePtag(nic, &tags[i]) != VIP_SUCCESS)
			break;
	ok(i == na.MaxPtags, "as many tags as it says, %lu", i);
	code(VipCreatePtag(nic, &tags[i]), VIP_ERROR_RESOURCE, "and no more");
	need(VipDestroyPtag(nic, tags[0]));
	code(VipCreatePtag(nic, &tags[0]), VIP_SUCCESS, "one again");
	while (i-- > 0)
		need(VipDestroyPtag(nic, tags[i]));
	free(tags);
	code(VipCreateCQ(nic, na.MaxCQEntries + 1, &cq), VIP_INVALID_PARAMETER, "too many entries");
	if (strncmp(tap_nic, "fcvi", 4) == 0)
		return; /* each of these NICs is a fabric of its own */
	nics = calloc(2000, sizeof *nics);
	for (n = 0; n < 2000 && VipOpenNic(tap_nic, &nics[n]) == VIP_SUCCESS; n++)
		;
	ok(n == 1023, "opening ends, after %d and one", n);
	code(VipOpenNic(tap_nic, &nics[n]), VIP_ERROR_RESOURCE, "with an error");
	for (k = 0; k < n; k++)
		need(VipCloseNic(nics[k]));
	free(nics);
}

/* leaving closes a NIC that still has all kinds of objects. */
static void leaving(void) {
	VIP_NIC_HANDLE n2;
	VIP_VI_ATTRIBUTES va = vi_attrs(2, NULL);
	VIP_PROTECTION_HANDLE tag;
	VIP_VI_HANDLE a = make(2, NULL, NULL), b;
	VIP_CQ_HANDLE cq;
	VIP_DESCRIPTOR *d;
	struct mem m;

	need(VipOpenNic(tap_nic, &n2));
	need(VipCreatePtag(n2, &tag));
	need(VipCreateCQ(n2, 10, &cq));
	va.Ptag = tag;
	need(VipCreateVi(n2, &va, cq, NULL, &b));
	mem_open(&m, n2, tag, 1);
	need(VipPostRecv(b, simple(&m, 0, 0, 8), m.h));
	connect_pair(nic, a, n2, b);
	code(VipCloseNic(n2), VIP_SUCCESS, "close with all of it");
	code(VipRecvDone(b, &d), VIP_INVALID_PARAMETER, "the VI is gone");
	code(VipDestroyCQ(cq), VIP_INVALID_PARAMETER, "the completion queue too");
	code(VipDestroyPtag(n2, tag), VIP_INVALID_PARAMETER, "and the tag");
	ok(eventually(state(a) == VIP_STATE_ERROR), "the other side notices");
	free(m.base);
	unmake(a);
}

static const struct {
	const char *name;
	void (*run)(void);
} families[] = {
	{"handles", bad_handles}, {"attributes", attributes}, {"connections", connections}, {"peers", peers},
	{"transfers", transfers}, {"rdma", rdmas}, {"wrong", wrong}, {"states", states}, {"matrix", matrix},
	{"edges", edges}, {"protection", protection}, {"errors", async_errors}, {"queues", queues},
	{"notify", notifications}, {"waits", waits}, {"names", names}, {"limits", limits}, {"leaving", leaving},
};

int main(int argc, char **argv) {
	VIP_NIC_HANDLE none = ANY;
	VIP_DESCRIPTOR *d;
	unsigned i;

	if (argc > 1)
		tap_nic = argv[1];
	code(VipCloseNic(none), VIP_INVALID_PARAMETER, "a call before any NIC was opened");
	code(VipSendDone(none, &d), VIP_INVALID_PARAMETER, "another");
	need(VipOpenNic(tap_nic, &nic));
	for (i = 0; i < sizeof families / sizeof *families; i++)
		if (argc < 3 || strcmp(argv[2], families[i].name) == 0) {
			printf("# %s\n", families[i].name);
			families[i].run();
		}
	code(VipCloseNic(nic), VIP_SUCCESS, "close");
	return tap_end();
}
