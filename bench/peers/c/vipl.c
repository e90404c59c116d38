/*
 * libvipl between two processes: the speed of VI/TCP or FC-VI for a C program, by the
 * same loops that drive_vi.go has in Go. One run measures one operation and prints one
 * JSON line.
 *
 *   vipl write SIZE DEPTH BELL FOOTPRINT SECONDS   RDMA Writes, DEPTH outstanding, posted BELL at a time
 *   vipl ping  SIZE 1     1    FOOTPRINT SECONDS   Send and Send back, both sides poll
 *
 * The NIC is "bench", which VIPL_CONFIG describes. The program waits for the completions
 * of Writes of 64 KiB and more, and polls for others. The parent measures, a child is
 * the peer.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vipl.h>

#define RECVS 16    /* receives kept posted; if there were one, each new post would cost a message to the peer */
#define MAXDEPTH 512
#define DESCRIPTORS (MAXDEPTH + 2 * RECVS)
#define LOT (64 << 10) /* messages of at least this many bytes wait for completions instead of polling */

#define CHECK(call)                                                          \
	do {                                                                 \
		VIP_RETURN code = (call);                                    \
		if (code != VIP_SUCCESS)                                     \
			die(#call, code);                                    \
	} while (0)

/* What the peer sends through the pipe: its host address, and where the Writes go. */
struct hello {
	uint16_t host_len;
	uint8_t host[18];
	VIP_UINT64 at;
	VIP_MEM_HANDLE handle;
};

static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE handle;
static VIP_DESCRIPTOR *descriptors;
static char *data;
static size_t size, footprint;

static void die(const char *what, int code)
{
	fprintf(stderr, "%s: %d\n", what, code);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void setup(void)
{
	size_t n = DESCRIPTORS * sizeof(VIP_DESCRIPTOR);
	VIP_MEM_ATTRIBUTES mem = {NULL, VIP_TRUE, VIP_TRUE};
	VIP_VI_ATTRIBUTES a = {VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_DFC, 0, NULL, NULL, VIP_TRUE, VIP_TRUE};
	void *p;
	/* Round up, so that the data begin at a page boundary. */
	n = (n + 4095) & ~4095ul;
	if (posix_memalign(&p, 4096, n + footprint))
		die("memory", 0);
	memset(p, 1, n + footprint);
	descriptors = p;
	data = (char *)p + n;
	CHECK(VipOpenNic("bench", &nic));
	CHECK(VipRegisterMem(nic, p, n + footprint, &mem, &handle));
	a.MaxTransferSize = size > LOT ? size : LOT;
	CHECK(VipCreateVi(nic, &a, NULL, NULL, &vi));
}

static VIP_DESCRIPTOR *fill(int i, char *at, size_t n)
{
	VIP_DESCRIPTOR *d = &descriptors[i];
	memset(d, 0, sizeof *d);
	d->CS.SegCount = 1;
	d->CS.Length = n;
	d->DS[0].Local.Data.Address = at;
	d->DS[0].Local.Handle = handle;
	d->DS[0].Local.Length = n;
	return d;
}

static void post_recv(VIP_DESCRIPTOR *d)
{
	d->CS.Status = 0;
	CHECK(VipPostRecv(vi, d, handle));
}

static void post_recvs(void)
{
	for (int i = 0; i < RECVS; i++)
		post_recv(fill(i, data, size < footprint ? size : footprint));
}

static VIP_DESCRIPTOR *poll_send(void)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN r;
	while ((r = VipSendDone(vi, &d)) == VIP_NOT_DONE)
		;
	if (r != VIP_SUCCESS)
		die("VipSendDone", r);
	return d;
}

static VIP_DESCRIPTOR *poll_recv(void)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN r;
	while ((r = VipRecvDone(vi, &d)) == VIP_NOT_DONE)
		;
	if (r != VIP_SUCCESS)
		die("VipRecvDone", r);
	return d;
}

