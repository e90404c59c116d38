/*
 * This program tests what careless or unlucky programs do. "luck NIC CASE" runs one case, and
 * "luck NIC" lists the cases.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include "tap.h"

static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE a, b;
static struct mem m;

static VIP_VI_HANDLE make_of(VIP_NIC_HANDLE n, int level) {
	VIP_VI_ATTRIBUTES at = vi_attrs(level, NULL);
	VIP_VI_HANDLE v;

	need(VipCreateVi(n, &at, NULL, NULL, &v));
	return v;
}

/* pair opens the NIC and creates a and b. If connected is not 0, it connects them. */
static void pair(int connected) {
	need(VipOpenNic(tap_nic, &nic));
	mem_open(&m, nic, NULL, 1);
	a = make_of(nic, VIP_SERVICE_RELIABLE_RECEPTION);
	b = make_of(nic, VIP_SERVICE_RELIABLE_RECEPTION);
	if (connected)
		connect_pair(nic, a, nic, b);
}

static void round_trip(const char *what) {
	VIP_DESCRIPTOR *d;

	need(VipPostRecv(b, simple(&m, 60, 0, 100), m.h));
	need(VipPostSend(a, simple(&m, 61, 200, 64), m.h));
	code(VipRecvWait(b, PATIENCE, &d), VIP_SUCCESS, "%s: a message comes", what);
	code(VipSendWait(a, PATIENCE, &d), VIP_SUCCESS, "%s: its send is done", what);
}

static void other_nic(void) {
	VIP_NIC_HANDLE n2;
	VIP_PROTECTION_HANDLE tag;
	VIP_MEM_ATTRIBUTES ma;
	VIP_VI_ATTRIBUTES at;
	VIP_CQ_HANDLE cq;
	VIP_VI_HANDLE v;
	struct mem m2;
	VIP_DESCRIPTOR *d;

	pair(1);
	need(VipOpenNic(tap_nic, &n2));
	need(VipCreateCQ(n2, 10, &cq));
	need(VipCreatePtag(n2, &tag));
	at = vi_attrs(VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	code(VipCreateVi(nic, &at, cq, NULL, &v), VIP_INVALID_PARAMETER, "the completion queue of another NIC, for sends");
	code(VipCreateVi(nic, &at, NULL, cq, &v), VIP_INVALID_PARAMETER, "for receives");
	at.Ptag = tag;
	code(VipCreateVi(nic, &at, NULL, NULL, &v), VIP_INVALID_PTAG, "the tag of another NIC, for a VI");
	ma.Ptag = tag;
	ma.EnableRdmaWrite = ma.EnableRdmaRead = VIP_FALSE;
	code(VipSetMemAttributes(nic, m.base, m.h, &ma), VIP_INVALID_PTAG, "for memory");
	code(VipDestroyPtag(nic, tag), VIP_INVALID_PARAMETER, "to be destroyed");
	mem_open(&m2, n2, NULL, 1);
	d = simple(&m, 0, 0, 10);
	d->DS[0].Local.Handle = m2.h;
	d->DS[0].Local.Data.Address = data(&m2);
	need(VipPostSend(a, d, m.h));
	code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "a segment of another NIC's memory");
	ok(d->CS.Status & VIP_STATUS_PROTECTION_ERROR, "is a protection error");
	code(VipDeregisterMem(nic, m2.base, m2.h), VIP_INVALID_PARAMETER, "memory of another NIC");
	need(VipCloseNic(n2));
}

/*
 * end_handle is the function that destroys the handles of the current case. Handles are
 * destroyed twice: by one thread, and by two threads at once.
 */
static VIP_RETURN (*end_handle)(void *);
static pthread_barrier_t both;

static VIP_RETURN end_region(void *h) { return VipDeregisterMem(nic, m.base, (VIP_MEM_HANDLE)(size_t)h); }
static VIP_RETURN end_tag(void *h) { return VipDestroyPtag(nic, h); }

static void *end_at_once(void *h) {
	pthread_barrier_wait(&both);
	return (void *)(size_t)end_handle(h);
}

static void end_twice(const char *what, void *h, void *another, VIP_RETURN (*end)(void *)) {
	pthread_t t;
	void *r;
	VIP_RETURN mine;

	code(end(h), VIP_SUCCESS, "%s: closed", what);
	code(end(h), VIP_INVALID_PARAMETER, "%s: closed twice", what);
	end_handle = end;
	pthread_barrier_init(&both, NULL, 2);
	pthread_create(&t, NULL, end_at_once, another);
	pthread_barrier_wait(&both);
	mine = end(another);
	pthread_join(t, &r);
	ok(mine + (int)(size_t)r == VIP_INVALID_PARAMETER && (mine == VIP_SUCCESS || r == (void *)VIP_SUCCESS), "%s: one of two threads closes it", what);
}

