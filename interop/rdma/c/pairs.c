/* A connection between two processes: the order of events, private data, the effects of the end of
 * a connection, a queue pair or a process, and requests that are flushed or refused.
 *
 *	pairs serve PORT	waits for the other program, and is the passive side of each case
 *	pairs call PORT		is the active side
 *
 * Both run the same cases in the same order, each on a connection of its own. */
#include "check.h"
#include "end.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct rdma_event_channel *events;
static struct rdma_cm_id *listener;
static uint16_t port;
static struct end end;

/* The private data of every length is the beginning of pattern, so the receiver can compare it. */
static unsigned char pattern[256];

static void check_pattern(const struct rdma_conn_param *p, int n, const char *what)
{
	expect(p->private_data_len, n, what);
	if (n > 0 && p->private_data_len == n)
		expect(memcmp(p->private_data, pattern, n), 0, "difference of the private data");
}

/* The passive side. */

/* request waits for a connection request and creates end for its identifier. If event is NULL,
 * request acknowledges the event. Otherwise it stores the event there, and the caller must
 * acknowledge it. */
static void request(bool shared, struct rdma_cm_event **event)
{
	struct rdma_cm_event *e = next_event(events, PATIENCE);

	need(e && e->event == RDMA_CM_EVENT_CONNECT_REQUEST, e ? rdma_event_str(e->event) : "no request");
	expect(e->listen_id == listener, true, "the request is the listener's");
	expect(e->status, 0, "status of CONNECT_REQUEST");
	make_end(&end, e->id, shared);
	if (event)
		*event = e;
	else
		rdma_ack_cm_event(e);
}

static void establish_passive(void)
{
	need(accept_request(&end, NULL, 0) == 0, "rdma_accept");
	expect(take_event(events, RDMA_CM_EVENT_ESTABLISHED), 0, "status of ESTABLISHED");
}

/* accepted waits for a connection and accepts it, with four receives posted. Its private data gives
 * the peer the address and key of end's memory. */
static void accepted(bool shared)
{
	struct { uint64_t addr; uint32_t key; } there;

	request(shared, NULL);
	for (int i = 0; i < 4; i++)
		expect(post_receive(&end, 100 + i, 64 * i, 64), 0, "post_receive");
	there.addr = (uintptr_t)end.memory;
	there.key = end.mr->rkey;
	need(accept_request(&end, &there, sizeof(there)) == 0, "rdma_accept");
	expect(take_event(events, RDMA_CM_EVENT_ESTABLISHED), 0, "status of ESTABLISHED");
}

static void disconnected(void)
{
	expect(take_event(events, RDMA_CM_EVENT_DISCONNECTED), 0, "status of DISCONNECTED");
	expect_silence(events);
}

/* The active side. */

static uint64_t far_addr;
static uint32_t far_key;

static void prepare(void)
{
	make_end(&end, resolve(events, port), false);
}

static void establish_active(void)
{
	struct rdma_cm_event *e = next_event(events, PATIENCE);

	need(e && e->event == RDMA_CM_EVENT_ESTABLISHED, e ? rdma_event_str(e->event) : "not ESTABLISHED");
	expect(e->status, 0, "status of ESTABLISHED");
	if (e->param.conn.private_data_len >= 12) {
		memcpy(&far_addr, e->param.conn.private_data, 8);
		memcpy(&far_key, (char *)e->param.conn.private_data + 8, 4);
	}
	rdma_ack_cm_event(e);
}

static void connected(void)
{
	prepare();
	for (int i = 0; i < 4; i++)
		expect(post_receive(&end, 100 + i, 64 * i, 64), 0, "post_receive");
	need(dial(&end, NULL, 0) == 0, "rdma_connect");
	establish_active();
}

static void hang_up(void)
{
	expect(rdma_disconnect(end.id), 0, "rdma_disconnect");
	disconnected();
	unmake_end(&end);
}

static void hung_up(void)
{
	disconnected();
	unmake_end(&end);
}

/* Cases. */

