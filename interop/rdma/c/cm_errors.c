/* The errors of rdma_cm, and the ownership of ports: the behaviour of the kernel's cma.c and ucma.c
 * for an identifier in the wrong state, and for an address that is not available. One process, no
 * connection. */
#include "check.h"
#include "end.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct rdma_event_channel *events;

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;

	need(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	return id;
}

static int bind_to(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };

	if (inet_pton(AF_INET, ip, &in.sin_addr) == 1)
		return rdma_bind_addr(id, (struct sockaddr *)&in);
	need(inet_pton(AF_INET6, ip, &in6.sin6_addr) == 1, ip);
	return rdma_bind_addr(id, (struct sockaddr *)&in6);
}

static int resolve_to(struct rdma_cm_id *id, uint16_t port)
{
	struct sockaddr_in to = local_address(port);

	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000);
}

static int set(struct rdma_cm_id *id, int option, int value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof(value));
}

static uint16_t port_of(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

static struct rdma_cm_id *bound_id(const char *ip)
{
	struct rdma_cm_id *id = new_id();

	expect_errno(bind_to(id, ip, 0), 0, "bind to a free port");
	return id;
}

/* Identifiers and states. */

static void port_space(void)
{
	struct rdma_cm_id *id;

	expect_errno(rdma_create_id(events, &id, NULL, 0x42), EINVAL, "rdma_create_id");
}

static void bind_twice(void)
{
	struct rdma_cm_id *id = bound_id("127.0.0.1");

	expect_errno(bind_to(id, "127.0.0.1", 0), EINVAL, "the second");
	rdma_destroy_id(id);
}

static void listen_twice(void)
{
	struct rdma_cm_id *id = listen_at(events, 0, 1);

	expect_errno(rdma_listen(id, 1), EINVAL, "the second");
	rdma_destroy_id(id);
}

static void listen_resolved(void)
{
	struct rdma_cm_id *id = resolve(events, 1);

	expect_errno(rdma_listen(id, 1), EINVAL, "rdma_listen");
	rdma_destroy_id(id);
}

static void resolve_twice(void)
{
	struct rdma_cm_id *id = new_id();

	expect_errno(resolve_to(id, 1), 0, "the first");
	take_event(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	expect_errno(resolve_to(id, 1), EINVAL, "the second");
	expect_silence(events);
	rdma_destroy_id(id);
}

static void resolve_listener(void)
{
	struct rdma_cm_id *id = listen_at(events, 0, 1);

	expect_errno(resolve_to(id, 1), EINVAL, "rdma_resolve_addr");
	rdma_destroy_id(id);
}

static void resolve_family(void)
{
	struct rdma_cm_id *id = bound_id("::1");

	expect_errno(resolve_to(id, 1), EINVAL, "rdma_resolve_addr");
	rdma_destroy_id(id);
}

static void route_early(void)
{
	struct rdma_cm_id *id = bound_id("127.0.0.1");

	expect_errno(rdma_resolve_route(id, 1000), EINVAL, "rdma_resolve_route");
	rdma_destroy_id(id);
}

static void route_twice(void)
{
	struct rdma_cm_id *id = resolve(events, 1);

	expect_errno(rdma_resolve_route(id, 1000), EINVAL, "the second");
	expect_silence(events);
	rdma_destroy_id(id);
}

static void connect_early(void)
{
	struct rdma_conn_param p = { .qp_num = 1 };
	struct rdma_cm_id *id = new_id();

	resolve_to(id, 1);
	take_event(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	expect_errno(rdma_connect(id, &p), EINVAL, "rdma_connect");
	rdma_destroy_id(id);
}

static void connect_without_queue_pair(void)
{
	struct rdma_conn_param p = { .qp_num = 0xfffffe };
	struct rdma_cm_id *id = resolve(events, 1);

	expect_errno(rdma_connect(id, &p), EINVAL, "rdma_connect");
	expect_silence(events);
	rdma_destroy_id(id);
}

static void reject_early(void)
{
	struct rdma_cm_id *id = bound_id("127.0.0.1");

	expect_errno(rdma_reject(id, NULL, 0), EINVAL, "rdma_reject");
	rdma_destroy_id(id);
}

static void disconnect_early(void)
{
	struct rdma_cm_id *id = resolve(events, 1);
	struct end e;

	make_end(&e, id, false);
	expect_errno(rdma_disconnect(id), EINVAL, "rdma_disconnect");
	unmake_end(&e);
}

/* Ports. */

static void bind_used(void)
{
	struct rdma_cm_id *a = bound_id("127.0.0.1"), *b = new_id();

	expect_errno(bind_to(b, "127.0.0.1", port_of(a)), EADDRINUSE, "the second");
	rdma_destroy_id(a);
	expect_errno(bind_to(b, "127.0.0.1", port_of(a)), 0, "after the first was destroyed");
	rdma_destroy_id(b);
}

static void bind_beside_all(void)
{
	struct rdma_cm_id *a = bound_id("0.0.0.0"), *b = new_id();

	expect_errno(bind_to(b, "127.0.0.1", port_of(a)), EADDRNOTAVAIL, "the second");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
}

static void bind_other_address(void)
{
	struct rdma_cm_id *a = bound_id("127.0.0.1"), *b = new_id();

	expect_errno(bind_to(b, "127.0.0.2", port_of(a)), 0, "the second");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
}

static void bind_shared(void)
{
	struct rdma_cm_id *a = new_id(), *b = new_id(), *c = new_id();

	expect_errno(set(a, RDMA_OPTION_ID_REUSEADDR, 1), 0, "REUSEADDR");
	expect_errno(set(b, RDMA_OPTION_ID_REUSEADDR, 1), 0, "REUSEADDR");
	expect_errno(bind_to(a, "127.0.0.1", 0), 0, "the first");
	expect_errno(bind_to(b, "127.0.0.1", port_of(a)), 0, "the second");
	expect_errno(bind_to(c, "127.0.0.1", port_of(a)), EADDRINUSE, "one without the option");
	expect_errno(rdma_listen(a, 1), EADDRINUSE, "listen while another is bound");
	rdma_destroy_id(b);
	expect_errno(rdma_listen(a, 1), 0, "listen alone");
	rdma_destroy_id(a);
	rdma_destroy_id(c);
}

static void bind_families(void)
{
	struct rdma_cm_id *a = bound_id("0.0.0.0"), *b = new_id(), *c = new_id();

	expect_errno(set(b, RDMA_OPTION_ID_AFONLY, 1), 0, "AFONLY");
	expect_errno(bind_to(b, "::", port_of(a)), 0, "IPv6 alone beside IPv4");
	expect_errno(bind_to(c, "::", port_of(a)), EADDRNOTAVAIL, "IPv6 with IPv4 beside IPv4");
	expect_errno(rdma_listen(a, 1), 0, "listen, IPv4");
	expect_errno(rdma_listen(b, 1), 0, "listen, IPv6");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(c);
}

static void bind_foreign(void)
{
	struct rdma_cm_id *id = new_id();

	expect_errno(bind_to(id, "192.0.2.77", 0), EADDRNOTAVAIL, "rdma_bind_addr");
	expect_errno(bind_to(id, "127.0.0.1", 0), 0, "another address, later");
	rdma_destroy_id(id);
}

static void bind_any_port(void)
{
	struct rdma_cm_id *a = bound_id("127.0.0.1"), *b = bound_id("127.0.0.1");

	expect(port_of(a) != 0 && port_of(b) != 0, true, "ports are there");
	expect(port_of(a) != port_of(b), true, "ports differ");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
}

static void bind_privileged(void)
{
	struct rdma_cm_id *id;
	int lowest = 1024;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r");

	if (f) {
		if (fscanf(f, "%d", &lowest) != 1)
			lowest = 1024;
		fclose(f);
	}
	if (geteuid() == 0 || lowest <= 77) {
		skip(" (this user may bind every port)");
		return;
	}
	id = new_id();
	expect_errno(bind_to(id, "127.0.0.1", 77), EACCES, "rdma_bind_addr");
	rdma_destroy_id(id);
}

static void listen_unbound(void)
{
	struct rdma_cm_id *id = new_id();

	expect_errno(rdma_listen(id, 1), 0, "rdma_listen");
	expect(port_of(id) != 0, true, "a port is there");
	expect(rdma_get_local_addr(id)->sa_family, AF_INET, "family");
	rdma_destroy_id(id);
}

static void resolve_binds(void)
{
	struct rdma_cm_id *a = new_id(), *b = new_id();
	struct sockaddr_in *at = (struct sockaddr_in *)rdma_get_local_addr(a);

	resolve_to(a, 1);
	take_event(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	resolve_to(b, 1);
	take_event(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	expect(ntohl(at->sin_addr.s_addr), INADDR_LOOPBACK, "address");
	expect(port_of(a) != 0 && port_of(b) != 0, true, "ports are there");
	expect(port_of(a) != port_of(b), true, "ports differ");
	expect(ntohs(rdma_get_dst_port(a)), 1, "port of the other end");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
}

static void resolve_bound(void)
{
	struct rdma_cm_id *id = bound_id("127.0.0.1");
	uint16_t port = port_of(id);

	resolve_to(id, 1);
	take_event(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	expect(port_of(id), port, "port after rdma_resolve_addr");
	rdma_destroy_id(id);
}

/* Link-local addresses. */

static void link_local(void)
{
	struct ifaddrs *all, *a;
	struct sockaddr_in6 at, *got;
	struct rdma_cm_id *id;

	need(getifaddrs(&all) == 0, "getifaddrs");
	for (a = all; a; a = a->ifa_next) {
		if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET6)
			continue;
		at = *(struct sockaddr_in6 *)a->ifa_addr;
		if (IN6_IS_ADDR_LINKLOCAL(&at.sin6_addr))
			break;
	}
	freeifaddrs(all);
	if (!a) {
		skip(" (no interface has such an address)");
		return;
	}
	at.sin6_port = 0;
	id = new_id();
	expect_errno(rdma_bind_addr(id, (struct sockaddr *)&at), 0, "rdma_bind_addr");
	got = (struct sockaddr_in6 *)rdma_get_local_addr(id);
	expect(got->sin6_scope_id, at.sin6_scope_id, "scope of the local address");
	expect(memcmp(&got->sin6_addr, &at.sin6_addr, 16), 0, "difference of the local address");
	rdma_destroy_id(id);

	id = new_id();
	at.sin6_port = htons(1);
	expect_errno(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 1000), 0, "rdma_resolve_addr");
	expect(take_event(events, RDMA_CM_EVENT_ADDR_RESOLVED), 0, "status of ADDR_RESOLVED");
	rdma_destroy_id(id);
}

static void link_local_without_scope(void)
{
	struct rdma_cm_id *id = new_id();

	expect_errno(bind_to(id, "fe80::1", 0), EINVAL, "rdma_bind_addr");
	rdma_destroy_id(id);
}

/* Options and events. */

static void option_unknown(void)
{
	struct rdma_cm_id *id = new_id();

	expect_errno(set(id, 77, 1), ENOSYS, "an unknown option");
	expect_errno(rdma_set_option(id, 77, 0, "", 1), ENOSYS, "an unknown level");
	rdma_destroy_id(id);
}

static void option_length(void)
{
	struct rdma_cm_id *id = new_id();
	uint32_t v = 1;

	expect_errno(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &v, 4), EINVAL, "TOS of four bytes");
	expect_errno(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &v, 1), 0, "TOS of one byte");
	expect_errno(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &v, 1), EINVAL, "REUSEADDR of one byte");
	rdma_destroy_id(id);
}

static void option_late(void)
{
	struct rdma_cm_id *id = listen_at(events, 0, 1);

	expect_errno(set(id, RDMA_OPTION_ID_REUSEADDR, 1), EINVAL, "REUSEADDR of a listener");
	expect_errno(set(id, RDMA_OPTION_ID_AFONLY, 1), EINVAL, "AFONLY of a listener");
	rdma_destroy_id(id);
}

static void no_event(void)
{
	struct rdma_cm_event *e;

	expect_errno(rdma_get_cm_event(events, &e), EAGAIN, "rdma_get_cm_event");
}

static void destroy_with_event(void)
{
	struct rdma_cm_id *id = new_id();

	resolve_to(id, 1);
	readable(events->fd, PATIENCE);
	expect(rdma_destroy_id(id), 0, "rdma_destroy_id");
	expect_silence(events);
}

int main(void)
{
	static const struct test tests[] = {
		{ "port_space", "an unknown port space is EINVAL", port_space },
		{ "bind_twice", "an identifier is bound once, the second is EINVAL", bind_twice },
		{ "listen_twice", "the second rdma_listen is EINVAL", listen_twice },
		{ "listen_resolved", "an identifier with a destination does not listen, EINVAL", listen_resolved },
		{ "resolve_twice", "the second rdma_resolve_addr is EINVAL, and gives no event", resolve_twice },
		{ "resolve_listener", "a listener has no destination, EINVAL", resolve_listener },
		{ "resolve_family", "a destination of another family than the bound address is EINVAL", resolve_family },
		{ "route_early", "rdma_resolve_route without a destination is EINVAL", route_early },
		{ "route_twice", "the second rdma_resolve_route is EINVAL, and gives no event", route_twice },
		{ "connect_early", "rdma_connect without a route is EINVAL", connect_early },
		{ "connect_without_queue_pair", "rdma_connect of no queue pair is EINVAL, and gives no event", connect_without_queue_pair },
		{ "reject_early", "rdma_reject without a request is EINVAL", reject_early },
		{ "disconnect_early", "rdma_disconnect before rdma_connect is EINVAL", disconnect_early },
		{ "bind_used", "a port of an address is bound once: EADDRINUSE until it is given back", bind_used },
		{ "bind_beside_all", "a port bound at all addresses is bound nowhere else: EADDRNOTAVAIL", bind_beside_all },
		{ "bind_other_address", "another address has ports of its own", bind_other_address },
		{ "bind_shared", "REUSEADDR shares a port between those that set it, and with no listener", bind_shared },
		{ "bind_families", "IPv6 with AFONLY leaves the port to IPv4", bind_families },
		{ "bind_foreign", "an address of no interface is EADDRNOTAVAIL, and leaves the identifier free", bind_foreign },
		{ "bind_any_port", "port 0 stands for a free one", bind_any_port },
		{ "bind_privileged", "a port below 1024 is EACCES for users", bind_privileged },
		{ "listen_unbound", "a listener that was not bound has a port of IPv4", listen_unbound },
		{ "resolve_binds", "rdma_resolve_addr binds an address and a port of its own", resolve_binds },
		{ "resolve_bound", "rdma_resolve_addr leaves a bound port", resolve_bound },
		{ "link_local", "a link-local address with its scope is bound, resolved and told", link_local },
		{ "link_local_without_scope", "a link-local address without scope is EINVAL", link_local_without_scope },
		{ "option_unknown", "an unknown option or level is ENOSYS", option_unknown },
		{ "option_length", "an option of wrong length is EINVAL", option_length },
		{ "option_late", "a listener's port is not shared any more, EINVAL", option_late },
		{ "no_event", "without an event a channel that does not block says EAGAIN", no_event },
		{ "destroy_with_event", "an unread event goes with its identifier", destroy_with_event },
	};

	need((events = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
	fcntl(events->fd, F_SETFL, fcntl(events->fd, F_GETFL) | O_NONBLOCK);
	return TESTS(tests);
}
