/*
 * A message passing library as they were written on VIPL about 2000: every process is
 * connected with every other, all receives lie on one completion queue, short messages go
 * eagerly with credits, long ones by RDMA Write with immediate data after a handshake. It
 * is written from the header and the specification alone and stays as it is.
 *
 *	mpi NIC
 */
#define VIPL095
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vipl.h>

#define NPROC 4
#define BUFS 16 /* receives posted on each connection */
#define CREDITS (BUFS - 2)
#define BUFSIZE 2048
#define EAGER (BUFSIZE - (int)sizeof(VIP_DESCRIPTOR) - (int)sizeof(header_t))
#define POLLS 100
#define TIMEOUT 30000
#define LONGEST 200000

typedef enum { EAGER_DATA = 1, REQUEST, CLEAR, NOTHING } kind_t;

typedef struct {
	int kind, source, length, serial, credits;
	VIP_PVOID64 where;
	VIP_MEM_HANDLE handle;
} header_t;

/* A descriptor with its data at once behind it. */
typedef struct {
	VIP_DESCRIPTOR desc;
	header_t header;
	char data[1];
} vbuf_t;

typedef struct {
	VIP_VI_HANDLE vi;
	int credits, owed;      /* we may send; we have taken and not told of */
	int expected, received; /* bytes of the message that comes by RDMA; serial number */
	int written;            /* immediate data of its end, 0: not yet */
	header_t clear;         /* the last handshake's answer */
	int got_clear;
	char *eager;            /* a message that has come, and its length */
	int eager_len;
} peer_t;

typedef struct {
	unsigned char host[NPROC][32];
	int host_len[NPROC], ready, over;
} world_t;

static int me;
static world_t *world;
static VIP_NIC_HANDLE nic;
static VIP_NIC_ATTRIBUTES nic_attrs;
static VIP_PROTECTION_HANDLE ptag;
static VIP_CQ_HANDLE rcq;
static VIP_MEM_HANDLE pool_handle;
static vbuf_t *free_list;
static peer_t peers[NPROC];

static void quit(const char *what, int rc)
{
	fprintf(stderr, "%d: %s: %d\n", me, what, rc);
	exit(1);
}

static void check(VIP_RETURN rc, const char *what)
{
	if (rc != VIP_SUCCESS)
		quit(what, rc);
}

static void barrier(int *n)
{
	__sync_add_and_fetch(n, 1);
	while (*(volatile int *)n < NPROC)
		usleep(100);
}

static vbuf_t *get(void)
{
	vbuf_t *v = free_list;

	if (!v)
		quit("no buffer", 0);
	free_list = (vbuf_t *)v->desc.CS.Next.Address;
	return v;
}

static void put(vbuf_t *v)
{
	v->desc.CS.Next.Address = free_list;
	free_list = v;
}

static void format(vbuf_t *v, int len)
{
	v->desc.CS.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
	v->desc.CS.SegCount = 1;
	v->desc.CS.Length = len;
	v->desc.CS.Status = 0;
	v->desc.CS.Reserved = 0;
	v->desc.DS[0].Local.Data.Address = &v->header;
	v->desc.DS[0].Local.Handle = pool_handle;
	v->desc.DS[0].Local.Length = len;
}

static void post_recv(peer_t *p, vbuf_t *v)
{
	format(v, BUFSIZE - sizeof(VIP_DESCRIPTOR));
	check(VipPostRecv(p->vi, &v->desc, pool_handle), "VipPostRecv");
}

static void pool(void)
{
	VIP_MEM_ATTRIBUTES a;
	int n = NPROC * (BUFS + CREDITS), i;
	char *mem = memalign(4096, n * BUFSIZE);

	a.Ptag = ptag;
	a.EnableRdmaWrite = VIP_FALSE;
	a.EnableRdmaRead = VIP_FALSE;
	check(VipRegisterMem(nic, mem, n * BUFSIZE, &a, &pool_handle), "VipRegisterMem");
	for (i = 0; i < n; i++)
		put((vbuf_t *)(mem + i * BUFSIZE));
}

