/* The errors, limits and lifetimes of verbs: the behaviour of the kernel's uverbs_cmd.c and its siw
 * driver, and the removal of unread events when their object is destroyed. One process, no
 * connection: the only completions are those of requests flushed in the error state. Two of them
 * overrun a completion queue of one entry. */
#include "check.h"

#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static struct ibv_context *device;
static struct ibv_device_attr limits;
static char memory[4096];

/* A queue pair with the objects that it needs. */
struct pair {
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
};

static struct ibv_qp_init_attr wanted(struct pair *p)
{
	return (struct ibv_qp_init_attr){
		.send_cq = p->cq, .recv_cq = p->cq, .srq = p->srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 16 },
	};
}

static void make(struct pair *p, int entries, bool notified)
{
	struct ibv_qp_init_attr a;

	memset(p, 0, sizeof(*p));
	need((p->pd = ibv_alloc_pd(device)) != NULL, "ibv_alloc_pd");
	if (notified)
		need((p->channel = ibv_create_comp_channel(device)) != NULL, "ibv_create_comp_channel");
	need((p->cq = ibv_create_cq(device, entries, p, p->channel, 0)) != NULL, "ibv_create_cq");
	a = wanted(p);
	need((p->qp = ibv_create_qp(p->pd, &a)) != NULL, "ibv_create_qp");
}

static void unmake(struct pair *p)
{
	if (p->qp)
		expect(ibv_destroy_qp(p->qp), 0, "ibv_destroy_qp");
	if (p->srq)
		expect(ibv_destroy_srq(p->srq), 0, "ibv_destroy_srq");
	if (p->cq)
		expect(ibv_destroy_cq(p->cq), 0, "ibv_destroy_cq");
	if (p->channel)
		expect(ibv_destroy_comp_channel(p->channel), 0, "ibv_destroy_comp_channel");
	expect(ibv_dealloc_pd(p->pd), 0, "ibv_dealloc_pd");
}

static int move(struct pair *p, enum ibv_qp_state to)
{
	struct ibv_qp_attr a = { .qp_state = to };

	return ibv_modify_qp(p->qp, &a, IBV_QP_STATE);
}

static int receive(struct pair *p, uint64_t id)
{
	struct ibv_sge s = { .addr = (uintptr_t)memory, .length = 1 }; /* no message is ever received into it */
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &s, .num_sge = 1 }, *bad;

	return ibv_post_recv(p->qp, &wr, &bad);
}

static int send_nothing(struct pair *p, uint64_t id)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	return ibv_post_send(p->qp, &wr, &bad);
}

static bool comes(int fd, int milliseconds)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, milliseconds) == 1;
}

static void expect_flushed(struct pair *p, uint64_t id)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	struct ibv_wc wc = { 0 };
	int n = 0;

	for (int i = 0; i < 10000 && (n = ibv_poll_cq(p->cq, 1, &wc)) == 0; i++)
		nanosleep(&pause, NULL);
	expect(n, 1, "completions");
	expect(wc.wr_id, id, "wr_id");
	expect(wc.status, IBV_WC_WR_FLUSH_ERR, "status");
	expect(wc.qp_num, p->qp->qp_num, "qp_num");
}

/* failed gives expect_errno the status of a call that returns an object: -1 for NULL, when the call
 * has set errno, else 0. */
static int failed(const void *object)
{
	return object ? 0 : -1;
}

/* Completion queues. */

static void cq_of_none(void)
{
	expect_errno(failed(ibv_create_cq(device, 0, NULL, NULL, 0)), EINVAL, "ibv_create_cq");
}

static void cq_too_large(void)
{
	expect_errno(failed(ibv_create_cq(device, limits.max_cqe + 1, NULL, NULL, 0)), EINVAL, "ibv_create_cq");
}