static void closed_twice(void) {
	VIP_MEM_HANDLE mem[2];
	VIP_CQ_HANDLE cq[2];
	VIP_PROTECTION_HANDLE tag[2];
	VIP_NIC_HANDLE n[2];
	int i;

	pair(0);
	for (i = 0; i < 2; i++) {
		need(VipRegisterMem(nic, m.base, 100, NULL, &mem[i]));
		need(VipCreateCQ(nic, 10, &cq[i]));
		need(VipCreatePtag(nic, &tag[i]));
		need(VipOpenNic(tap_nic, &n[i]));
	}
	end_twice("a region", (void *)(size_t)mem[0], (void *)(size_t)mem[1], end_region);
	end_twice("a VI", a, b, VipDestroyVi);
	end_twice("a completion queue", cq[0], cq[1], VipDestroyCQ);
	end_twice("a tag", tag[0], tag[1], end_tag);
	end_twice("a NIC", n[0], n[1], VipCloseNic);
}

/* null calls every function with NULL only, and with one valid handle and otherwise NULL. */
static void null(void) {
	static const char *names[] = {"VipOpenNic", "VipCloseNic", "VipQueryNic", "VipCreatePtag", "VipDestroyPtag", "VipRegisterMem", "VipDeregisterMem",
		"VipSetMemAttributes", "VipQueryMem", "VipCreateVi", "VipDestroyVi", "VipSetViAttributes", "VipQueryVi", "VipConnectWait", "VipConnectAccept",
		"VipConnectReject", "VipConnectRequest", "VipDisconnect", "VipConnectPeerRequest", "VipConnectPeerDone", "VipConnectPeerWait", "VipPostSend",
		"VipSendDone", "VipSendWait", "VipSendNotify", "VipPostRecv", "VipRecvDone", "VipRecvWait", "VipRecvNotify", "VipCreateCQ", "VipDestroyCQ",
		"VipResizeCQ", "VipCQDone", "VipCQWait", "VipCQNotify", "VipErrorCallback", "VipQuerySystemManagementInfo", "VipNSInit", "VipNSGetHostByName",
		"VipNSGetHostByAddr", "VipNSShutdown", "VipPostDeferredSends", "VipAddTagCQ", "VipRemoveTagCQ"};
	typedef VIP_RETURN (*any)(void *, void *, void *, void *, void *, void *); /* functions with fewer arguments ignore the rest */
	void *self = dlopen(NULL, RTLD_NOW), *handles[2];
	unsigned i, k;

	pair(1);
	handles[0] = nic;
	handles[1] = a;
	for (i = 0; i < sizeof names / sizeof *names; i++) {
		any f = (any)dlsym(self, names[i]);

		code(f(NULL, NULL, NULL, NULL, NULL, NULL), VIP_INVALID_PARAMETER, "%s with NULL", names[i]);
		for (k = 0; k < 2; k++) {
			int ends = strcmp(names[i], "VipCloseNic") == 0, r;

			if (ends || strcmp(names[i], "VipDisconnect") == 0 || strcmp(names[i], "VipQueryVi") == 0)
				continue;
			r = f(handles[k], NULL, NULL, NULL, NULL, NULL);
			ok(r == VIP_INVALID_PARAMETER || r == VIP_SUCCESS || r == VIP_INVALID_STATE, "%s with a handle and NULL: %d", names[i], r);
		}
	}
	ok(VipGetUserData(NULL) == NULL, "no data of NULL");
	VipSetUserData(NULL, NULL);
	round_trip("the connection goes on");
}

static int post_errors;

static void count_post_errors(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e) {
	(void)context;
	if (e->ErrorCode == VIP_ERROR_POST_DESC)
		__sync_add_and_fetch(&post_errors, 1);
}

/* misaligned posts descriptors to both queues, at every address that is not a multiple of 64. */
static void misaligned(void) {
	int i;

	pair(1);
	need(VipErrorCallback(nic, NULL, count_post_errors));
	for (i = 1; i < 64; i++) {
		VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(data(&m) + i);

		memcpy((char *)d, (char *)simple(&m, 3, 0, 10), sizeof *d);
		need(VipPostRecv(b, d, m.h));
		need(VipPostSend(a, d, m.h));
	}
	ok(eventually(__sync_add_and_fetch(&post_errors, 0) == 2 * 63), "each is told of, %d", post_errors);
	VipDisconnect(a); /* the descriptors have broken the connection */
	VipDisconnect(b);
	ok(empty(a) == 0 && empty(b) == 0, "none is on a queue");
	connect_pair(nic, a, nic, b);
	round_trip("the VIs go on");
}

/*
 * segments posts segments of memory that is neither mapped nor registered, with the handle of other
 * memory. It does so at this side, and as remote addresses of the other side.
 */
