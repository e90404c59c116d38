/*
 * memory GID-INDEX MTU PORT: gives the first client of a TCP port access to 1 MiB of memory, by a reliable connection
 * of the first RDMA device. Each side sends the other a line "address qpn psn key place"; place is the memory's address,
 * and key and place of the client are ignored. Then the program sends "ready". When the client closes the TCP
 * connection, the program prints the first 64-bit word of the memory. One receive is posted, for the empty Send of
 * package roce's example. MTU is 4096; any other value means 1024.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { length = 1 << 20 };

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	check(argc == 4, "usage: memory GID-INDEX MTU PORT");
	int index = atoi(argv[1]);
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(devices && devices[0], "no device");
	struct ibv_context *ctx = ibv_open_device(devices[0]);
	check(ctx != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	uint64_t *mem = aligned_alloc(4096, length);
	memset(mem, 0, length);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *mr = ibv_reg_mr(pd, mem, length, access);
	check(mr != NULL, "ibv_reg_mr");
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	check(cq != NULL, "ibv_create_cq");
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
	union ibv_gid gid;
	check(ibv_query_gid(ctx, 1, index, &gid) == 0, "ibv_query_gid");

	int l = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
	check(bind(l, (struct sockaddr *)&at, sizeof at) == 0 && listen(l, 1) == 0, "listen");
	int c = accept(l, NULL, NULL);
	check(c >= 0, "accept");
	char own[64], peer[64];
	inet_ntop(AF_INET6, &gid, own, sizeof own);
	FILE *f = fdopen(c, "r+");
	fprintf(f, "%s %u %u %u %llu\n", own, qp->qp_num, 77, mr->rkey, (unsigned long long)(uintptr_t)mem);
	fflush(f);
	unsigned qpn, psn;
	check(fscanf(f, "%63s %u %u%*[^\n]", peer, &qpn, &psn) == 3, "the peer's line");
	fgetc(f);

	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
	check(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
	struct ibv_recv_wr empty = {0}, *bad;
	check(ibv_post_recv(qp, &empty, &bad) == 0, "ibv_post_recv");
	struct ibv_qp_attr r = {.qp_state = IBV_QPS_RTR, .path_mtu = atoi(argv[2]) == 4096 ? IBV_MTU_4096 : IBV_MTU_1024,
		.dest_qp_num = qpn, .rq_psn = psn, .max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64, .sgid_index = index}}};
	char mapped[80];
	snprintf(mapped, sizeof mapped, "%s%s", strchr(peer, ':') ? "" : "::ffff:", peer);
	check(inet_pton(AF_INET6, mapped, &r.ah_attr.grh.dgid) == 1, "the peer's address");
	check(ibv_modify_qp(qp, &r, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "RTR");
	fprintf(f, "ready\n");
	fflush(f);
	while (fgetc(f) != EOF)
		;
	printf("%llu\n", (unsigned long long)mem[0]);
	return 0;
}