static void send_one(VIP_DESCRIPTOR *d)
{
	d->CS.Status = 0;
	CHECK(VipPostSend(vi, d, handle));
}

/* A VIP_NET_ADDRESS with room for any host address and discriminator. */
union address {
	VIP_NET_ADDRESS a;
	char room[64];
};

static VIP_NET_ADDRESS *address(union address *a, const uint8_t *host, int len)
{
	memset(a, 0, sizeof *a);
	a->a.HostAddressLen = len;
	a->a.DiscriminatorLen = 5;
	memcpy(a->a.HostAddress, host, len);
	memcpy((char *)a->a.HostAddress + len, "bench", 5);
	return &a->a;
}

/* serve is the peer. It answers every message with one, until the initiator disconnects. */
static void serve(int up, int pinging)
{
	union address local, remote;
	VIP_NIC_ATTRIBUTES na;
	VIP_VI_ATTRIBUTES va;
	VIP_CONN_HANDLE conn;
	VIP_DESCRIPTOR *d, *reply;
	struct hello h = {0};
	setup();
	CHECK(VipQueryNic(nic, &na));
	h.host_len = na.NicAddressLen;
	memcpy(h.host, na.LocalNicAddress, h.host_len);
	h.at = (VIP_UINT64)(size_t)data;
	h.handle = handle;
	post_recvs();
	if (write(up, &h, sizeof h) != sizeof h)
		die("hello", 0);
	CHECK(VipConnectWait(nic, address(&local, h.host, h.host_len), 10000, &remote.a, &va, &conn));
	CHECK(VipConnectAccept(conn, vi));
	reply = fill(RECVS, data, size < footprint ? size : footprint);
	for (;;) {
		if (pinging) {
			while (VipRecvDone(vi, &d) == VIP_NOT_DONE)
				;
		} else {
			VipRecvWait(vi, VIP_INFINITE, &d);
		}
		if (!d || d->CS.Status & VIP_STATUS_ERROR_MASK)
			return; /* disconnected */
		send_one(reply); /* send first, because the peer waits for it */
		post_recv(d);
		poll_send();
	}
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(uint64_t *)a, y = *(uint64_t *)b;
	return (x > y) - (x < y);
}

/* round_trip sends s and waits for the answer. While the message is in flight, it posts the receive
 * of the previous answer again and polls for the completion of the send: the peer waits for neither. */
static void round_trip(VIP_DESCRIPTOR *s)
{
	static VIP_DESCRIPTOR *used;
	send_one(s);
	if (used)
		post_recv(used);
	poll_send();
	used = poll_recv();
}

static void ping(uint64_t limit)
{
	static uint64_t rtt[1 << 20];
	VIP_DESCRIPTOR *s = fill(RECVS, data, size);
	uint64_t n = 0, start, last, t;
	post_recvs();
	for (int i = 0; i < 100; i++) /* warm up */
		round_trip(s);
	start = last = now();
	do {
		round_trip(s);
		t = now();
		rtt[n++] = t - last;
		last = t;
	} while (t - start < limit && n < 1 << 20);
	qsort(rtt, n, sizeof rtt[0], compare);
	printf("{\"messages\":%llu,\"seconds\":%.9f,\"latency_us\":%.4f}\n", (unsigned long long)n, (last - start) / 1e9,
	       rtt[n / 2] / 2e3); /* the median */
}

/*
 * reap dequeues all completed sends and returns their number. For messages of LOT bytes or more it
 * waits for the first; for shorter messages it may return 0.
 */
static int reap(void)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN r;
	int n = 0;
	if (size >= LOT) {
		CHECK(VipSendWait(vi, VIP_INFINITE, &d));
		n++;
	}
	while ((r = VipSendDone(vi, &d)) == VIP_SUCCESS)
		n++;
	if (r != VIP_NOT_DONE && d)
		die("VipSendDone", r);
	return n;
}