static void segments(void) {
	static const unsigned long at[] = {8, 4096, 0x7ffffffff000, 0x8000000000000000, ~0ul - 8};
	VIP_DESCRIPTOR *d;
	unsigned i;

	pair(0);
	for (i = 0; i < sizeof at / sizeof *at; i++) {
		connect_pair(nic, a, nic, b);
		need(VipPostRecv(b, simple(&m, 0, 0, 100), m.h));
		d = simple(&m, 1, 0, 100);
		d->DS[0].Local.Data.AddressBits = at[i];
		need(VipPostSend(a, d, m.h));
		code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "a send from %#lx", at[i]);
		ok(d && d->CS.Status & VIP_STATUS_PROTECTION_ERROR, "is a protection error, %#x", d ? d->CS.Status : 0);
		VipDisconnect(a);
		VipDisconnect(b);
		empty(a);
		empty(b);
		connect_pair(nic, a, nic, b);
		d = simple(&m, 0, 0, 100);
		d->DS[0].Local.Data.AddressBits = at[i];
		need(VipPostRecv(b, d, m.h));
		need(VipPostSend(a, simple(&m, 1, 0, 100), m.h));
		code(VipRecvWait(b, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "a receive to %#lx", at[i]);
		VipDisconnect(a);
		VipDisconnect(b);
		empty(a);
		empty(b);
		connect_pair(nic, a, nic, b);
		need(VipPostSend(a, rdma(&m, 1, VIP_CONTROL_OP_RDMAWRITE, 0, 100, (void *)at[i], m.h), m.h));
		code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "an RDMA Write to %#lx of the other side", at[i]);
		VipDisconnect(a);
		VipDisconnect(b);
		empty(a);
		empty(b);
	}
	connect_pair(nic, a, nic, b);
	round_trip("the process lives");
}

static int inside;
static VIP_RETURN in_handler[4];

static void everything(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e) {
	VIP_VI_STATE s = VIP_STATE_IDLE;

	(void)context;
	if (e->ErrorCode != VIP_ERROR_CONN_LOST || inside)
		return;
	in_handler[0] = VipQueryVi(e->ViHandle, &s, NULL, NULL, NULL);
	in_handler[1] = VipDisconnect(e->ViHandle);
	empty(e->ViHandle);
	in_handler[2] = VipDestroyVi(e->ViHandle);
	in_handler[3] = VipCloseNic(e->NicHandle);
	__sync_add_and_fetch(&inside, s == VIP_STATE_ERROR ? 1 : 2);
}

static void in_callback(void) {
	int i;

	pair(1);
	need(VipPostRecv(b, simple(&m, 0, 0, 10), m.h));
	need(VipErrorCallback(nic, NULL, everything));
	need(VipDisconnect(a));
	ok(eventually(__sync_add_and_fetch(&inside, 0)), "the handler ran");
	ok(inside == 1, "the VI was in error when it did");
	for (i = 0; i < 4; i++)
		code(in_handler[i], VIP_SUCCESS, "call %d in the handler", i);
	code(VipQueryNic(nic, NULL), VIP_INVALID_PARAMETER, "the NIC is closed");
}

static void post_again(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d) {
	(void)context, (void)n;
	if (d->CS.Status & VIP_STATUS_ERROR_MASK)
		return;
	if (VipPostRecv(v, simple(&m, 0, 0, 10), m.h) == VIP_SUCCESS && VipRecvNotify(v, NULL, post_again) == VIP_SUCCESS)
		__sync_add_and_fetch(&inside, 1);
}

static void notify_in_notify(void) {
	VIP_DESCRIPTOR *d;
	int i;

	pair(1);
	need(VipPostRecv(b, simple(&m, 0, 0, 10), m.h));
	need(VipRecvNotify(b, NULL, post_again));
	for (i = 1; i <= 50; i++) {
		need(VipPostSend(a, simple(&m, 1, 0, 10), m.h));
		need(VipSendWait(a, PATIENCE, &d));
		if (!eventually(__sync_add_and_fetch(&inside, 0) == i))
			break;
	}
	ok(i == 51, "a handler posts and registers again, fifty times");
}

/* shares_memory returns 1 if a connection of this process uses shared memory, otherwise 0. */
static int shares_memory(void) {
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int found = 0;

	while (f && fgets(line, sizeof line, f))
		found |= strstr(line, "viaduct-rings") != NULL;
	fclose(f);
	return found;
}

/*
 * Memory is unmapped while it is registered. Transfers that touch it must fail on each path. The
 * environment variable LUCK_PATH names the expected path: memory or tcp.
 */