static void ports_active(void)
{
	prepare();
	uint16_t mine = rdma_get_src_port(end.id);

	expect(mine != 0, true, "a port before the connection");
	need(dial(&end, &mine, sizeof(mine)) == 0, "rdma_connect");
	establish_active();
	expect(rdma_get_src_port(end.id), mine, "the port after it");
	hang_up();
}

static void ports_passive(void)
{
	struct rdma_cm_event *e;
	uint16_t theirs = 0;

	request(false, &e);
	expect(e->param.conn.private_data_len >= sizeof(theirs), true, "private data is there");
	memcpy(&theirs, e->param.conn.private_data, sizeof(theirs));
	expect(rdma_get_dst_port(e->id), theirs, "port of the peer");
	expect(ntohs(rdma_get_src_port(e->id)), port, "own port");
	rdma_ack_cm_event(e);
	establish_passive();
	hung_up();
}

static void depths_active(void)
{
	prepare();
	need(dial(&end, NULL, 0) == 0, "rdma_connect"); /* 4 as a target, 2 of its own */
	establish_active();
	hang_up();
}

static void depths_passive(void)
{
	struct rdma_cm_event *e;

	request(false, &e);
	expect(e->param.conn.initiator_depth, 4, "initiator_depth");
	expect(e->param.conn.responder_resources, 2, "responder_resources");
	rdma_ack_cm_event(e);
	establish_passive();
	hung_up();
}

static const int lengths[] = { 0, 1, 252, 253, 254, 255 };
#define LENGTHS (int)(sizeof(lengths) / sizeof(lengths[0]))

static void connect_private_active(void)
{
	for (int i = 0; i < LENGTHS; i++) {
		prepare();
		expect(dial(&end, pattern, lengths[i]), 0, "rdma_connect");
		establish_active();
		hang_up();
	}
}

static void connect_private_passive(void)
{
	struct rdma_cm_event *e;

	for (int i = 0; i < LENGTHS; i++) {
		request(false, &e);
		check_pattern(&e->param.conn, lengths[i], "length in the request");
		rdma_ack_cm_event(e);
		establish_passive();
		hung_up();
	}
}

static void answered_active(enum rdma_cm_event_type type, int status)
{
	for (int i = 0; i < LENGTHS; i++) {
		struct rdma_cm_event *e;

		prepare();
		expect(dial(&end, NULL, 0), 0, "rdma_connect");
		e = next_event(events, PATIENCE);
		need(e != NULL, "no answer");
		expect(e->event, type, rdma_event_str(e->event));
		expect(e->status, status, "status");
		check_pattern(&e->param.conn, lengths[i], "length in the answer");
		rdma_ack_cm_event(e);
		if (type == RDMA_CM_EVENT_ESTABLISHED)
			hang_up();
		else {
			expect_silence(events);
			unmake_end(&end);
		}
	}
}

