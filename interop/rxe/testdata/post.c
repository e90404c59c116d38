/*
 * Posts RDMA Writes of 8 inline bytes from a queue pair to itself, one at a time. Prints two lines:
 * "post", how long ibv_post_send takes, and "done", the time from the post to the completion. Each
 * line has the minimum, the median and the 99th percentile in nanoseconds.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { posts = 20000, gid_index = 1 };

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static void print(const char *what, int64_t *took)
{
	qsort(took, posts, sizeof *took, ascending);
	printf("%s %lld %lld %lld\n", what, (long long)took[0], (long long)took[posts / 2], (long long)took[posts / 100 * 99]);
}

static void connect_to_itself(struct ibv_qp *qp, union ibv_gid *gid)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	need(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = IBV_MTU_1024;
	a.dest_qp_num = qp->qp_num;
	a.max_dest_rd_atomic = 1;
	a.min_rnr_timer = 12;
	a.ah_attr.is_global = 1;
	a.ah_attr.grh.dgid = *gid;
	a.ah_attr.grh.sgid_index = gid_index;
	a.ah_attr.port_num = 1;
	need(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 14;
	a.retry_cnt = 7;
	a.rnr_retry = 7;
	a.max_rd_atomic = 1;
	need(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

int main(void)
{
	static int64_t post[posts], done[posts];
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(list && list[0], "a device");
	struct ibv_context *ctx = ibv_open_device(list[0]);
	need(ctx != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	need(pd && cq, "a completion queue");
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	need(qp != NULL, "ibv_create_qp");
	union ibv_gid gid;
	need(!ibv_query_gid(ctx, 1, gid_index, &gid), "ibv_query_gid");
	connect_to_itself(qp, &gid);

	static uint64_t from, to;
	struct ibv_mr *mr = ibv_reg_mr(pd, &to, sizeof to, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(mr != NULL, "ibv_reg_mr");
	struct ibv_sge sge = {.addr = (uintptr_t)&from, .length = sizeof from};
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE, .sg_list = &sge, .num_sge = 1,
	}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)&to;
	wr.wr.rdma.rkey = mr->rkey;
	for (int i = 0; i < posts; i++) {
		struct ibv_wc wc;
		int n;
		from = i + 1;
		int64_t began = now();
		need(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
		post[i] = now() - began;
		while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
			;
		done[i] = now() - began;
		need(n == 1 && wc.status == IBV_WC_SUCCESS, "a completion without an error");
		need(*(volatile uint64_t *)&to == from, "what was written");
	}
	print("post", post);
	print("done", done);
	return 0;
}