static void cq_vector(void)
{
	expect_errno(failed(ibv_create_cq(device, 1, NULL, NULL, device->num_comp_vectors)), EINVAL, "ibv_create_cq");
}

static void cq_entries(void)
{
	struct ibv_cq *cq = ibv_create_cq(device, 100, NULL, NULL, 0);

	need(cq != NULL, "ibv_create_cq");
	expect(cq->cqe >= 100, true, "room for them");
	ibv_destroy_cq(cq);
}

static void cq_busy(void)
{
	struct pair p;

	make(&p, 8, false);
	expect_errno(ibv_destroy_cq(p.cq), EBUSY, "ibv_destroy_cq");
	unmake(&p);
}

static void cq_overrun(void)
{
	struct ibv_async_event e;
	struct pair p;

	make(&p, 1, false);
	for (int i = 0; i < 4; i++)
		receive(&p, i);
	expect(move(&p, IBV_QPS_ERR), 0, "ibv_modify_qp");
	expect(comes(device->async_fd, 50000), true, "an event is there");
	expect(ibv_get_async_event(device, &e), 0, "ibv_get_async_event");
	expect(e.event_type, IBV_EVENT_CQ_ERR, "type of the event");
	expect(e.element.cq == p.cq, true, "its queue is that one");
	ibv_ack_async_event(&e);
	unmake(&p);
	expect(comes(device->async_fd, 50), false, "an event is left");
}

static void cq_overrun_unread(void)
{
	struct pair p;

	make(&p, 1, false);
	for (int i = 0; i < 4; i++)
		receive(&p, i);
	move(&p, IBV_QPS_ERR);
	expect(comes(device->async_fd, 50000), true, "an event is there");
	unmake(&p);
	expect(comes(device->async_fd, 50), false, "an event is left");
}

static void cq_events(void)
{
	struct ibv_cq *cq;
	struct pair p;
	void *context;

	make(&p, 8, true);
	expect(ibv_req_notify_cq(p.cq, 0), 0, "ibv_req_notify_cq");
	expect(comes(p.channel->fd, 50), false, "an event comes before a completion");
	receive(&p, 1);
	receive(&p, 2);
	move(&p, IBV_QPS_ERR);
	expect(comes(p.channel->fd, 50000), true, "an event is there");
	expect(ibv_get_cq_event(p.channel, &cq, &context), 0, "ibv_get_cq_event");
	expect(cq == p.cq && context == &p, true, "queue and context are those");
	expect_flushed(&p, 1);
	expect_flushed(&p, 2);
	expect(comes(p.channel->fd, 50), false, "a second event for one request");
	ibv_ack_cq_events(cq, 1);
	unmake(&p);
}

static void cq_events_unread(void)
{
	struct pair p, q;
	struct ibv_cq *cq;
	void *context;

	make(&p, 8, true);
	/* The event of a second queue on the same channel must stay when the first is destroyed. */
	memset(&q, 0, sizeof(q));
	q.pd = ibv_alloc_pd(device);
	need((q.cq = ibv_create_cq(device, 8, &q, p.channel, 0)) != NULL, "ibv_create_cq");
	struct ibv_qp_init_attr a = wanted(&q);
	need((q.qp = ibv_create_qp(q.pd, &a)) != NULL, "ibv_create_qp");
	ibv_req_notify_cq(p.cq, 0);
	ibv_req_notify_cq(q.cq, 0);
	receive(&p, 1);
	move(&p, IBV_QPS_ERR);
	receive(&q, 1);
	move(&q, IBV_QPS_ERR);
	expect(comes(p.channel->fd, 50000), true, "an event is there");
	expect(ibv_destroy_qp(p.qp), 0, "ibv_destroy_qp");
	expect(ibv_destroy_cq(p.cq), 0, "ibv_destroy_cq");
	p.qp = NULL;
	p.cq = NULL;
	expect(comes(p.channel->fd, 50000), true, "the event of the other queue is there");
	expect(ibv_get_cq_event(p.channel, &cq, &context), 0, "ibv_get_cq_event");
	expect(cq == q.cq, true, "it is that of the other queue");
	ibv_ack_cq_events(cq, 1);
	unmake(&q);
	expect(comes(p.channel->fd, 50), false, "an event is left");
	unmake(&p);
}