/*
 * stream posts Writes until limit nanoseconds have passed, and returns their number. Then it sends a
 * last message and stops the clock when the answer arrives: a VI delivers in order, so all Writes
 * have arrived by then. Sets *nanos to the time taken.
 */
static uint64_t stream(int depth, int bell, uint64_t limit, uint64_t *nanos)
{
	uint64_t start = now(), n = 0, looked = 0, every = (256 << 10) / size;
	int next = 0, out = 0;
	VIP_DESCRIPTOR *last;
	for (;;) {
		if (n - looked >= every) { /* read the clock */
			looked = n;
			if (now() - start >= limit)
				break;
		}
		while (out + bell > depth)
			out -= reap();
		for (int i = 0; i < bell; i++) {
			send_one(&descriptors[2 * RECVS + next]);
			next = (next + 1) % depth;
		}
		out += bell;
		n += bell;
	}
	while (out > 0)
		out -= reap();
	post_recv(fill(0, data, size < footprint ? size : footprint));
	last = fill(RECVS, data, 0);
	last->CS.SegCount = 0;
	last->CS.Control = VIP_CONTROL_IMMEDIATE;
	send_one(last);
	CHECK(VipRecvWait(vi, VIP_INFINITE, &last));
	*nanos = now() - start;
	CHECK(VipSendWait(vi, VIP_INFINITE, &last));
	return n;
}

int main(int argc, char **argv)
{
	union address local, remote;
	VIP_VI_ATTRIBUTES va;
	VIP_NIC_ATTRIBUTES na;
	struct hello h;
	int up[2], depth, bell, pinging;
	uint64_t limit, n, nanos;
	VIP_RETURN r;
	pid_t child;
	if (argc != 7 || pipe(up)) {
		fprintf(stderr, "usage: vipl write|ping SIZE DEPTH BELL FOOTPRINT SECONDS\n");
		return 2;
	}
	pinging = !strcmp(argv[1], "ping");
	size = strtoull(argv[2], 0, 10);
	depth = atoi(argv[3]);
	bell = atoi(argv[4]);
	footprint = strtoull(argv[5], 0, 10);
	limit = atof(argv[6]) * 1e9;
	if (size < 1 || footprint < size || bell < 1 || depth < bell || depth % bell || depth > MAXDEPTH)
		return 2;
	child = fork();
	if (child == 0) {
		serve(up[1], pinging);
		_exit(0);
	}
	close(up[1]);
	setup();
	if (read(up[0], &h, sizeof h) != sizeof h)
		die("the peer did not start", 0);
	CHECK(VipQueryNic(nic, &na));
	for (n = now(); (r = VipConnectRequest(vi, address(&local, na.LocalNicAddress, na.NicAddressLen),
			 address(&remote, h.host, h.host_len), 10000, &va)) == VIP_NO_MATCH && now() - n < 10000000000ull;)
		;
	if (r != VIP_SUCCESS)
		die("VipConnectRequest", r);
	if (pinging) {
		ping(limit);
	} else {
		for (int i = 0; i < depth; i++) {
			size_t off = i % (footprint / size) * size;
			VIP_DESCRIPTOR *d = fill(2 * RECVS + i, data + off, size);
			d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
			d->CS.SegCount = 2;
			d->DS[1] = d->DS[0];
			d->DS[0].Remote.Data.AddressBits = h.at + off;
			d->DS[0].Remote.Handle = h.handle;
			d->DS[0].Remote.Reserved = 0;
		}
		stream(depth, bell, limit / 8, &nanos); /* not measured: fills the pools and opens the congestion window */
		n = stream(depth, bell, limit, &nanos);
		printf("{\"bytes\":%llu,\"seconds\":%.9f,\"messages\":%llu}\n", (unsigned long long)(n * size), nanos / 1e9,
		       (unsigned long long)n);
	}
	fflush(stdout);
	CHECK(VipDisconnect(vi));
	waitpid(child, 0, 0);
	return 0;
}