static void unmapped(void) {
	const char *path = getenv("LUCK_PATH");
	char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	VIP_MEM_HANDLE h;
	VIP_DESCRIPTOR *d;
	VIP_MEM_ATTRIBUTES at = {NULL, 1, 1};
	int i;

	pair(0);
	need(VipRegisterMem(nic, p, 1 << 20, &at, &h));
	for (i = 0; i < 3; i++) {
		static const int sizes[] = {100, 10000, 60000};

		connect_pair(nic, a, nic, b);
		if (path)
			ok(shares_memory() == (strcmp(path, "memory") == 0), "the connection goes through %s", path);
		need(VipPostRecv(b, simple(&m, 0, 0, ROOM), m.h));
		d = simple(&m, 1, 0, sizes[i]);
		d->DS[0].Local.Data.Address = p;
		d->DS[0].Local.Handle = h;
		if (i == 0)
			munmap(p, 1 << 20);
		need(VipPostSend(a, d, m.h));
		code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "a send of %d bytes that are unmapped", sizes[i]);
		ok(d && d->CS.Status & VIP_STATUS_PROTECTION_ERROR, "is a protection error, %#x", d ? d->CS.Status : 0);
		VipDisconnect(a);
		VipDisconnect(b);
		empty(a);
		empty(b);
		connect_pair(nic, a, nic, b);
		d = simple(&m, 0, 0, sizes[i]);
		d->DS[0].Local.Data.Address = p;
		d->DS[0].Local.Handle = h;
		need(VipPostRecv(b, d, m.h));
		need(VipPostSend(a, simple(&m, 1, 0, sizes[i]), m.h));
		code(VipRecvWait(b, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "a receive into them");
		ok(d && d->CS.Status & VIP_STATUS_PROTECTION_ERROR, "is one too, %#x", d ? d->CS.Status : 0);
		VipDisconnect(a);
		VipDisconnect(b);
		empty(a);
		empty(b);
		connect_pair(nic, a, nic, b);
		need(VipPostSend(a, rdma(&m, 1, VIP_CONTROL_OP_RDMAWRITE, 0, sizes[i], p, h), m.h));
		code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "an RDMA Write to them");
		VipDisconnect(a);
		VipDisconnect(b);
		empty(a);
		empty(b);
		connect_pair(nic, a, nic, b);
		need(VipPostSend(a, rdma(&m, 1, VIP_CONTROL_OP_RDMAREAD, 0, sizes[i], p, h), m.h));
		code(VipSendWait(a, PATIENCE, &d), VIP_DESCRIPTOR_ERROR, "an RDMA Read of them");
		VipDisconnect(a);
		VipDisconnect(b);
		empty(a);
		empty(b);
	}
	code(VipDeregisterMem(nic, p, h), VIP_SUCCESS, "they can be deregistered");
	connect_pair(nic, a, nic, b);
	round_trip("the process lives");
}

static int lost;

static void count_lost(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e) {
	(void)context;
	if (e->ErrorCode == VIP_ERROR_COMP_PROT || e->ErrorCode == VIP_ERROR_POST_DESC)
		__sync_add_and_fetch(&lost, 1);
}

static void descriptor_unmapped(void) {
	char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	VIP_MEM_HANDLE h;
	VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)p;

	pair(0);
	need(VipErrorCallback(nic, NULL, count_lost));
	need(VipRegisterMem(nic, p, 4096, NULL, &h));
	need(VipPostRecv(b, d, h));
	connect_pair(nic, a, nic, b);
	munmap(p, 4096);
	need(VipPostSend(a, simple(&m, 1, 0, 0), m.h));
	ok(eventually(__sync_add_and_fetch(&lost, 0) == 1), "a completion that can't be written is told");
	VipDisconnect(b);
	code(VipPostRecv(b, d, h), VIP_SUCCESS, "a descriptor that is not there");
	ok(eventually(__sync_add_and_fetch(&lost, 0) == 2), "is told too");
}

static void fork_use(void) {
	VIP_NIC_HANDLE n2;
	VIP_DESCRIPTOR *d;
	int s;
	pid_t pid;

	pair(1);
	pid = fork();
	if (pid == 0) {
		int bad = 0;

		alarm(20);
		bad |= VipOpenNic(tap_nic, &n2) != VIP_ERROR_RESOURCE;
		bad |= (VipSendDone(a, &d) != VIP_ERROR_RESOURCE) << 1;
		bad |= (VipPostSend(a, simple(&m, 0, 0, 1), m.h) != VIP_ERROR_RESOURCE) << 2;
		bad |= (VipRecvWait(b, VIP_INFINITE, &d) != VIP_ERROR_RESOURCE) << 3;
		bad |= (VipCloseNic(nic) != VIP_ERROR_RESOURCE) << 4;
		_exit(bad);
	}
	waitpid(pid, &s, 0);
	ok(WIFEXITED(s) && WEXITSTATUS(s) == 0, "a child gets VIP_ERROR_RESOURCE, %#x", s);
	round_trip("the parent goes on");
}

static void fork_exec(void) {
	int s, i;
	pid_t pid;

	pair(1);
	for (i = 0; i < 5; i++) {
		pid = fork();
		if (pid == 0) {
			execlp("true", "true", (char *)NULL);
			_exit(9);
		}
		waitpid(pid, &s, 0);
		ok(WIFEXITED(s) && WEXITSTATUS(s) == 0, "fork and exec");
	}
	ok(system("true") == 0, "system");
	round_trip("the parent goes on");
}