static void channel_busy(void)
{
	struct pair p;

	make(&p, 8, true);
	expect_errno(ibv_destroy_comp_channel(p.channel), EBUSY, "ibv_destroy_comp_channel");
	unmake(&p);
}

/* Queue pairs. */

static void refused(struct ibv_qp_cap cap, int want, const char *what)
{
	struct ibv_qp_init_attr a;
	struct pair p;

	make(&p, 8, false);
	a = wanted(&p);
	a.cap = cap;
	expect_errno(failed(ibv_create_qp(p.pd, &a)), want, what);
	unmake(&p);
}

static void qp_too_deep(void)
{
	refused((struct ibv_qp_cap){ limits.max_qp_wr + 1, 1, 1, 1, 0 }, EINVAL, "a send queue");
	refused((struct ibv_qp_cap){ 1, limits.max_qp_wr + 1, 1, 1, 0 }, EINVAL, "a receive queue");
}

static void qp_elements(void)
{
	refused((struct ibv_qp_cap){ 1, 1, limits.max_sge + 1, 1, 0 }, EINVAL, "of a send");
	refused((struct ibv_qp_cap){ 1, 1, 1, limits.max_sge + 1, 0 }, EINVAL, "of a receive");
}

static void qp_inline(void)
{
	refused((struct ibv_qp_cap){ 1, 1, 1, 1, 1 << 20 }, EINVAL, "ibv_create_qp");
}

static void qp_datagrams(void)
{
	struct ibv_qp_init_attr a;
	struct pair p;

	make(&p, 8, false);
	a = wanted(&p);
	a.qp_type = IBV_QPT_UD;
	expect_errno(failed(ibv_create_qp(p.pd, &a)), EOPNOTSUPP, "ibv_create_qp");
	unmake(&p);
}

static void qp_capacity(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	struct pair p;

	make(&p, 8, false);
	expect(ibv_query_qp(p.qp, &a, IBV_QP_CAP, &init), 0, "ibv_query_qp");
	expect(init.cap.max_send_wr >= 8 && init.cap.max_recv_wr >= 8, true, "room for the requests");
	expect(init.cap.max_send_sge >= 2 && init.cap.max_recv_sge >= 2, true, "room for the elements");
	expect(init.cap.max_inline_data >= 16, true, "room for inline data");
	unmake(&p);
}

static void qp_state_unknown(void)
{
	struct pair p;

	make(&p, 8, false);
	expect_errno(move(&p, 77), EINVAL, "ibv_modify_qp");
	unmake(&p);
}

static void qp_receives_full(void)
{
	struct pair p;
	int n = 0;

	make(&p, 8, false);
	while (n < 1000 && receive(&p, n) == 0)
		n++;
	expect(n >= 8 && n < 1000, true, "as many as were asked for");
	expect_errno(receive(&p, n), ENOMEM, "one more");
	unmake(&p);
}

static void qp_send_unconnected(void)
{
	struct pair p;

	make(&p, 8, false);
	expect(send_nothing(&p, 1) != 0, true, "ibv_post_send fails");
	unmake(&p);
}

static void qp_send_elements(void)
{
	struct ibv_sge s[64] = { { 0 } };
	struct ibv_send_wr wr = { .sg_list = s, .num_sge = 64, .opcode = IBV_WR_SEND }, *bad = NULL;
	struct pair p;

	make(&p, 8, false);
	expect_errno(ibv_post_send(p.qp, &wr, &bad), EINVAL, "ibv_post_send");
	expect(bad == &wr, true, "the bad one is named");
	unmake(&p);
}

