/*
 * peer GID-INDEX HOST PORT: the peer of "viaduct conform --listen roce://HOST:PORT". It exchanges queue pairs by TCP
 * as ibv_rc_pingpong does, with MTU 1024, and then announces what it has: two regions, a queue pair that sends each
 * datagram back, and how many receives are posted. The line "receive" asks for one more receive. It ends with the
 * TCP connection.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { mtu = 1024, length = 4 * mtu, receives = 8, grh = 40, first_psn = 77 };
static const uint32_t qkey = 0x11112222;
enum { remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_context *ctx;
static struct ibv_pd *pd;

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static struct ibv_mr *region(size_t n, int access)
{
	void *p = aligned_alloc(4096, (n + 4095) & ~4095ul);
	memset(p, 0, n);
	struct ibv_mr *mr = ibv_reg_mr(pd, p, n, access);
	check(mr != NULL, "ibv_reg_mr");
	return mr;
}

static struct ibv_qp *queue_pair(enum ibv_qp_type type, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = {receives, 2 * receives, 1, 1, 0}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
	int rc = type == IBV_QPT_RC;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey, .qp_access_flags = remote};
	check(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)) == 0, "INIT");
	return qp;
}

/* connects a queue pair, which dest is NULL for if it is for datagrams. */
static void ready(struct ibv_qp *qp, const union ibv_gid *dest, unsigned qpn, unsigned psn, int index)
{
	struct ibv_qp_attr r = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .rq_psn = psn,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64, .sgid_index = index}}};
	struct ibv_qp_attr s = {.qp_state = IBV_QPS_RTS, .sq_psn = first_psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	int rtr = IBV_QP_STATE, rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (dest) {
		r.ah_attr.grh.dgid = *dest;
		rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	check(ibv_modify_qp(qp, &r, rtr) == 0, "RTR");
	check(ibv_modify_qp(qp, &s, rts) == 0, "RTS");
}

static void post(struct ibv_qp *qp, struct ibv_mr *mr, int n, unsigned len)
{
	struct ibv_sge at = {(uintptr_t)mr->addr + (uintptr_t)n * len, len, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = n, .sg_list = &at, .num_sge = 1}, *bad;
	check(ibv_post_recv(qp, &wr, &bad) == 0, "ibv_post_recv");
}

/* sends a datagram back to its sender. */
static void answer(struct ibv_qp *qp, struct ibv_mr *mr, struct ibv_wc *wc)
{
	char *d = (char *)mr->addr + wc->wr_id * (grh + mtu);
	struct ibv_ah *ah = ibv_create_ah_from_wc(pd, wc, (struct ibv_grh *)d, 1);
	check(ah != NULL, "ibv_create_ah_from_wc");
	struct ibv_sge at = {(uintptr_t)d + grh, wc->byte_len - grh, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = receives, .sg_list = &at, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = {.ah = ah, .remote_qpn = wc->src_qp, .remote_qkey = qkey}}, *bad;
	check(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
}

static int dial(const char *host, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *a;
	check(getaddrinfo(host, port, &hints, &a) == 0, "getaddrinfo");
	int c = socket(a->ai_family, SOCK_STREAM, 0);
	check(c >= 0 && connect(c, a->ai_addr, a->ai_addrlen) == 0, "connect");
	return c;
}

int main(int argc, char **argv)
{
	check(argc == 4, "usage: peer GID-INDEX HOST PORT");
	int index = atoi(argv[1]);
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(devices && devices[0], "no device");
	ctx = ibv_open_device(devices[0]);
	check(ctx != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0), *datagrams = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	check(cq && datagrams, "ibv_create_cq");
	struct ibv_mr *all = region(length, remote), *some = region(length, IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *in = region(receives * length, IBV_ACCESS_LOCAL_WRITE), *din = region(receives * (grh + mtu), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *qp = queue_pair(IBV_QPT_RC, cq), *ud = queue_pair(IBV_QPT_UD, datagrams);
	for (int i = 0; i < receives; i++) {
		post(qp, in, i, length);
		post(ud, din, i, grh + mtu);
	}
	ready(ud, NULL, 0, 0, index);

	int c = dial(argv[2], argv[3]);
	char line[64], text[33] = "", hex[33];
	union ibv_gid gid, peer;
	check(ibv_query_gid(ctx, 1, index, &gid) == 0, "ibv_query_gid");
	for (int i = 0; i < 16; i++)
		sprintf(text + 2 * i, "%02x", gid.raw[i]);
	int n = snprintf(line, sizeof line, "0000:%06x:%06x:%s", qp->qp_num, first_psn, text) + 1;
	check(write(c, line, n) == n, "write");
	unsigned lid, qpn, psn;
	check(recv(c, line, n, MSG_WAITALL) == n && sscanf(line, "%x:%x:%x:%32s", &lid, &qpn, &psn, hex) == 4, "the peer's queue pair");
	for (int i = 0; i < 16; i++)
		sscanf(hex + 2 * i, "%2hhx", &peer.raw[i]);
	ready(qp, &peer, qpn, psn, index);
	check(write(c, "done", 5) == 5, "write");
	dprintf(c, "memory %llx %x %x rwa\nmemory %llx %x %x r\ndatagram %x %x\nreceives %d %d\nready\n",
		(unsigned long long)(uintptr_t)all->addr, all->rkey, length, (unsigned long long)(uintptr_t)some->addr, some->rkey, length,
		ud->qp_num, qkey, receives, length);
	struct ibv_sge hello = {(uintptr_t)some->addr, 5, some->lkey}; /* which shows that the queue pair is ready */
	struct ibv_send_wr wr = {.sg_list = &hello, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	check(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");

	for (;;) {
		struct pollfd p = {.fd = c, .events = POLLIN};
		poll(&p, 1, 1);
		if (p.revents) {
			n = recv(c, line, strlen("receive\n"), MSG_WAITALL);
			if (n <= 0)
				return 0;
			post(qp, in, 0, length);
			dprintf(c, "posted\n");
		}
		struct ibv_wc wc;
		while (ibv_poll_cq(datagrams, 1, &wc) > 0) {
			if (wc.status == IBV_WC_SUCCESS && wc.wr_id < receives)
				answer(ud, din, &wc);
		}
		while (ibv_poll_cq(cq, 1, &wc) > 0)
			;
	}
}