static void fork_first(void) {
	int s;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(60);
		pair(1);
		round_trip("in a child");
		_exit(tap_failed);
	}
	waitpid(pid, &s, 0);
	ok(WIFEXITED(s) && WEXITSTATUS(s) == 0, "a program that forks before it opens a NIC, %#x", s);
}

static volatile sig_atomic_t alarms;
static volatile int depth_sum;

static int deep(int n) {
	volatile char room[1024];

	memset((char *)room, n, sizeof room);
	return n ? deep(n - 1) + room[5] : room[6];
}

static void on_alarm(int s) {
	(void)s;
	alarms++;
	depth_sum += deep(50); /* this uses most of the 64 KiB that a handler may use */
}

static void signals(void) {
	struct itimerval t = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
	struct sigaction sa;
	VIP_DESCRIPTOR *d;
	int i, good = 1;
	long long end;

	pair(1);
	memset(&sa, 0, sizeof sa);
	sa.sa_handler = on_alarm; /* neither SA_ONSTACK nor SA_RESTART, as in most programs */
	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &t, NULL);
	end = tap_ms() + 4000;
	for (i = 0; good && (tap_ms() < end || (alarms <= 100 && tap_ms() < end + PATIENCE)); i++) {
		VIP_RETURN r;

		memset(data(&m) + 200, i, 64);
		if (VipPostRecv(b, simple(&m, 0, 0, 100), m.h) != VIP_SUCCESS || VipPostSend(a, simple(&m, 1, 200, 64), m.h) != VIP_SUCCESS)
			good = 0;
		if (i % 2) {
			while ((r = VipRecvDone(b, &d)) == VIP_NOT_DONE)
				;
			good &= r == VIP_SUCCESS;
			while ((r = VipSendDone(a, &d)) == VIP_NOT_DONE)
				;
			good &= r == VIP_SUCCESS;
		} else {
			good &= VipRecvWait(b, PATIENCE, &d) == VIP_SUCCESS;
			good &= VipSendWait(a, PATIENCE, &d) == VIP_SUCCESS;
		}
		good &= data(&m)[0] == (char)i;
	}
	setitimer(ITIMER_REAL, &off, NULL);
	ok(good, "%d messages", i);
	ok(alarms > 100, "beside %d signals", (int)alarms);
}

static void exits(void) {
	int s;
	pid_t pid = fork();

	if (pid == 0) {
		pair(1);
		VipPostRecv(b, simple(&m, 0, 0, 10), m.h);
		exit(7);
	}
	waitpid(pid, &s, 0);
	ok(WIFEXITED(s) && WEXITSTATUS(s) == 7, "exit without cleaning up, %#x", s);
}

#define MANY 1000

static void many_vis(void) {
	static VIP_VI_HANDLE x[MANY / 2], y[MANY / 2];
	VIP_DESCRIPTOR *d;
	int i, good = 1;

	pair(0);
	for (i = 0; i < MANY / 2; i++) {
		x[i] = make_of(nic, 2);
		y[i] = make_of(nic, 2);
		need(VipPostRecv(y[i], simple(&m, 0, 0, 10), m.h));
		connect_pair(nic, x[i], nic, y[i]);
	}
	ok(1, "%d VIs are connected", MANY);
	for (i = 0; i < MANY / 2; i++)
		if (VipPostSend(x[i], simple(&m, 1, 0, 10), m.h) != VIP_SUCCESS || VipSendWait(x[i], PATIENCE, &d) != VIP_SUCCESS ||
			VipRecvWait(y[i], PATIENCE, &d) != VIP_SUCCESS)
			good = 0;
	ok(good, "a message over each");
	for (i = 0; i < MANY / 2; i++) {
		VipDisconnect(x[i]);
		VipDisconnect(y[i]);
		good &= VipDestroyVi(x[i]) == VIP_SUCCESS && VipDestroyVi(y[i]) == VIP_SUCCESS;
	}
	ok(good, "all are destroyed");
}

#define THREADS 100

static int thread_bad;
static pthread_barrier_t thread_start;

/*
 * come_and_go creates and destroys VIs while other threads do the same. Every VI must have a
 * handle of its own.
 */
static void come_and_go(void) {
	VIP_VI_HANDLE v[8];
	int i, k;

	pthread_barrier_wait(&thread_start);
	for (k = 0; k < 25; k++) {
		for (i = 0; i < 8; i++) {
			v[i] = make_of(nic, 2);
			VipSetUserData(v[i], &v[i]);
		}
		for (i = 0; i < 8; i++)
			if (VipGetUserData(v[i]) != &v[i] || VipDestroyVi(v[i]) != VIP_SUCCESS)
				__sync_add_and_fetch(&thread_bad, 1);
	}
}

