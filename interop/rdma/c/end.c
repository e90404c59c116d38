#include "end.h"
#include "check.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

bool readable(int fd, int milliseconds)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, milliseconds) == 1;
}

struct sockaddr_in local_address(uint16_t port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
}

/* The peer's connection request for its next case, which may arrive before this case ends. NULL if
 * none has arrived. */
static struct rdma_cm_event *early;

struct rdma_cm_event *next_event(struct rdma_event_channel *ch, int milliseconds)
{
	struct rdma_cm_event *e = early;

	early = NULL;
	if (!e && readable(ch->fd, milliseconds))
		need(rdma_get_cm_event(ch, &e) == 0, "rdma_get_cm_event");
	return e;
}

/* next_but_request is next_event for a caller that expects no connection request: it stores a request
 * in early and returns the event behind it. */
static struct rdma_cm_event *next_but_request(struct rdma_event_channel *ch, int milliseconds)
{
	struct rdma_cm_event *request = NULL, *e = next_event(ch, milliseconds);

	if (e && e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		request = e;
		e = next_event(ch, milliseconds);
	}
	early = request;
	return e;
}

int take_event(struct rdma_event_channel *ch, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e = next_but_request(ch, PATIENCE);
	char what[128];
	int status;

	snprintf(what, sizeof(what), "event %s instead of %s", e ? rdma_event_str(e->event) : "(none)", rdma_event_str(want));
	expect(e ? (long)e->event : -1, want, what);
	if (!e)
		return -1;
	status = e->status;
	rdma_ack_cm_event(e);
	return status;
}

void expect_silence(struct rdma_event_channel *ch)
{
	struct rdma_cm_event *e = next_but_request(ch, 50);
	char what[128];

	if (!e)
		return;
	snprintf(what, sizeof(what), "one event too many, %s", rdma_event_str(e->event));
	expect(1, 0, what);
	rdma_ack_cm_event(e);
}

struct rdma_cm_id *resolve(struct rdma_event_channel *ch, uint16_t port)
{
	struct sockaddr_in to = local_address(port);
	struct rdma_cm_id *id;

	need(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	need(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0, "rdma_resolve_addr");
	expect(take_event(ch, RDMA_CM_EVENT_ADDR_RESOLVED), 0, "status of ADDR_RESOLVED");
	need(rdma_resolve_route(id, 2000) == 0, "rdma_resolve_route");
	expect(take_event(ch, RDMA_CM_EVENT_ROUTE_RESOLVED), 0, "status of ROUTE_RESOLVED");
	return id;
}

struct rdma_cm_id *listen_at(struct rdma_event_channel *ch, uint16_t port, int backlog)
{
	struct sockaddr_in at = local_address(port);
	struct rdma_cm_id *id;

	need(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	need(rdma_bind_addr(id, (struct sockaddr *)&at) == 0, "rdma_bind_addr");
	need(rdma_listen(id, backlog) == 0, "rdma_listen");
	return id;
}

void make_end(struct end *e, struct rdma_cm_id *id, bool shared)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_qp_init_attr qp = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	memset(e, 0, sizeof(*e));
	e->id = id;
	need((e->pd = ibv_alloc_pd(id->verbs)) != NULL, "ibv_alloc_pd");
	need((e->cq = ibv_create_cq(id->verbs, 4 * DEPTH, NULL, NULL, 0)) != NULL, "ibv_create_cq");
	e->mr = ibv_reg_mr(e->pd, e->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	need(e->mr != NULL, "ibv_reg_mr");
	if (shared)
		need((e->srq = ibv_create_srq(e->pd, &srq)) != NULL, "ibv_create_srq");
	qp.send_cq = qp.recv_cq = e->cq;
	qp.srq = e->srq;
	need(rdma_create_qp(id, e->pd, &qp) == 0, "rdma_create_qp");
}

void unmake_end(struct end *e)
{
	if (e->id->qp)
		rdma_destroy_qp(e->id);
	if (e->srq)
		expect(ibv_destroy_srq(e->srq), 0, "ibv_destroy_srq");
	expect(ibv_destroy_cq(e->cq), 0, "ibv_destroy_cq");
	expect(ibv_dereg_mr(e->mr), 0, "ibv_dereg_mr");
	expect(ibv_dealloc_pd(e->pd), 0, "ibv_dealloc_pd");
	expect(rdma_destroy_id(e->id), 0, "rdma_destroy_id");
}

static struct rdma_conn_param parameters(const void *private_data, uint8_t n)
{
	return (struct rdma_conn_param){
		.private_data = private_data,
		.private_data_len = n,
		.responder_resources = 4,
		.initiator_depth = 2,
	};
}

int dial(struct end *e, const void *private_data, uint8_t n)
{
	struct rdma_conn_param p = parameters(private_data, n);

	return rdma_connect(e->id, &p);
}

int accept_request(struct end *e, const void *private_data, uint8_t n)
{
	struct rdma_conn_param p = parameters(private_data, n);

	return rdma_accept(e->id, &p);
}

static struct ibv_sge piece(struct end *e, int offset, int size)
{
	return (struct ibv_sge){ .addr = (uintptr_t)e->memory + offset, .length = size, .lkey = e->mr->lkey };
}

int post_receive(struct end *e, uint64_t id, int offset, int size)
{
	struct ibv_sge s = piece(e, offset, size);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &s, .num_sge = 1 }, *bad;

	return e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->id->qp, &wr, &bad);
}

int post_send(struct end *e, uint64_t id, int offset, int size)
{
	struct ibv_sge s = piece(e, offset, size);
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	return ibv_post_send(e->id->qp, &wr, &bad);
}

int post_remote(struct end *e, uint64_t id, enum ibv_wr_opcode op, int size, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge s = piece(e, 0, size);
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &s, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	}, *bad;

	return ibv_post_send(e->id->qp, &wr, &bad);
}

int take_completion(struct end *e, uint64_t id, enum ibv_wc_status want)
{
	struct timespec pause = { .tv_nsec = 200000 };
	struct ibv_wc wc = { 0 };
	char what[128];

	for (int i = 0; i < PATIENCE * 5; i++) {
		int n = ibv_poll_cq(e->cq, 1, &wc);

		if (n != 0) {
			expect(n, 1, "ibv_poll_cq");
			break;
		}
		nanosleep(&pause, NULL);
		if (i == PATIENCE * 5 - 1) {
			expect(0, 1, "completions");
			return -1;
		}
	}
	expect(wc.wr_id, id, "wr_id of a completion");
	snprintf(what, sizeof(what), "status of completion %d, %s instead of %s", (int)id, ibv_wc_status_str(wc.status), ibv_wc_status_str(want));
	expect(wc.status, want, what);
	return wc.byte_len;
}