static void accept_private_active(void)
{
	answered_active(RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void accept_private_passive(void)
{
	for (int i = 0; i < LENGTHS; i++) {
		request(false, NULL);
		expect(accept_request(&end, pattern, lengths[i]), 0, "rdma_accept");
		take_event(events, RDMA_CM_EVENT_ESTABLISHED);
		hung_up();
	}
}

static void reject_private_active(void)
{
	answered_active(RDMA_CM_EVENT_REJECTED, -ECONNREFUSED);
}

static void reject_private_passive(void)
{
	for (int i = 0; i < LENGTHS; i++) {
		request(false, NULL);
		expect(rdma_reject(end.id, pattern, lengths[i]), 0, "rdma_reject");
		expect_errno(rdma_reject(end.id, pattern, lengths[i]), EINVAL, "the second rdma_reject");
		unmake_end(&end);
	}
	expect_silence(events);
}

static void disconnect_active(void)
{
	connected();
	hang_up();
}

static void disconnect_passive(void)
{
	accepted(false);
	hung_up();
}

static void disconnect_far_active(void)
{
	connected();
	hung_up();
}

static void disconnect_far_passive(void)
{
	accepted(false);
	hang_up();
}

static void disconnect_both_active(void)
{
	connected();
	rdma_disconnect(end.id); /* the peer may have disconnected first */
	disconnected();
	unmake_end(&end);
}

static void disconnect_both_passive(void)
{
	accepted(false);
	rdma_disconnect(end.id);
	disconnected();
	unmake_end(&end);
}

static void destroy_qp_active(void)
{
	for (int i = 0; i < 10; i++) {
		connected();
		if (i % 2)
			expect(rdma_disconnect(end.id), 0, "rdma_disconnect");
		rdma_destroy_qp(end.id);
		disconnected();
		unmake_end(&end);
	}
}

static void destroy_qp_passive(void)
{
	for (int i = 0; i < 10; i++) {
		accepted(false);
		hung_up();
	}
}

static void destroy_id_active(void)
{
	connected();
	rdma_destroy_qp(end.id);
	unmake_end(&end); /* the event is unread */
	expect_silence(events);
}

static void destroy_id_passive(void)
{
	accepted(false);
	hung_up();
}

static void error_state_active(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	connected();
	expect(ibv_modify_qp(end.id->qp, &a, IBV_QP_STATE), 0, "ibv_modify_qp");
	expect(post_send(&end, 7, 0, 8), 0, "ibv_post_send");
	/* The send (7) and the receives (from 100 on) are flushed, the receives in order. */
	int sends = 0, receives = 0;
	while (sends + receives < 5) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(end.cq, 1, &wc);

		if (n == 0) {
			usleep(200);
			continue;
		}
		need(n == 1, "ibv_poll_cq");
		expect(wc.status, IBV_WC_WR_FLUSH_ERR, "status");
		if (wc.wr_id == 7)
			sends++;
		else
			expect(wc.wr_id, 100 + receives++, "wr_id of a receive");
	}
	hung_up();
}

static void error_state_passive(void)
{
	accepted(false);
	for (int i = 0; i < 4; i++) /* none of them has arrived */
		take_completion(&end, 100 + i, IBV_WC_WR_FLUSH_ERR);
	hung_up();
}

static void flush_active(void)
{
	connected();
	expect(rdma_disconnect(end.id), 0, "rdma_disconnect");
	for (int i = 0; i < 4; i++)
		take_completion(&end, 100 + i, IBV_WC_WR_FLUSH_ERR);
	disconnected();
	expect(post_send(&end, 7, 0, 8), 0, "ibv_post_send after the end");
	take_completion(&end, 7, IBV_WC_WR_FLUSH_ERR);
	unmake_end(&end);
}

static void flush_passive(void)
{
	error_state_passive();
}

static void sends_active(void)
{
	connected();
	for (int i = 0; i < 4; i++) {
		end.memory[1024 + i] = 'a' + i;
		expect(post_send(&end, i, 1024 + i, 1), 0, "ibv_post_send");
	}
	for (int i = 0; i < 4; i++)
		take_completion(&end, i, IBV_WC_SUCCESS);
	hung_up();
}

static void sends_passive(void)
{
	accepted(false);
	for (int i = 0; i < 4; i++) {
		expect(take_completion(&end, 100 + i, IBV_WC_SUCCESS), 1, "length");
		expect(end.memory[64 * i], 'a' + i, "the byte");
	}
	hang_up();
}

static void write_active(void)
{
	connected();
	memset(end.memory, 'w', 100);
	expect(post_remote(&end, 1, IBV_WR_RDMA_WRITE, 100, far_addr + 1000, far_key), 0, "a Write");
	expect(post_send(&end, 2, 0, 1), 0, "a Send behind it");
	take_completion(&end, 1, IBV_WC_SUCCESS);
	take_completion(&end, 2, IBV_WC_SUCCESS);
	expect(post_remote(&end, 3, IBV_WR_RDMA_READ, 50, far_addr + 2000, far_key), 0, "a Read");
	expect(take_completion(&end, 3, IBV_WC_SUCCESS), 50, "length of the Read");
	expect(end.memory[0] == 'r' && end.memory[49] == 'r' && end.memory[50] == 'w', true, "what was read");
	hang_up();
}

static void write_passive(void)
{
	request(false, NULL);
	memset(end.memory + 2000, 'r', 100);
	post_receive(&end, 100, 0, 64);
	struct { uint64_t addr; uint32_t key; } there = { (uintptr_t)end.memory, end.mr->rkey };
	need(accept_request(&end, &there, sizeof(there)) == 0, "rdma_accept");
	take_event(events, RDMA_CM_EVENT_ESTABLISHED);
	take_completion(&end, 100, IBV_WC_SUCCESS);
	expect(end.memory[1000] == 'w' && end.memory[1099] == 'w' && end.memory[1100] == 0, true, "what was written");
	hung_up();
}

static void wrong_key_active(void)
{
	connected();
	expect(post_remote(&end, 1, IBV_WR_RDMA_WRITE, 8, far_addr, far_key ^ 0x5500), 0, "a Write");
	hung_up();
}

static void wrong_key_passive(void)
{
	accepted(false);
	for (int i = 0; i < 4; i++)
		take_completion(&end, 100 + i, IBV_WC_WR_FLUSH_ERR);
	hung_up();
}

static void outside_active(void)
{
	connected();
	expect(post_remote(&end, 1, IBV_WR_RDMA_READ, 64, far_addr + MEMORY - 32, far_key), 0, "a Read");
	take_completion(&end, 1, IBV_WC_REM_ACCESS_ERR);
	hung_up();
}

static void outside_passive(void)
{
	wrong_key_passive();
}

static void too_long_active(void)
{
	connected();
	expect(post_send(&end, 1, 1024, 65), 0, "a Send");
	hung_up();
}

static void too_long_passive(void)
{
	accepted(false);
	take_completion(&end, 100, IBV_WC_LOC_LEN_ERR);
	take_completion(&end, 101, IBV_WC_WR_FLUSH_ERR);
	hung_up();
}

static void take_async(enum ibv_event_type want, bool acknowledge)
{
	struct ibv_async_event e;

	expect(readable(end.id->verbs->async_fd, PATIENCE), true, "an asynchronous event is there");
	if (!acknowledge)
		return;
	need(ibv_get_async_event(end.id->verbs, &e) == 0, "ibv_get_async_event");
	expect(e.event_type, want, ibv_event_type_str(e.event_type));
	ibv_ack_async_event(&e);
}

static void last_wqe_active(void)
{
	disconnect_active();
	disconnect_active();
}

static void last_wqe_passive(void)
{
	for (int acknowledge = 0; acknowledge < 2; acknowledge++) {
		struct ibv_context *device;

		accepted(true);
		take_event(events, RDMA_CM_EVENT_DISCONNECTED);
		take_async(IBV_EVENT_QP_LAST_WQE_REACHED, acknowledge);
		device = end.id->verbs;
		rdma_destroy_qp(end.id);
		expect(readable(device->async_fd, 50), false, "an event is left");
		unmake_end(&end);
	}
}

static void srq_limit_active(void)
{
	for (int i = 0; i < 2; i++) {
		connected();
		for (int n = 0; n < 3; n++)
			post_send(&end, n, 0, 1);
		hung_up();
	}
}

static void srq_limit_passive(void)
{
	for (int acknowledge = 0; acknowledge < 2; acknowledge++) {
		struct ibv_srq_attr a = { .srq_limit = 2 };
		struct ibv_context *device;

		request(true, NULL);
		for (int i = 0; i < 4; i++)
			post_receive(&end, 100 + i, 64 * i, 64);
		expect(ibv_modify_srq(end.srq, &a, IBV_SRQ_LIMIT), 0, "ibv_modify_srq");
		establish_passive();
		take_async(IBV_EVENT_SRQ_LIMIT_REACHED, acknowledge);
		for (int i = 0; i < 3; i++)
			take_completion(&end, 100 + i, IBV_WC_SUCCESS);
		device = end.id->verbs;
		rdma_disconnect(end.id);
		take_event(events, RDMA_CM_EVENT_DISCONNECTED);
		rdma_destroy_qp(end.id); /* with LAST_WQE_REACHED, which is unread */
		expect(ibv_destroy_srq(end.srq), 0, "ibv_destroy_srq");
		end.srq = NULL;
		expect(readable(device->async_fd, 50), false, "an event is left");
		unmake_end(&end);
	}
}

static void unaccepted_active(void)
{
	prepare();
	need(dial(&end, NULL, 0) == 0, "rdma_connect");
	expect(take_event(events, RDMA_CM_EVENT_REJECTED), -ECONNREFUSED, "status of REJECTED");
	unmake_end(&end);
}

static void unaccepted_passive(void)
{
	request(false, NULL);
	unmake_end(&end);
	expect_silence(events);
}

static char *self;

static void killed_active(void)
{
	char text[16];
	int status;
	pid_t child;

	snprintf(text, sizeof(text), "%d", port);
	child = fork();
	need(child >= 0, "fork");
	if (child == 0) {
		execl("/proc/self/exe", self, "die", text, (char *)NULL);
		_exit(9);
	}
	waitpid(child, &status, 0);
	expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, true, "the other program was killed");
}