static void *thread_run(void *p) {
	VIP_VI_HANDLE x, y;
	struct mem t;
	VIP_DESCRIPTOR *d;
	int i;

	(void)p;
	come_and_go();
	x = make_of(nic, 2);
	y = make_of(nic, 2);
	mem_open(&t, nic, NULL, 1);
	connect_pair(nic, x, nic, y);
	for (i = 0; i < 100; i++)
		if (VipPostRecv(y, simple(&t, 0, 0, 64), t.h) != VIP_SUCCESS || VipPostSend(x, simple(&t, 1, 100, 64), t.h) != VIP_SUCCESS ||
			VipRecvWait(y, PATIENCE, &d) != VIP_SUCCESS || VipSendWait(x, PATIENCE, &d) != VIP_SUCCESS)
			__sync_add_and_fetch(&thread_bad, 1);
	VipDisconnect(x);
	VipDisconnect(y);
	empty(x);
	empty(y);
	if (VipDestroyVi(x) != VIP_SUCCESS || VipDestroyVi(y) != VIP_SUCCESS)
		__sync_add_and_fetch(&thread_bad, 1);
	mem_close(&t);
	return NULL;
}

#define SHARERS 20 /* number of threads that share a VI */
#define SHARED 500 /* number of messages of each thread */

/*
 * posted[i] is 1 while descriptor i is posted. Each sharer has one descriptor for receives and
 * one for sends.
 */
static int posted[2 * SHARERS];
static int shared_taken[2];

/* post_mine posts descriptor i, which no other thread posts. */
static void post_mine(int i) {
	VIP_DESCRIPTOR *d = simple(&m, i, 1000 + 64 * i, 64);

	if (__sync_lock_test_and_set(&posted[i], 1) || (i % 2 ? VipPostSend(a, d, m.h) : VipPostRecv(b, d, m.h)) != VIP_SUCCESS)
		__sync_add_and_fetch(&thread_bad, 1);
}

/*
 * take_any takes a descriptor of any sharer from a queue. It checks that each post is returned
 * once.
 */
static void take_any(int send, int wait) {
	VIP_DESCRIPTOR *d = NULL;
	VIP_RETURN r = send ? wait ? VipSendWait(a, 1, &d) : VipSendDone(a, &d) : wait ? VipRecvWait(b, 1, &d) : VipRecvDone(b, &d);
	long i;

	if (!d)
		return;
	i = ((char *)d - m.base) / 256;
	if (r != VIP_SUCCESS || i < 0 || i >= 2 * SHARERS || i % 2 != send || d != desc(&m, i) || !__sync_bool_compare_and_swap(&posted[i], 1, 0))
		__sync_add_and_fetch(&thread_bad, 1);
	__sync_add_and_fetch(&shared_taken[send], 1);
}

static void *share(void *p) {
	int me = 2 * *(int *)p, i;
	long long end = tap_ms() + PATIENCE;

	for (i = 0; i < SHARED && tap_ms() < end; i++) {
		post_mine(me);
		post_mine(me + 1);
		while ((__sync_add_and_fetch(&posted[me], 0) || __sync_add_and_fetch(&posted[me + 1], 0)) && tap_ms() < end) {
			take_any(0, i % 8 == 0);
			take_any(1, i % 8 == 1);
			sched_yield();
		}
	}
	return NULL;
}

static void many_threads(void) {
	pthread_t t[THREADS];
	int i, n[SHARERS];

	pair(0);
	pthread_barrier_init(&thread_start, NULL, THREADS);
	for (i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, thread_run, NULL);
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	ok(thread_bad == 0, "a hundred threads, %d failures", thread_bad);

	thread_bad = 0;
	connect_pair(nic, a, nic, b);
	for (i = 0; i < SHARERS; i++) {
		n[i] = i;
		pthread_create(&t[i], NULL, share, &n[i]);
	}
	for (i = 0; i < SHARERS; i++)
		pthread_join(t[i], NULL);
	ok(thread_bad == 0 && shared_taken[0] == SHARERS * SHARED && shared_taken[1] == SHARERS * SHARED,
		"%d threads share a VI: %d receives and %d sends come back, %d failures", SHARERS, shared_taken[0], shared_taken[1], thread_bad);
}

/* Old programs ask without a pause until their server waits. However late the server is, they have
 * to be told VIP_NO_MATCH, and nothing else. */
static void late_server(void) {
	struct addr local, remote;
	VIP_VI_ATTRIBUTES at;
	VIP_RETURN r = VIP_NO_MATCH;
	/* FC-VI remembers 4096 refused requests. VI/TCP pauses for 10 ms between them. */
	int i, most = strncmp(tap_nic, "fcvi", 4) == 0 ? 5000 : 100;

	pair(0);
	for (i = 0; i < most && r == VIP_NO_MATCH; i++)
		r = VipConnectRequest(a, address(&local, nic, "caller"), address(&remote, nic, "late"), PATIENCE, &at);
	ok(r == VIP_NO_MATCH, "attempt %d without a server returns %d", i, r);
	connect_pair(nic, a, nic, b);
	ok(1, "the server is found");
}