static void error_receives(void)
{
	struct pair p;

	make(&p, 8, false);
	for (int i = 0; i < 4; i++)
		expect(receive(&p, i), 0, "ibv_post_recv");
	expect(move(&p, IBV_QPS_ERR), 0, "ibv_modify_qp");
	for (int i = 0; i < 4; i++)
		expect_flushed(&p, i);
	unmake(&p);
}

static void error_sends(void)
{
	struct pair p;

	make(&p, 8, false);
	expect(move(&p, IBV_QPS_ERR), 0, "ibv_modify_qp");
	for (int i = 0; i < 20; i++) { /* more than the capacity of the queue */
		expect(send_nothing(&p, i), 0, "ibv_post_send");
		expect_flushed(&p, i);
	}
	unmake(&p);
}

/* Shared receive queues. */

static int try_srq(struct ibv_pd *pd, uint32_t wr, uint32_t sge)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = wr, .max_sge = sge } };
	struct ibv_srq *s = ibv_create_srq(pd, &a);

	if (!s)
		return -1;
	ibv_destroy_srq(s);
	return 0;
}

static void srq_limits(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(device);

	expect_errno(try_srq(pd, 0, 1), EINVAL, "of no entries");
	expect_errno(try_srq(pd, limits.max_srq_wr + 1, 1), EINVAL, "of too many entries");
	expect_errno(try_srq(pd, 1, limits.max_srq_sge + 1), EINVAL, "of too many elements");
	expect_errno(try_srq(pd, 1, 1), 0, "of one");
	ibv_dealloc_pd(pd);
}

static void srq_modify(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_srq *s = ibv_create_srq(pd, &init);
	struct ibv_srq_attr a = { .srq_limit = 16 };

	need(s != NULL, "ibv_create_srq");
	expect(ibv_modify_srq(s, &a, IBV_SRQ_LIMIT), 0, "a limit of all entries");
	a.srq_limit = init.attr.max_wr + 1;
	expect_errno(ibv_modify_srq(s, &a, IBV_SRQ_LIMIT), EINVAL, "a limit above the entries");
	ibv_destroy_srq(s);
	ibv_dealloc_pd(pd);
}

static void srq_busy(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr a;
	struct ibv_qp *other;
	struct pair p;

	make(&p, 8, false);
	need((p.srq = ibv_create_srq(p.pd, &init)) != NULL, "ibv_create_srq");
	a = wanted(&p);
	need((other = ibv_create_qp(p.pd, &a)) != NULL, "ibv_create_qp");
	expect_errno(ibv_destroy_srq(p.srq), EBUSY, "ibv_destroy_srq");
	ibv_destroy_qp(other);
	unmake(&p);
}

/* Domains and memory. */

static void pd_busy(void)
{
	struct pair p;

	make(&p, 8, false);
	expect_errno(ibv_dealloc_pd(p.pd), EBUSY, "ibv_dealloc_pd");
	unmake(&p);
}

static void pd_busy_memory(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), 0);

	need(mr != NULL, "ibv_reg_mr");
	expect_errno(ibv_dealloc_pd(pd), EBUSY, "ibv_dealloc_pd");
	expect(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	expect(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
}

static void mr_rights(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_REMOTE_WRITE);

	expect_errno(failed(mr), EINVAL, "ibv_reg_mr");
	ibv_dealloc_pd(pd);
}

static void mr_twice(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_mr *a = ibv_reg_mr(pd, memory, 100, 0), *b = ibv_reg_mr(pd, memory, 100, 0);

	need(a && b, "ibv_reg_mr");
	expect(a->lkey != b->lkey, true, "keys differ");
	ibv_dereg_mr(a);
	ibv_dereg_mr(b);
	ibv_dealloc_pd(pd);
}

/* The device. */

