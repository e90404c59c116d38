/* Many identifiers of one process that is client and server at once. The cases test how many
 * requests may wait at a listener, what becomes of waiting requests when the listener is destroyed,
 * and that events move to another channel with their identifier. */
#include "check.h"
#include "end.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CROWD 200

static struct rdma_event_channel *active, *passive;
static struct end crowd[CROWD];

static uint16_t port_of(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

/* call sends the connection requests of n clients and does not wait for answers. The private data of
 * client i is i. */
static void call(struct rdma_cm_id *listener, int n)
{
	for (int i = 0; i < n; i++)
		make_end(&crowd[i], resolve(active, port_of(listener)), false);
	for (int i = 0; i < n; i++)
		need(dial(&crowd[i], &i, sizeof(i)) == 0, "rdma_connect");
}

static void leave(int n)
{
	for (int i = 0; i < n; i++)
		unmake_end(&crowd[i]);
}

/* take_request returns the new identifier of the next request, with the number of its client in
 * *caller, or NULL if another event or none arrives. */
static struct rdma_cm_id *take_request(struct rdma_event_channel *ch, int *caller)
{
	struct rdma_cm_event *e = next_event(ch, PATIENCE);
	struct rdma_cm_id *id = NULL;

	if (e && e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		id = e->id;
		if (caller)
			memcpy(caller, e->param.conn.private_data, sizeof(*caller));
	}
	if (e)
		rdma_ack_cm_event(e);
	return id;
}

static void rejected(int n)
{
	for (int i = 0; i < n; i++)
		expect(take_event(active, RDMA_CM_EVENT_REJECTED), -ECONNREFUSED, "status of REJECTED");
}

/* hold_port binds a TCP socket that does not listen, so that no other program gets the port. */
static int hold_port(uint16_t port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	need(s >= 0, "socket");
	need(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0, "SO_REUSEADDR");
	need(bind(s, (struct sockaddr *)&a, sizeof(a)) == 0, "bind to the port of a destroyed listener");
	return s;
}

static void no_listener(void)
{
	struct rdma_cm_id *l = listen_at(passive, 0, 1);
	uint16_t port = port_of(l);
	int s;

	rdma_destroy_id(l);
	s = hold_port(port);
	make_end(&crowd[0], resolve(active, port), false);
	need(dial(&crowd[0], NULL, 0) == 0, "rdma_connect");
	rejected(1);
	expect_silence(active);
	leave(1);
	close(s);
}

static void backlog_of_none(void)
{
	struct rdma_cm_id *l = listen_at(passive, 0, 0), *id;
	int requests = 0;

	call(l, CROWD);
	usleep(500000); /* time for more requests than the backlog; otherwise the case shows nothing */
	while (requests < CROWD && (id = take_request(passive, NULL))) {
		requests++;
		rdma_destroy_id(id);
	}
	expect(requests, CROWD, "requests");
	rejected(CROWD);
	leave(CROWD);
	rdma_destroy_id(l);
}

static void backlog_of_three(void)
{
	struct rdma_cm_id *l = listen_at(passive, 0, 3);

	call(l, 6);
	rejected(3);
	expect_silence(active);
	/* A request that is read from the channel leaves the backlog, so a later call finds room. */
	for (int i = 0; i < 3; i++) {
		struct rdma_cm_id *id = take_request(passive, NULL);

		expect(id != NULL, true, "a request is there");
		if (id)
			expect(rdma_reject(id, NULL, 0), 0, "rdma_reject");
		rdma_destroy_id(id);
	}
	rejected(3);
	leave(6);
	call(l, 1);
	rdma_destroy_id(take_request(passive, NULL));
	rejected(1);
	leave(1);
	expect_silence(passive);
	rdma_destroy_id(l);
}

static void once_each(void)
{
	struct rdma_cm_id *l = listen_at(passive, 0, 0), *id;
	bool seen[20] = { false };
	int caller = -1;

	call(l, 20);
	for (int i = 0; i < 20; i++) {
		need((id = take_request(passive, &caller)) != NULL, "a request");
		expect(caller >= 0 && caller < 20 && !seen[caller], true, "a new caller");
		seen[caller] = true;
		rdma_destroy_id(id);
	}
	rejected(20);
	leave(20);
	rdma_destroy_id(l);
}

static void listener_destroyed(void)
{
	struct rdma_cm_id *l = listen_at(passive, 0, 8), *again;
	uint16_t port = port_of(l);

	call(l, 3);
	expect(readable(passive->fd, PATIENCE), true, "a request is there");
	expect(rdma_destroy_id(l), 0, "rdma_destroy_id");
	rejected(3);
	expect_silence(passive);
	leave(3);
	again = listen_at(passive, port, 1);
	expect(port_of(again), port, "port of the next listener");
	rdma_destroy_id(again);
}

static void listener_gone(void)
{
	struct rdma_cm_id *l = listen_at(passive, 0, 8), *id;
	struct end server;

	call(l, 1);
	need((id = take_request(passive, NULL)) != NULL, "a request");
	expect(rdma_destroy_id(l), 0, "rdma_destroy_id");
	make_end(&server, id, false);
	expect(accept_request(&server, NULL, 0), 0, "rdma_accept");
	take_event(passive, RDMA_CM_EVENT_ESTABLISHED);
	take_event(active, RDMA_CM_EVENT_ESTABLISHED);
	rdma_disconnect(id);
	take_event(passive, RDMA_CM_EVENT_DISCONNECTED);
	take_event(active, RDMA_CM_EVENT_DISCONNECTED);
	unmake_end(&server);
	leave(1);
}

static void migrated(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *l = listen_at(passive, 0, 8), *id;
	struct end server;

	need(other != NULL, "rdma_create_event_channel");
	call(l, 1);
	need((id = take_request(passive, NULL)) != NULL, "a request");
	expect(rdma_migrate_id(id, other), 0, "rdma_migrate_id");
	make_end(&server, id, false);
	expect(accept_request(&server, NULL, 0), 0, "rdma_accept");
	take_event(other, RDMA_CM_EVENT_ESTABLISHED);
	take_event(active, RDMA_CM_EVENT_ESTABLISHED);
	/* An event that nobody has read yet moves to the new channel too. */
	rdma_disconnect(crowd[0].id);
	take_event(active, RDMA_CM_EVENT_DISCONNECTED);
	expect(readable(other->fd, PATIENCE), true, "an event is there");
	expect(rdma_migrate_id(id, passive), 0, "rdma_migrate_id");
	take_event(passive, RDMA_CM_EVENT_DISCONNECTED);
	expect_silence(other);
	unmake_end(&server);
	leave(1);
	rdma_destroy_id(l);
	rdma_destroy_event_channel(other);
}

static void connected_twice(void)
{
	struct rdma_cm_id *l = listen_at(passive, 0, 8), *id;
	struct end server;

	call(l, 1);
	need((id = take_request(passive, NULL)) != NULL, "a request");
	make_end(&server, id, false);
	expect(accept_request(&server, NULL, 0), 0, "rdma_accept");
	take_event(passive, RDMA_CM_EVENT_ESTABLISHED);
	take_event(active, RDMA_CM_EVENT_ESTABLISHED);
	expect_errno(rdma_reject(id, NULL, 0), EINVAL, "rdma_reject");
	expect_errno(dial(&crowd[0], NULL, 0), EINVAL, "the second rdma_connect");
	expect_silence(active);
	unmake_end(&server);
	take_event(active, RDMA_CM_EVENT_DISCONNECTED);
	leave(1);
	rdma_destroy_id(l);
}

static void queue_pair_gone(void)
{
	struct rdma_cm_id *l = listen_at(passive, 0, 8), *id;

	call(l, 1);
	need((id = take_request(passive, NULL)) != NULL, "a request");
	rdma_destroy_qp(crowd[0].id); /* while it connects */
	struct end server;
	make_end(&server, id, false);
	accept_request(&server, NULL, 0);
	/* siw reports the missing queue pair at once, Viaduct when the peer's answer arrives. */
	expect(take_event(active, RDMA_CM_EVENT_CONNECT_ERROR), -EINVAL, "status of CONNECT_ERROR");
	expect_silence(active);
	unmake_end(&server);
	leave(1);
	rdma_destroy_id(l);
}

static void address_family(void)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
	struct rdma_cm_id *l, *c;

	need(rdma_create_id(passive, &l, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	if (rdma_bind_addr(l, (struct sockaddr *)&at) != 0) {
		skip(" (no IPv6 here)");
		rdma_destroy_id(l);
		return;
	}
	need(rdma_listen(l, 1) == 0, "rdma_listen");
	at.sin6_port = rdma_get_src_port(l);
	need(rdma_create_id(active, &c, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	need(rdma_resolve_addr(c, NULL, (struct sockaddr *)&at, 1000) == 0, "rdma_resolve_addr");
	take_event(active, RDMA_CM_EVENT_ADDR_RESOLVED);
	need(rdma_resolve_route(c, 1000) == 0, "rdma_resolve_route");
	take_event(active, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_end(&crowd[0], c, false);
	need(dial(&crowd[0], NULL, 0) == 0, "rdma_connect");
	struct rdma_cm_id *id = take_request(passive, NULL);
	need(id != NULL, "a request");
	expect(rdma_get_peer_addr(id)->sa_family, AF_INET6, "family of the peer");
	expect(rdma_get_dst_port(id), rdma_get_src_port(c), "port of the peer");
	rdma_destroy_id(id);
	rejected(1);
	leave(1);
	rdma_destroy_id(l);
}

int main(void)
{
	static const struct test tests[] = {
		{ "no_listener", "a port at which nobody listens is REJECTED, ECONNREFUSED", no_listener },
		{ "backlog_of_none", "a backlog of 0 lets 1024 requests wait: 200 do", backlog_of_none },
		{ "backlog_of_three", "a backlog of 3 lets three requests wait, and rejects more", backlog_of_three },
		{ "once_each", "the request of each client comes once, with its private data", once_each },
		{ "listener_destroyed", "unread requests are rejected when their listener goes, and its port is free", listener_destroyed },
		{ "listener_gone", "a request that was read outlives its listener", listener_gone },
		{ "migrated", "events follow their identifier to another channel", migrated },
		{ "connected_twice", "a connection is not rejected or made again, EINVAL", connected_twice },
		{ "queue_pair_gone", "a queue pair that goes while it connects is CONNECT_ERROR, EINVAL", queue_pair_gone },
		{ "address_family", "IPv6 connects as IPv4 does", address_family },
	};

	need((active = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
	need((passive = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
	return TESTS(tests);
}