static void killed_passive(void)
{
	accepted(false);
	hung_up();
}

static int die(void)
{
	connected();
	raise(SIGKILL);
	return 0;
}

#define CASE(name, expectation) { #name, expectation, name##_active }, { #name, expectation, name##_passive }

static const struct test both[] = {
	CASE(ports, "the port after rdma_resolve_addr is the one that the peer sees"),
	CASE(depths, "responder_resources and initiator_depth come as the other side has them"),
	CASE(connect_private, "rdma_connect carries up to 255 bytes"),
	CASE(accept_private, "rdma_accept carries up to 255 bytes"),
	CASE(reject_private, "rdma_reject carries up to 255 bytes, and the peer has REJECTED, ECONNREFUSED"),
	CASE(disconnect, "rdma_disconnect gives both sides one DISCONNECTED"),
	CASE(disconnect_far, "so it does from the passive side"),
	CASE(disconnect_both, "so it does from both sides at once"),
	CASE(destroy_qp, "the end of a queue pair gives both sides one DISCONNECTED, with rdma_disconnect before or without"),
	CASE(destroy_id, "an unread DISCONNECTED goes with its identifier"),
	CASE(error_state, "a send in the error state is flushed and does not reach the peer"),
	CASE(flush, "the end flushes receives in order, and sends after it"),
	CASE(sends, "messages come in order"),
	CASE(write, "a Write is there before the Send behind it, and a Read reads what is there"),
	CASE(wrong_key, "a Write by a wrong key ends the connection"),
	CASE(outside, "a Read beyond a region is REM_ACCESS_ERR, and ends the connection"),
	CASE(too_long, "a message that is longer than its receive is LOC_LEN_ERR, and ends the connection"),
	CASE(last_wqe, "the end gives LAST_WQE_REACHED, read or unread, and the queue pair can be destroyed"),
	CASE(srq_limit, "SRQ_LIMIT_REACHED comes, read or unread, and the shared queue can be destroyed"),
	CASE(unaccepted, "a request that is destroyed is rejected"),
	CASE(killed, "the end of a process gives its peer one DISCONNECTED"),
};

int main(int argc, char **argv)
{
	int n = sizeof(both) / sizeof(both[0]) / 2;
	struct test tests[sizeof(both) / sizeof(both[0]) / 2];
	bool serve;

	if (argc != 3) {
		fprintf(stderr, "usage: pairs serve|call PORT\n");
		return 2;
	}
	self = argv[0];
	port = atoi(argv[2]);
	for (int i = 0; i < (int)sizeof(pattern); i++)
		pattern[i] = i ^ 0x5a;
	need((events = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
	if (strcmp(argv[1], "die") == 0)
		return die();
	serve = strcmp(argv[1], "serve") == 0;
	for (int i = 0; i < n; i++)
		tests[i] = both[2 * i + serve];
	if (serve)
		listener = listen_at(events, port, 8);
	return run_tests(tests, n);
}