static int stop;

static void *poster(void *p) {
	(void)p;
	while (!__sync_add_and_fetch(&stop, 0))
		VipPostSend(a, simple(&m, 1, 0, 8), m.h);
	return NULL;
}

static void *taker(void *p) {
	VIP_DESCRIPTOR *d;

	while (!__sync_add_and_fetch(&stop, 0))
		(void)(p ? VipSendDone(a, &d) : VipSendWait(a, 1, &d));
	return NULL;
}

static void torn_down(void) {
	pthread_t t[6];
	int i, k;

	for (k = 0; k < 10; k++) {
		pair(1);
		stop = 0;
		for (i = 0; i < 6; i++)
			pthread_create(&t[i], NULL, i < 2 ? poster : taker, i % 2 ? &stop : NULL);
		tap_nap(1);
		need(VipErrorCallback(nic, NULL, count_lost));
		code(VipCloseNic(nic), VIP_SUCCESS, "close a NIC that threads use");
		__sync_add_and_fetch(&stop, 1);
		for (i = 0; i < 6; i++)
			pthread_join(t[i], NULL);
		free(m.base);
	}
}

/*
 * last_word polls memory for the last word of an RDMA Write. When it has arrived, all other
 * words must have arrived too.
 */
static void last_word(void) {
	VIP_NIC_HANDLE n2;
	struct mem t;
	VIP_DESCRIPTOR *d;
	static const int sizes[] = {8, 12, 64, 100, 1000, 4096, 5000, 30000, 60000};
	unsigned i, k, j, torn = 0;

	need(VipOpenNic(tap_nic, &n2));
	pair(1);
	mem_open(&t, nic, NULL, 1);
	for (i = 1; i <= 2000; i++) {
		int words = sizes[i % 9] / 4;
		volatile unsigned *to = (volatile unsigned *)data(&t);

		for (k = 0; k < (unsigned)words; k++)
			((unsigned *)data(&m))[k] = i;
		need(VipPostSend(a, rdma(&m, 1, VIP_CONTROL_OP_RDMAWRITE, 0, words * 4, data(&t), t.h), m.h));
		while (to[words - 1] != i)
			;
		__sync_synchronize();
		for (j = 0; j < (unsigned)words; j++)
			torn += to[j] != i;
		need(VipSendWait(a, PATIENCE, &d));
	}
	ok(torn == 0, "%u words of 2000 writes were late", torn);
}

/*
 * posted_and_left checks that gathered sends are sent even if the program makes no further call.
 */
static void posted_and_left(void) {
	VIP_DESCRIPTOR *d;
	int i, n, good = 1;

	pair(1);
	for (n = 1; n <= 30; n++) {
		for (i = 0; i < n; i++)
			need(VipPostRecv(b, simple(&m, i, 64 * i, 64), m.h));
		for (i = 0; i < n; i++)
			need(VipPostSend(a, simple(&m, 30 + i, 10000 + n, 8), m.h));
		for (i = 0; i < n; i++)
			good &= eventually(__atomic_load_n(&desc(&m, i)->CS.Status, __ATOMIC_ACQUIRE) & VIP_STATUS_DONE);
		for (i = 0; good && i < n; i++) {
			good &= VipRecvDone(b, &d) == VIP_SUCCESS && d == desc(&m, i);
			while (VipSendDone(a, &d) == VIP_NOT_DONE)
				;
			good &= d == desc(&m, 30 + i);
		}
		if (!good)
			break;
	}
	ok(good, "bursts of 1 to %d sends come by themselves", n - 1);
}

/* flushers returns the number of threads of this process that fetch gathered sends. */
static int flushers(void) {
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *e;
	int n = 0;

	while (tasks && (e = readdir(tasks))) {
		char path[300], name[32] = "";
		FILE *f;

		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		if ((f = fopen(path, "r"))) {
			n += fgets(name, sizeof name, f) && strncmp(name, "vipl flusher", 12) == 0;
			fclose(f);
		}
	}
	if (tasks)
		closedir(tasks);
	return n;
}

/* say sends eight bytes from one VI to another and polls until they arrive. */
static void say(VIP_VI_HANDLE from, VIP_VI_HANDLE to) {
	VIP_DESCRIPTOR *d;
	VIP_RETURN r;

	need(VipPostRecv(to, simple(&m, 0, 0, 8), m.h));
	need(VipPostSend(from, simple(&m, 1, 100, 8), m.h));
	while ((r = VipRecvDone(to, &d)) == VIP_NOT_DONE)
		; /* usually the first check finds the message */
	need(r);
	while ((r = VipSendDone(from, &d)) == VIP_NOT_DONE)
		;
	need(r);
}