static void port_two(void)
{
	struct ibv_port_attr a;

	expect_errno(ibv_query_port(device, 2, &a), EINVAL, "ibv_query_port");
	expect_errno(ibv_query_port(device, 1, &a), 0, "port 1");
	expect(a.state, IBV_PORT_ACTIVE, "its state");
}

static void opened_twice(void)
{
	struct ibv_context *other = ibv_open_device(device->device);
	struct ibv_pd *pd;

	need(other != NULL, "ibv_open_device");
	need((pd = ibv_alloc_pd(other)) != NULL, "ibv_alloc_pd");
	/* Closing the device destroys the protection domain that is still open. */
	expect(ibv_close_device(other), 0, "ibv_close_device");
	need((pd = ibv_alloc_pd(device)) != NULL, "ibv_alloc_pd");
	expect(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd of the first");
}

int main(void)
{
	static const struct test tests[] = {
		{ "cq_of_none", "a completion queue of no entries is EINVAL", cq_of_none },
		{ "cq_too_large", "more than max_cqe entries are EINVAL", cq_too_large },
		{ "cq_vector", "a completion vector that the device has not is EINVAL", cq_vector },
		{ "cq_entries", "a completion queue has the entries that were asked for, or more", cq_entries },
		{ "cq_busy", "a completion queue in use is EBUSY", cq_busy },
		{ "cq_overrun", "an overrun is CQ_ERR, and the queue can be destroyed once it is acknowledged", cq_overrun },
		{ "cq_overrun_unread", "an unread CQ_ERR goes with its queue", cq_overrun_unread },
		{ "cq_events", "one event for one ibv_req_notify_cq, and the queue can be destroyed once it is acknowledged", cq_events },
		{ "cq_events_unread", "an unread event goes with its queue, and those of others stay", cq_events_unread },
		{ "channel_busy", "a completion channel in use is EBUSY", channel_busy },
		{ "qp_too_deep", "more than max_qp_wr requests are EINVAL", qp_too_deep },
		{ "qp_elements", "more than max_sge elements are EINVAL", qp_elements },
		{ "qp_inline", "more inline data than the device has is EINVAL", qp_inline },
		{ "qp_datagrams", "iWARP has no datagrams: EOPNOTSUPP", qp_datagrams },
		{ "qp_capacity", "ibv_query_qp says at least what was asked for", qp_capacity },
		{ "qp_state_unknown", "an unknown state is EINVAL", qp_state_unknown },
		{ "qp_receives_full", "a receive more than there is room for is ENOMEM", qp_receives_full },
		{ "qp_send_unconnected", "a send without a connection fails at once", qp_send_unconnected },
		{ "qp_send_elements", "a send of more elements than the queue pair has is EINVAL, and named", qp_send_elements },
		{ "error_receives", "the error state flushes receives in order", error_receives },
		{ "error_sends", "a send in the error state is flushed", error_sends },
		{ "srq_limits", "a shared receive queue has at least one entry and at most max_srq_wr", srq_limits },
		{ "srq_modify", "a limit is at most the number of entries, else EINVAL", srq_modify },
		{ "srq_busy", "a shared receive queue in use is EBUSY", srq_busy },
		{ "pd_busy", "a protection domain with a queue pair is EBUSY", pd_busy },
		{ "pd_busy_memory", "a protection domain with memory is EBUSY", pd_busy_memory },
		{ "mr_rights", "remote write without local write is EINVAL", mr_rights },
		{ "mr_twice", "memory may be registered twice, by two keys", mr_twice },
		{ "port_two", "the second port of a device with one is EINVAL", port_two },
		{ "opened_twice", "a device can be opened twice, and closed with objects", opened_twice },
	};
	struct ibv_device **list = ibv_get_device_list(NULL);

	need(list && list[0] && (device = ibv_open_device(list[0])) != NULL, "ibv_open_device");
	need(ibv_query_device(device, &limits) == 0, "ibv_query_device");
	return TESTS(tests);
}