/* Everything that comes on any connection. */
static void incoming(vbuf_t *v, peer_t *p)
{
	header_t *h = &v->header;

	if ((v->desc.CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE) {
		p->written = (int)v->desc.CS.ImmediateData;
	} else {
		if ((int)v->desc.CS.ImmediateData != p->received + 1)
			quit("messages out of order", (int)v->desc.CS.ImmediateData);
		p->received++;
		p->credits += h->credits;
		switch (h->kind) {
		case EAGER_DATA:
			p->eager = malloc(h->length + 1);
			memcpy(p->eager, v->data, h->length);
			p->eager_len = h->length;
			break;
		case REQUEST:
			p->expected = h->length;
			break;
		case CLEAR:
			p->clear = *h;
			p->got_clear = 1;
			break;
		default:
			break;
		}
	}
	p->owed++;
	post_recv(p, v);
}

static void progress(void)
{
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc = VIP_NOT_DONE;
	int i;

	for (i = 0; i < POLLS && rc == VIP_NOT_DONE; i++)
		rc = VipCQDone(rcq, &vi, &recv);
	if (rc == VIP_NOT_DONE)
		rc = VipCQWait(rcq, TIMEOUT, &vi, &recv);
	check(rc, "completion queue");
	if (!recv)
		quit("a send on the queue of receives", 0);
	do
		rc = VipRecvDone(vi, &d);
	while (rc == VIP_NOT_DONE);
	check(rc, "VipRecvDone");
	for (i = 0; peers[i].vi != vi; i++)
		;
	incoming((vbuf_t *)d, &peers[i]);
}

static void send_vbuf(peer_t *p, vbuf_t *v, int len)
{
	static int sent[NPROC];
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc;

	while (p->credits == 0)
		progress();
	p->credits--;
	v->header.credits = p->owed;
	p->owed = 0;
	format(v, sizeof(header_t) + len);
	v->desc.CS.ImmediateData = ++sent[p - peers];
	check(VipPostSend(p->vi, &v->desc, pool_handle), "VipPostSend");
	while ((rc = VipSendDone(p->vi, &d)) == VIP_NOT_DONE)
		;
	check(rc, "VipSendDone");
	if (d != &v->desc)
		quit("another descriptor", 0);
	put(v);
}

static void control(peer_t *p, kind_t kind, int len, char *where, VIP_MEM_HANDLE h, int serial)
{
	vbuf_t *v = get();

	v->header.kind = kind;
	v->header.source = me;
	v->header.length = len;
	v->header.serial = serial;
	v->header.where.Address = where;
	v->header.handle = h;
	send_vbuf(p, v, 0);
}

/* RDMA in pieces of the greatest transfer; the last one tells of itself. */
static void write_all(peer_t *p, char *buf, int len)
{
	VIP_MEM_ATTRIBUTES a = {0};
	VIP_MEM_HANDLE h;
	VIP_DESCRIPTOR *d, *r = (VIP_DESCRIPTOR *)memalign(64, sizeof *r);
	VIP_MEM_HANDLE dh;
	int n, off;

	a.Ptag = ptag;
	check(VipRegisterMem(nic, buf, len, &a, &h), "register what is sent");
	check(VipRegisterMem(nic, r, sizeof *r, &a, &dh), "register the descriptor");
	for (off = 0; off < len; off += n) {
		n = len - off < (int)nic_attrs.MaxTransferSize ? len - off : (int)nic_attrs.MaxTransferSize;
		memset(r, 0, sizeof *r);
		r->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
		if (off + n == len) {
			while (p->credits == 0)
				progress();
			p->credits--;
			r->CS.Control |= VIP_CONTROL_IMMEDIATE;
			r->CS.ImmediateData = -p->clear.serial;
		}
		r->CS.SegCount = 2;
		r->CS.Length = n;
		r->DS[0].Remote.Data.AddressBits = p->clear.where.AddressBits + off;
		r->DS[0].Remote.Handle = p->clear.handle;
		r->DS[1].Local.Data.Address = buf + off;
		r->DS[1].Local.Handle = h;
		r->DS[1].Local.Length = n;
		check(VipPostSend(p->vi, r, dh), "post an RDMA Write");
		check(VipSendWait(p->vi, VIP_INFINITE, &d), "wait for an RDMA Write");
		if (d != r || d->CS.Length != (VIP_UINT32)n)
			quit("another descriptor", 0);
	}
	check(VipDeregisterMem(nic, buf, h), "deregister");
	check(VipDeregisterMem(nic, r, dh), "deregister");
	free(r);
}

static void send_message(int to, char *buf, int len)
{
	peer_t *p = &peers[to];

	if (len <= EAGER) {
		vbuf_t *v = get();

		v->header.kind = EAGER_DATA;
		v->header.source = me;
		v->header.length = len;
		memcpy(v->data, buf, len);
		send_vbuf(p, v, len);
		return;
	}
	control(p, REQUEST, len, NULL, 0, 0);
	while (!p->got_clear)
		progress();
	p->got_clear = 0;
	write_all(p, buf, len);
}

static int recv_message(int from, char *buf, int room)
{
	static int serial;
	VIP_MEM_ATTRIBUTES a;
	VIP_MEM_HANDLE h;
	peer_t *p = &peers[from];
	int n;

	while (!p->eager && p->expected == 0)
		progress();
	if (p->eager) {
		n = p->eager_len;
		memcpy(buf, p->eager, n);
		free(p->eager);
		p->eager = NULL;
	} else {
		a.Ptag = ptag;
		a.EnableRdmaWrite = VIP_TRUE;
		a.EnableRdmaRead = VIP_FALSE;
		n = p->expected;
		p->expected = 0;
		p->written = 0;
		check(VipRegisterMem(nic, buf, room, &a, &h), "register for RDMA");
		serial++;
		control(p, CLEAR, n, buf, h, serial);
		while (p->written == 0)
			progress();
		if (p->written != -serial)
			quit("another RDMA Write", p->written);
		check(VipDeregisterMem(nic, buf, h), "deregister");
	}
	control(p, NOTHING, 0, NULL, 0, 0); /* gives credits back */
	return n;
}

static VIP_NET_ADDRESS *address(int rank, int one, int two)
{
	VIP_NET_ADDRESS *a = calloc(1, sizeof *a + world->host_len[rank] + 2 * sizeof(int));
	int d[2];

	d[0] = one;
	d[1] = two;
	a->HostAddressLen = world->host_len[rank];
	a->DiscriminatorLen = sizeof d;
	memcpy(a->HostAddress, world->host[rank], a->HostAddressLen);
	memcpy(a->HostAddress + a->HostAddressLen, d, sizeof d);
	return a;
}

static void connect_with(int other)
{
	VIP_VI_ATTRIBUTES a, remote_attrs;
	VIP_CONN_HANDLE conn;
	VIP_NET_ADDRESS *local = address(me, me, other), *remote = address(other, other, me), *caller;
	VIP_RETURN rc;
	peer_t *p = &peers[other];
	int i;

	memset(&a, 0, sizeof a);
	a.ReliabilityLevel = nic_attrs.ReliabilityLevelSupport >= VIP_SERVICE_RELIABLE_RECEPTION ? VIP_SERVICE_RELIABLE_RECEPTION : VIP_SERVICE_RELIABLE_DELIVERY;
	a.MaxTransferSize = nic_attrs.MaxTransferSize;
	a.Ptag = ptag;
	a.EnableRdmaWrite = VIP_TRUE;
	check(VipCreateVi(nic, &a, NULL, rcq, &p->vi), "VipCreateVi");
	p->credits = CREDITS;
	for (i = 0; i < BUFS; i++)
		post_recv(p, get());
	if (me < other) {
		caller = malloc(sizeof *caller + nic_attrs.NicAddressLen + nic_attrs.MaxDiscriminatorLen);
		check(VipConnectWait(nic, local, VIP_INFINITE, caller, &remote_attrs, &conn), "VipConnectWait");
		check(VipConnectAccept(conn, p->vi), "VipConnectAccept");
		free(caller);
	} else {
		while ((rc = VipConnectRequest(p->vi, local, remote, VIP_INFINITE, &remote_attrs)) == VIP_NO_MATCH)
			usleep(10);
		check(rc, "VipConnectRequest");
	}
	free(local);
	free(remote);
}

static void fill(char *buf, int len, int seed)
{
	int i;

	for (i = 0; i < len; i++)
		buf[i] = (char)(i * 7 + i / 251 + seed);
}

static int exchange(void)
{
	static char out[LONGEST], in[LONGEST], want[LONGEST];
	static const int lengths[] = {0, 1, 100, 1900, 1901, 5000, 65536, 65537, LONGEST};
	int round, i, other, n;

	for (round = 0; round < 3; round++)
		for (i = 0; i < (int)(sizeof lengths / sizeof lengths[0]); i++)
			for (other = 0; other < NPROC; other++) {
				int len = lengths[i], pass;

				if (other == me)
					continue;
				fill(out, len, me + round);
				fill(want, len, other + round);
				memset(in, 0x55, sizeof in);
				for (pass = 0; pass < 2; pass++)
					if ((me < other) == (pass == 0))
						send_message(other, out, len);
					else if ((n = recv_message(other, in, sizeof in)) != len)
						quit("length", n);
				if (memcmp(in, want, len) != 0)
					quit("data", len);
			}
	return 0;
}

int main(int argc, char **argv)
{
	int i, j, s, bad = 0;
	pid_t pid[NPROC];

	world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (i = 1; i < NPROC; i++)
		if ((pid[i] = fork()) == 0) {
			me = i;
			break;
		}
	check(VipOpenNic(argc > 1 ? argv[1] : "/dev/via_lo", &nic), "VipOpenNic");
	check(VipQueryNic(nic, &nic_attrs), "VipQueryNic");
	check(VipCreatePtag(nic, &ptag), "VipCreatePtag");
	check(VipCreateCQ(nic, 1024, &rcq), "VipCreateCQ");
	pool();
	world->host_len[me] = nic_attrs.NicAddressLen;
	memcpy(world->host[me], nic_attrs.LocalNicAddress, nic_attrs.NicAddressLen);
	barrier(&world->ready);
	for (i = 0; i < NPROC; i++)
		for (j = i + 1; j < NPROC; j++)
			if (me == i || me == j)
				connect_with(me == i ? j : i);
	exchange();
	barrier(&world->over);
	for (i = 0; i < NPROC; i++)
		if (i != me) {
			VipDisconnect(peers[i].vi);
			VipDestroyVi(peers[i].vi); /* with what is on its queues */
		}
	VipDestroyCQ(rcq);
	VipCloseNic(nic);
	if (me != 0)
		return 0;
	for (i = 1; i < NPROC; i++) {
		waitpid(pid[i], &s, 0);
		bad |= s;
	}
	printf("%s\n", bad ? "FAILED" : "every message came");
	return bad != 0;
}