/*
 * answers checks that an answer to a received message is not gathered, even if the receiver
 * never polled an empty queue.
 */
static void answers(void) {
	VIP_DESCRIPTOR *d;
	int i, k, good = 1;

	need(VipOpenNic(tap_nic, &nic));
	mem_open(&m, nic, NULL, 1);
	a = make_of(nic, VIP_SERVICE_RELIABLE_DELIVERY);
	b = make_of(nic, VIP_SERVICE_RELIABLE_DELIVERY);
	connect_pair(nic, a, nic, b);
	for (i = 0; i < 1000; i++) {
		say(a, b);
		say(b, a);
	}
	ok(flushers() == 0, "of %d messages and answers none was gathered", i);
	for (i = 0; i < 4; i++) { /* long sends are not gathered either, however many follow one another */
		for (k = 0; k < 10; k++)
			need(VipPostSend(a, rdma(&m, k, VIP_CONTROL_OP_RDMAWRITE, 0, ROOM, data(&m), m.h), m.h));
		for (k = 0; k < 10; k++) {
			need(VipSendWait(a, PATIENCE, &d));
			good &= d == desc(&m, k);
		}
	}
	ok(flushers() == 0 && good, "of %d long sends neither", 10 * i);
	for (i = 0; i < 2; i++) { /* the library starts to gather after the first ten sends */
		for (k = 0; k < 10; k++)
			need(VipPostRecv(b, simple(&m, k, 0, 8), m.h));
		for (k = 0; k < 10; k++)
			need(VipPostSend(a, simple(&m, 10 + k, 100, 8), m.h));
		for (k = 0; k < 10; k++) {
			while (VipSendDone(a, &d) == VIP_NOT_DONE)
				;
			good &= d == desc(&m, 10 + k);
		}
		for (k = 0; k < 10; k++)
			need(VipRecvWait(b, PATIENCE, &d));
	}
	ok(good, "each send comes back, in order");
	ok(eventually(flushers() == 1), "ten in a row were");
}

/*
 * taken_sends counts the sends taken off the queue. Two threads post sends, which are gathered,
 * and a third thread takes them off.
 */
static int taken_sends;

static void *bursts(void *p) {
	int i, first = p ? 30 : 0;

	for (i = 0; i < 2000; i++) {
		while (__sync_add_and_fetch(&stop, 0) - __sync_add_and_fetch(&taken_sends, 0) > 20)
			;
		__sync_add_and_fetch(&stop, 1);
		if (VipPostSend(a, rdma(&m, first + i % 30, VIP_CONTROL_OP_RDMAWRITE, 0, 8, data(&m) + 100, m.h), m.h) != VIP_SUCCESS)
			__sync_add_and_fetch(&thread_bad, 1);
	}
	return NULL;
}

static void gathered_by_many(void) {
	pthread_t t[2];
	VIP_DESCRIPTOR *d;
	long long end = tap_ms() + PATIENCE;
	int i, r;

	need(VipOpenNic(tap_nic, &nic));
	mem_open(&m, nic, NULL, 1);
	a = make_of(nic, VIP_SERVICE_RELIABLE_RECEPTION);
	b = make_of(nic, VIP_SERVICE_RELIABLE_RECEPTION);
	connect_pair(nic, a, nic, b);
	for (i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, bursts, i ? &stop : NULL);
	while (taken_sends < 4000 && tap_ms() < end) {
		r = VipSendDone(a, &d);
		if (r == VIP_SUCCESS)
			__sync_add_and_fetch(&taken_sends, 1);
		else if (d)
			thread_bad++;
	}
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	ok(taken_sends == 4000 && thread_bad == 0, "%d sends of two threads, %d failures", taken_sends, thread_bad);
	code(VipSendDone(a, &d), VIP_DESCRIPTOR_ERROR, "no more");
	ok(d == NULL, "than those");
}

static const struct tap_case cases[] = {
	{"other-nic", other_nic}, {"closed-twice", closed_twice}, {"null", null}, {"misaligned", misaligned}, {"segments", segments},
	{"callback", in_callback}, {"notify", notify_in_notify}, {"unmapped", unmapped},
	{"descriptor-unmapped", descriptor_unmapped}, {"fork", fork_use}, {"exec", fork_exec}, {"fork-first", fork_first},
	{"signals", signals}, {"exit", exits}, {"vis", many_vis}, {"threads", many_threads},
	{"late-server", late_server}, {"torn-down", torn_down}, {"last-word", last_word},
	{"posted-and-left", posted_and_left}, {"answers", answers}, {"gathered-by-many", gathered_by_many},
};

int main(int argc, char **argv) { return tap_case(argc, argv, cases, sizeof cases / sizeof *cases); }
